// What the cases do with the page: open it, write, wait, read. Each page has a browser context of its own.

import assert from "node:assert/strict";
import axe from "axe-core";

/** Longest that anything on the page may take to show, in ms; machines that test are busy. */
export const PATIENCE_MS = 30_000;

export class Driver {
  constructor(context, page, url) {
    Object.assign(this, { context, page, url });
    /** Errors that the console or the page reported. */
    this.problems = [];
    /** Statuses of failed requests that a case expects; the browser reports each on the console. */
    this.expectedStatuses = [];
  }

  static async open(browser, url, { width = 1100, height = 800, scheme = "light" } = {}) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    const driver = new Driver(context, page, url);
    page.on("pageerror", (error) => driver.problems.push(`page error: ${error.message}`));
    page.on("console", (message) => driver.heard(message));
    page.on("dialog", (dialog) => {
      driver.problems.push(`a dialog opened: ${dialog.message()}`);
      dialog.dismiss();
    });
    await page.evaluateOnNewDocument(observe);
    await page.setViewport({ width, height });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    driver.response = await page.goto(url);
    await page.waitForFunction(() => document.getElementById("status-text").textContent !== "Connecting");
    return driver;
  }

  heard(message) {
    if (!["error", "warn"].includes(message.type())) return;
    const status = /Failed to load resource: .*status of (\d+)/.exec(message.text())?.[1];
    if (this.expectedStatuses.includes(Number(status))) return;
    if (this.expectedStatuses.includes("network") && message.text().includes("net::")) return;
    this.problems.push(`console: ${message.text()}`);
  }

  /** Closes the page; nothing may have gone wrong on it meanwhile. */
  async close() {
    const violations = await this.page.evaluate(() => window.observed.violations);
    await this.context.close();
    assert.deepEqual(violations, [], "violations of the content security policy");
    assert.deepEqual(this.problems, []);
  }

  async type(text, selector = "#message") {
    await this.page.focus(selector);
    await this.page.keyboard.sendCharacter(text);
  }

  /** Sends a message and waits for the end of the reply. */
  async ask(text) {
    await this.start(text);
    await this.idle();
  }

  async start(text) {
    await this.type(text);
    await this.page.keyboard.press("Enter");
  }

  async idle() {
    await this.page.waitForFunction(() => document.documentElement.dataset.running === "false", { polling: 20 });
  }

  async text(selector) {
    return this.page.$eval(selector, (element) => element.innerText);
  }

  async texts(selector) {
    return this.page.$$eval(selector, (elements) => elements.map((element) => element.innerText));
  }

  async count(selector) {
    return this.page.$$eval(selector, (elements) => elements.length);
  }

  /** Waits until the text of an element contains something. */
  async shows(selector, text) {
    const contains = (s, t) => [...document.querySelectorAll(s)].some((element) => element.innerText.includes(t));
    await this.page.waitForFunction(contains, { polling: 20 }, selector, text).catch(async () => {
      assert.fail(`${selector} never showed "${text}"; it shows ${JSON.stringify(await this.texts(selector))}`);
    });
  }

  /** Clicks the last control of that name. */
  async click(name, within = "body") {
    const found = await this.page.evaluateHandle(
      (wanted, scope) => {
        const buttons = [...document.querySelectorAll(`${scope} button`)].filter((button) => button.checkVisibility());
        return buttons.findLast((button) => (button.getAttribute("aria-label") ?? button.innerText.trim()) === wanted) ?? null;
      },
      name,
      within,
    );
    const button = found.asElement();
    assert.ok(button, `no button "${name}"`);
    assert.equal(await button.evaluate((element) => element.disabled), false, `"${name}" is disabled`);
    await button.evaluate((element) => element.scrollIntoView({ block: "center" }));
    await button.click();
  }

  /** The accessible name and role of what has the focus. */
  async focused() {
    return this.page.evaluate(() => {
      const { activeElement: at } = document;
      return `${at.tagName.toLowerCase()} ${at.getAttribute("aria-label") ?? at.innerText.trim()}`;
    });
  }

  /** What was said to a screen reader so far. */
  async announced() {
    return this.page.evaluate(() => window.observed.announced);
  }

  /** Asserts that axe finds nothing. */
  async assertAccessible(where) {
    await this.page.evaluate(axe.source);
    const violations = await this.page.evaluate(async () => {
      const { violations } = await axe.run(document, { resultTypes: ["violations"] });
      return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)} ${node.failureSummary}`));
    });
    assert.deepEqual(violations, [], `axe, ${where}`);
  }

  /** Asserts that nothing is wider than the window. */
  async assertNoOverflow(where) {
    const wide = await this.page.evaluate(() => {
      const limit = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= limit) return [];
      return [...document.querySelectorAll("body *")]
        .filter((element) => element.getBoundingClientRect().right > limit + 0.5)
        .map((element) => `${element.tagName}.${element.className}`);
    });
    assert.deepEqual(wide, [], `wider than the window, ${where}`);
  }
}

/** Runs in the page before its own scripts. */
function observe() {
  window.observed = { violations: [], announced: [] };
  addEventListener("securitypolicyviolation", (event) => {
    window.observed.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
  });
  addEventListener("DOMContentLoaded", () => {
    const region = document.getElementById("announcer");
    new MutationObserver(() => window.observed.announced.push(region.textContent)).observe(region, { childList: true });
  });
}

/** Waits until `check` returns something true. */
export async function until(what, check) {
  const end = Date.now() + PATIENCE_MS;
  while (Date.now() < end) {
    if (await check()) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  assert.fail(`waited ${PATIENCE_MS} ms for ${what}`);
}
