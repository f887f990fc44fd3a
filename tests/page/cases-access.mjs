// Cases of access: keyboard alone, screen readers, narrow windows, both colour schemes, the security policy.

import assert from "node:assert/strict";
import { Driver } from "./driver.mjs";

const RICH = [
  "# Heading\n\nText with **bold**, `code`, a [link](https://e.org/).\n\n### Deeper\n\n- item\n  - nested\n\n> quote\n",
  `\`\`\`python\nprint("${"wide ".repeat(40)}")\n\`\`\`\n`,
  `| a | b | c | d |\n|---|---|---|---|\n| ${"one ".repeat(5)} | ${"two".repeat(20)} | ${"three ".repeat(6)} | 4 |\n`,
  "Averyveryverylongwordwithoutanyplacetobreak".repeat(6),
].join("\n");

/** A conversation with one of everything. */
async function fill(page, fake) {
  page.expectedStatuses = [429];
  fake.script = (reply) => {
    reply.chunk({ reasoning_content: `Thinking ${"about it ".repeat(30)}` });
    reply.content(RICH);
    reply.finish("stop", { cache: { common_tokens: 3, miss: "evicted" }, timings: { decode_tokens_per_second: 30 } });
  };
  await page.ask(`show all ${"x".repeat(200)}`);
  await page.click("Regenerate");
  await page.idle();
  await page.page.click(".message:last-child .measures summary");
  await page.page.click(".message:last-child .thinking summary");
  fake.script = (reply) => {
    reply.chunk({ tool_calls: [{ index: 0, id: "c1", type: "function", function: { name: "look", arguments: `{"path":"${"long/".repeat(30)}"}` } }] });
    reply.finish("tool_calls");
  };
  await page.ask("call");
  await page.type("result", ".card textarea");
  await page.page.keyboard.press("Enter");
  await page.idle();
  fake.script = (reply) => reply.error(429, { message: "Busy." }, { "retry-after": "9" });
  await page.ask("fail");
}

async function axeFindsNothing(browser, fake) {
  for (const scheme of ["light", "dark"]) {
    const page = await Driver.open(browser, fake.url, { scheme });
    const background = await page.page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const isDark = Number(/\d+/.exec(background)[0]) < 128;
    assert.equal(isDark, scheme === "dark", background);
    await page.assertAccessible(`${scheme}, empty`);
    await fill(page, fake);
    await page.assertAccessible(`${scheme}, conversation`);
    await page.page.click(".user:first-child .actions button:last-child");
    await page.assertAccessible(`${scheme}, editing`);
    await page.page.keyboard.press("Escape");
    await page.page.click("#status");
    await page.assertAccessible(`${scheme}, server`);
    await page.page.keyboard.press("Escape");
    await page.click("Settings");
    await page.type("[{}]", "#setting-tools");
    await page.type("9", "#setting-top_p");
    await page.assertAccessible(`${scheme}, settings`);
    await page.click("Close");
    fake.script = (reply) => reply.error(401, { message: "A key." });
    page.expectedStatuses.push(401);
    await page.ask("key");
    await page.page.waitForSelector("#key-dialog[open]");
    await page.assertAccessible(`${scheme}, key`);
    await page.close();
  }
}

