// Cases against the real server and the demo checkpoint: that page and server mean the same by everything.

import assert from "node:assert/strict";
import { assertPolicy } from "./cases-access.mjs";
import { HOSTILE } from "./cases-markdown.mjs";
import { Driver, until } from "./driver.mjs";
import { startServer } from "./real-server.mjs";

/**
 * Opens the page with greedy sampling, so that the demo answers what it has learnt, and a bound on the reply, as it
 * may never end when asked for something else.
 */
async function open(browser, url, options = {}) {
  const page = await Driver.open(browser, url, options);
  await page.page.evaluate(() => localStorage.setItem("calla.settings", '{"temperature":0,"thinking":false,"max_tokens":300}'));
  await page.page.reload();
  await page.shows("#status-text", "Ready");
  return page;
}

/** How much of the last reply's prompt was reused: [reused, all]. */
async function reuse(page) {
  const text = await page.text(".message:last-child .measures summary");
  const [, reused, all] = /([\d,]+) of ([\d,]+) prompt tokens reused/.exec(text);
  return [reused, all].map((figure) => Number(figure.replaceAll(",", "")));
}

async function answers(browser, server) {
  const page = await open(browser, server.url);
  assertPolicy(page.response.headers()["content-security-policy"]);
  assert.match(page.response.headers()["content-type"], /^text\/html/);
  await page.ask("12 + 30 = ?");
  assert.match(await page.text(".assistant .markdown"), /42/);
  await page.shows(".measures summary", "tokens/s · first token");
  const { context, model } = await server.health();
  await page.shows("#context-text", `of ${context.toLocaleString("en")}`);
  await page.shows("#status", model);
  const rows = await page.page.$eval(".measures dl", (list) => list.textContent);
  for (const term of ["Prompt", "Reply", "First token", "Waited", "Reading", "Writing"]) assert.ok(rows.includes(term), `${term}: ${rows}`);
  // The draft's tokens are counted before it is sent.
  const before = await page.text("#context-text");
  await page.type("and what is 20 + 22, added to all of that, please?");
  await page.page.waitForFunction((text) => document.getElementById("context-text").innerText !== text, {}, before);
  await page.close();
}

async function thinks(browser, server) {
  const page = await open(browser, server.url);
  await page.click("Thinking");
  await page.ask("47 + 38 = ?");
  await page.shows(".thinking summary", "Thought for");
  assert.equal(await page.page.$eval(".thinking", (details) => details.open), false);
  assert.ok((await page.page.$eval(".thinking-text", (text) => text.textContent)).length > 0);
  assert.match(await page.text(".assistant .markdown"), /85/);
  assert.match(await page.page.$eval(".measures dl", (list) => list.textContent), /of them thinking/);
  await page.close();
}

async function stops(browser, server) {
  const page = await open(browser, server.url);
  // Long enough to be read for seconds.
  await page.start(`Copy this list: ${"owl, trumpet, cupboard, cook, ".repeat(3000)}`);
  await until("the server to run it", async () => (await server.health()).running === 1);
  await page.shows(".progress", "Reading the prompt:");
  await page.page.keyboard.press("Escape");
  await page.idle();
  await page.shows(".reply-foot", "Stopped.");
  await until("running to be 0", async () => (await server.health()).running === 0);
  await page.click("Clear");
  await page.ask("12 + 30 = ?");
  assert.match(await page.text(".assistant .markdown"), /42/, "the server goes on");
  await page.close();
}

async function branches(browser, server) {
  const page = await open(browser, server.url);
  await page.ask("12 + 30 = ?");
  await page.ask("What is the capital of France?");
  const first = await page.texts(".assistant .markdown");
  await page.click("Regenerate");
  await page.idle();
  assert.deepEqual(await page.texts(".assistant .markdown"), first, "greedy sampling repeats itself");
  const [again, whole] = await reuse(page);
  assert.ok(again > 0 && again < whole, `regenerated: ${again} of ${whole}`);
  await page.page.click(".user:nth-of-type(3) .actions button:last-child");
  await page.page.waitForSelector(".editor textarea");
  await page.page.$eval(".editor textarea", (area) => area.select());
  await page.page.keyboard.sendCharacter("What is the capital of Italy?");
  await page.page.keyboard.press("Enter");
  await page.page.waitForFunction(() => document.querySelectorAll(".branches").length === 1);
  await page.idle();
  const [reused, prompt] = await reuse(page);
  assert.ok(reused > 0 && reused < prompt, `edited: ${reused} of ${prompt}`);
  console.log(`      edit of the second message: ${reused} of ${prompt} prompt tokens reused`);
  const second = await page.texts(".assistant .markdown");
  assert.notEqual(second[1], first[1]);
  await page.click("Previous branch");
  assert.deepEqual(await page.texts(".assistant .markdown"), first);
  await page.page.reload();
  assert.deepEqual(await page.texts(".assistant .markdown"), first, "a reload keeps the conversation");
  await page.close();
}