async function keyboardAlone(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const { keyboard } = page.page;
  const press = async (...keys) => {
    for (const key of keys) await keyboard.press(key);
  };
  await press("Tab");
  assert.equal(await page.focused(), "a Skip to the message box");
  await press("Enter");
  await press("Tab");
  // From the skip link's target the next stop is in the message box or just after it.
  assert.match(await page.focused(), /^(?:textarea Message|button Thinking)$/);
  await page.page.focus("#message");
  await keyboard.type("line one");
  await keyboard.down("Shift");
  await press("Enter");
  await keyboard.up("Shift");
  await keyboard.type("line two");
  let next;
  fake.script = (reply) => {
    reply.content("Begun");
    next = reply;
  };
  await press("Enter");
  await page.shows(".assistant .markdown", "Begun");
  assert.equal(fake.requests[0].messages[0].content, "line one\nline two");
  assert.equal(await page.focused(), "textarea Message", "the focus stays");
  await press("Escape");
  await page.idle();
  await page.shows(".reply-foot", "Stopped.");
  next.response.destroy();

  // Every control can be reached, and shows that it has the focus.
  fake.script = (reply) => {
    reply.content("Done [link](https://e.org/)\n\n```\ncode\n```");
    reply.finish();
  };
  await keyboard.type("more");
  await press("Enter");
  await page.idle();
  const controls = await page.page.$$eval("a[href], button:enabled, textarea, summary, pre", (all) => all.filter((element) => element.checkVisibility()).length);
  await page.page.evaluate(() => document.activeElement.blur());
  const seen = new Set();
  for (let i = 0; i < controls + 3; i++) {
    await press("Tab");
    const [name, isVisible] = await page.page.evaluate(() => {
      const at = document.activeElement;
      at.dataset.seen ??= String(Math.random());
      const ring = at.id === "message" ? at.form : at;
      const { outlineStyle, outlineWidth } = getComputedStyle(ring);
      const box = at.getBoundingClientRect();
      const isOnScreen = box.bottom > 0 && box.top < innerHeight;
      return [at === document.body ? null : at.dataset.seen, at === document.body || (outlineStyle !== "none" && Number.parseFloat(outlineWidth) >= 1 && isOnScreen)];
    });
    assert.ok(isVisible, `the focus is not visible on ${await page.focused()}`);
    if (name !== null) seen.add(name);
  }
  assert.equal(seen.size, controls, "controls that the tab key reaches");

  // Edit, send as a branch and go back, without a mouse.
  await page.page.$eval(".user:first-child .actions button:last-child", (edit) => edit.focus());
  await press("Enter");
  assert.equal(await page.focused(), "textarea Edit your message");
  await press("Escape");
  assert.equal(await page.focused(), "button Edit");
  await press("Enter");
  await keyboard.type(" more");
  await press("Enter");
  await page.idle();
  assert.equal(fake.requests.at(-1).messages[0].content, "line one\nline two more");
  await page.page.$eval("button[data-step='-1']", (step) => step.focus());
  await press("Enter");
  assert.equal(await page.focused(), "button Next branch");
  await page.shows(".assistant .markdown", "Begun");

  // A dialog takes the focus and gives it back.
  await page.page.focus("#settings-open");
  await press("Enter");
  assert.ok(await page.page.evaluate(() => document.querySelector("#settings").contains(document.activeElement)));
  await press("Escape");
  assert.equal(await page.focused(), "button Settings");
  await page.close();
}

async function screenReader(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  fake.script = async (reply) => {
    reply.chunk({ reasoning_content: "Hm." });
    for (let i = 0; i < 40; i++) {
      reply.content(`word${i} `);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    reply.finish();
  };
  await page.ask("speak");
  const said = await page.announced();
  assert.deepEqual(said.slice(0, 3), ["Waiting for the reply", "Thinking", "Writing"]);
  assert.match(said[3], /^Reply finished\. word0 word1 .* word39$/);
  assert.equal(said.length, 4, "states and the finished reply, not each token");

  const tree = await page.page.accessibility.snapshot({ interestingOnly: false });
  const found = [];
  const walk = (node) => {
    found.push(`${node.role} ${node.name ?? ""}`.trim());
    for (const child of node.children ?? []) walk(child);
  };
  walk(tree);
  for (const wanted of [
    "RootWebArea calla",
    "banner",
    "main",
    "region Conversation",
    "form Message",
    "heading calla",
    "article You",
    "article calla",
    "heading You",
    "textbox Message",
    "button Send",
    "button Thinking",
    "button Settings",
    "button Edit",
    "button Regenerate",
    "status",
    "progressbar Context used",
  ]) {
    assert.ok(found.includes(wanted), `no "${wanted}" in ${[...new Set(found)].join(", ")}`);
  }
  const state = async (selector, name) => page.page.$eval(selector, (element, attribute) => element.getAttribute(attribute), name);
  assert.equal(await state("#think", "aria-pressed"), "true");
  assert.equal(await state("#announcer", "aria-live"), "polite");
  // Native disclosures say themselves whether they are open.
  const isExpanded = async () => {
    let found;
    const search = (node) => {
      if (/^Thought for/.test(node.name ?? "") && node.expanded !== undefined) found = node.expanded;
      for (const child of node.children ?? []) search(child);
    };
    search(await page.page.accessibility.snapshot({ interestingOnly: false }));
    return found;
  };
  assert.equal(await isExpanded(), false);
  await page.page.click(".thinking summary");
  assert.equal(await isExpanded(), true);
  await page.close();
}

async function narrow(browser, fake) {
  const page = await Driver.open(browser, fake.url, { width: 375, height: 700 });
  await page.assertNoOverflow("empty");
  await fill(page, fake);
  await page.assertNoOverflow("conversation");
  const small = async (where) => {
    const found = await page.page.evaluate(() =>
      [...document.querySelectorAll("button, summary, textarea, input:not([hidden], [type=checkbox]), .checks label")]
        .filter((element) => element.checkVisibility() && !element.closest(".visually-hidden"))
        .map((element) => [element.getBoundingClientRect(), element])
        .filter(([box]) => box.height < 43.9 || box.width < 43.9)
        .map(([box, element]) => `${element.tagName} ${element.innerText} ${box.width}x${box.height}`),
    );
    assert.deepEqual(found, [], `smaller than 44 px, ${where}`);
  };
  await small("conversation");
  await page.page.click(".user:first-child .actions button:last-child");
  await page.assertNoOverflow("editing");
  await small("editing");
  await page.page.keyboard.press("Escape");
  await page.click("Settings");
  await page.assertNoOverflow("settings");
  await small("settings");
  await page.click("Close");
  await page.page.click("#status");
  await page.assertNoOverflow("server");
  await page.page.keyboard.press("Escape");
  await page.page.setViewport({ width: 320, height: 600 });
  await page.assertNoOverflow("320 px");
  await page.close();
}

async function stillness(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  await page.page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "reduce" }]);
  let next;
  fake.script = (reply) => {
    reply.chunk({ reasoning_content: "Hm." });
    next = reply;
  };
  const moving = () => page.page.evaluate(() => document.getAnimations().length);
  await page.start("still");
  await page.shows(".thinking summary", "Thinking");
  assert.equal(await moving(), 0);
  await page.page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "no-preference" }]);
  assert.equal(await moving(), 1, "else it pulses");
  next.finish();
  await page.idle();
  await page.close();
}