async function tools(browser, server) {
  const page = await open(browser, server.url);
  await page.click("Settings");
  const tool = {
    name: "get_weather",
    description: "Get the current weather for a city.",
    parameters: { type: "object", properties: { city: { type: "string", description: "Name of the city" } }, required: ["city"] },
  };
  await page.type(JSON.stringify([tool]), "#setting-tools");
  await page.shows("#tools-count", "get_weather");
  await page.click("Close");
  await page.ask("What is the weather in Rome?");
  await page.shows(".card-head", "Tool call get_weather");
  assert.deepEqual(JSON.parse(await page.page.$eval(".card pre", (pre) => pre.textContent)), { city: "Rome" });
  await page.type('{"result": 391}', ".card textarea");
  await page.page.keyboard.press("Enter");
  await page.page.waitForSelector(".tool");
  await page.idle();
  assert.match(await page.text(".message:last-child .markdown"), /391/);
  const [reused] = await reuse(page);
  assert.ok(reused > 0, "the call's prompt is reused");
  await page.close();
}

async function hostile(browser, server) {
  const page = await open(browser, server.url);
  // As the user's text, and as a reply that the server is given back in the history.
  await page.page.evaluate((text) => {
    const nodes = [
      { id: "a", parent: "root", role: "user", content: text },
      { id: "b", parent: "a", role: "assistant", state: "done", content: text, reasoning: text, toolCalls: [] },
    ];
    localStorage.setItem("calla.conversation", JSON.stringify({ format: "calla.conversation", version: 1, nodes, active: ["a", "b"] }));
  }, HOSTILE);
  await page.page.reload();
  await page.ask(`<img src=x onerror="window.hit=1"> 12 + 30 = ?`);
  assert.equal(await page.count(".error"), 0, "the server takes such a history");
  assert.equal(await page.page.evaluate(() => window.hit), undefined);
  assert.equal(await page.page.evaluate(() => document.querySelectorAll("main :is(script, img, iframe, svg, style, base, form:not([aria-label]))").length), 0);
  await page.close();
}

async function narrowAndAccessible(browser, server) {
  for (const scheme of ["light", "dark"]) {
    const page = await open(browser, server.url, { width: 375, height: 700, scheme });
    await page.ask("12 + 30 = ?");
    await page.page.click(".measures summary");
    await page.assertNoOverflow(scheme);
    await page.assertAccessible(scheme);
    await page.close();
  }
}

async function keyboard(browser, server) {
  const page = await open(browser, server.url);
  const { keyboard: keys } = page.page;
  await keys.press("Tab");
  assert.equal(await page.focused(), "a Skip to the message box");
  await keys.press("Enter");
  await page.page.focus("#message");
  await keys.type("12 + 30 = ?");
  await keys.press("Enter");
  await page.idle();
  assert.match(await page.text(".assistant .markdown"), /42/);
  assert.equal(await page.focused(), "textarea Message");
  assert.match((await page.announced()).at(-1), /^Reply finished\. .*42/);
  await page.close();
}

async function files(browser, server) {
  for (const path of ["/", "/favicon.svg", "/page/app.js", "/page/style.css"]) {
    const first = await fetch(server.url + path);
    assert.equal(first.status, 200, path);
    assertPolicy(first.headers.get("content-security-policy"));
    assert.equal(first.headers.get("x-content-type-options"), "nosniff");
    const again = await fetch(server.url + path, { headers: { "if-none-match": first.headers.get("etag") } });
    assert.equal(again.status, 304, path);
    assert.equal(await again.text(), "");
  }
  assert.equal((await fetch(`${server.url}/page/none.js`)).status, 404);
}

async function key(browser, server) {
  const page = await Driver.open(browser, server.url);
  page.expectedStatuses = [401];
  await page.ask("12 + 30 = ?");
  await page.page.waitForSelector("#key-dialog[open]");
  await page.type("open-sesame", "#key-input");
  await page.page.keyboard.press("Enter");
  await page.page.waitForFunction(() => document.querySelector(".assistant .markdown")?.textContent.includes("42"));
  await page.idle();
  assert.ok(!(await page.page.evaluate(() => JSON.stringify(localStorage))).includes("sesame"));
  await page.close();
}

/** One server for all cases that need no flags of their own, as loading takes a while. */
let shared = null;

const withShared = (run) => async (browser, binary) => {
  shared ??= startServer(binary);
  await run(browser, await shared);
};

const withFlags = (run, ...flags) => async (browser, binary) => {
  const server = await startServer(binary, ...flags);
  try {
    await run(browser, server);
  } finally {
    await server.stop();
  }
};

/** Stops the shared server. */
export async function stopShared() {
  await (await shared?.catch(() => null))?.stop();
}

export const cases = [
  ["real: the page's files", withShared(files)],
  ["real: an answer with its figures", withShared(answers)],
  ["real: thinking is folded", withShared(thinks)],
  ["real: stop ends the run on the server", withShared(stops)],
  ["real: regenerate and edit reuse the prefix", withShared(branches)],
  ["real: a tool call is shown and answered", withShared(tools)],
  ["real: hostile text is inert", withShared(hostile)],
  ["real: narrow, axe in both schemes", withShared(narrowAndAccessible)],
  ["real: the keyboard is enough", withShared(keyboard)],
  ["real: a key is asked for", withFlags(key, "--api-key", "open-sesame")],
];