async function following(browser, fake) {
  const page = await Driver.open(browser, fake.url, { height: 500 });
  let next;
  fake.script = (reply) => {
    reply.content("line\n\n".repeat(60));
    next = reply;
  };
  const distance = () => page.page.evaluate(() => Math.round(document.documentElement.scrollHeight - innerHeight - scrollY));
  await page.start("long");
  await page.page.waitForFunction(() => document.querySelectorAll(".assistant p").length > 50);
  await page.page.waitForFunction(() => document.documentElement.scrollHeight - innerHeight - scrollY < 3);
  // Who scrolls up is left in peace.
  await page.page.evaluate(() => scrollTo(0, 200));
  await page.page.waitForFunction(() => !document.getElementById("jump").hidden);
  next.content("more\n\n".repeat(20));
  await page.page.waitForFunction(() => document.querySelectorAll(".assistant p").length > 70);
  assert.ok((await distance()) > 500);
  await page.click("Jump to the latest");
  assert.ok((await distance()) < 3);
  next.content("last\n\n".repeat(20));
  next.finish();
  await page.idle();
  await page.page.waitForFunction(() => document.documentElement.scrollHeight - innerHeight - scrollY < 3);
  await page.close();
}

async function policy(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const text = page.response.headers()["content-security-policy"];
  assertPolicy(text);
  // It is in force: what a reply might smuggle in would not run.
  const ran = await page.page.evaluate(async () => {
    const script = document.createElement("script");
    script.textContent = "window.hit = 1";
    document.body.append(script);
    await new Promise((resolve) => setTimeout(resolve, 50));
    return window.hit === 1;
  });
  assert.equal(ran, false);
  assert.match((await page.page.evaluate(() => window.observed.violations.splice(0))).join(), /script-src/);
  assert.match(page.problems.splice(0).join(), /Content Security Policy/i);
  await page.close();
}

/** Asserts the policy that the page is written for. */
export function assertPolicy(text) {
  assert.equal(
    text,
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  );
}

export const cases = [
  ["access: the security policy is sent and in force", policy],
  ["access: axe finds nothing, in both colour schemes", axeFindsNothing],
  ["access: the keyboard is enough", keyboardAlone],
  ["access: roles, names and announcements", screenReader],
  ["access: 375 and 320 pixels are enough", narrow],
  ["access: reduced motion is respected", stillness],
  ["access: the view follows the reply unless scrolled away", following],
];
