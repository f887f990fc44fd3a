// Cases of the chat itself: streaming, thinking, stopping, branches, tools, settings, what is kept.

import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Driver, until } from "./driver.mjs";

/** Answers "reply N" with N counting up. */
function counting(fake) {
  let n = 0;
  fake.script = (reply) => {
    n += 1;
    reply.content(`reply ${n}`);
    reply.finish("stop", { prompt: 100, completion: 5, cached: 60 });
  };
}

async function streams(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  let next;
  fake.script = (reply) => {
    reply.chunk({ role: "assistant", content: "" });
    reply.content("One");
    next = reply;
  };
  await page.start("count");
  await page.shows(".assistant .markdown", "One");
  assert.equal(await page.page.$eval("#stop", (stop) => stop.hidden), false);
  next.content(" two.");
  await page.shows(".assistant .markdown", "One two.");
  next.finish("stop", { prompt: 40, completion: 4, cached: 30, timings: { decode_tokens_per_second: 51.26 } });
  await page.idle();
  await page.shows(".measures summary", "30 of 40 prompt tokens reused · 51.3 tokens/s · first token");
  await page.shows("#context-text", "44 of 4,096");
  assert.equal(await page.page.$eval("#send", (send) => send.hidden), false);
  await page.close();
}

async function oddPieces(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  fake.script = async (reply) => {
    const chunk = (text) => `data: ${JSON.stringify({ choices: [{ delta: { content: text }, finish_reason: null }] })}\r\n\r\n`;
    const bytes = Buffer.from(`: a comment\r\n${chunk("Grüße ")}event: x\nid: 7\n${chunk("👩‍🚀 ")}${chunk("一二三")}`);
    // One byte at a time cuts scalars, line ends and events everywhere.
    for (const byte of bytes) {
      reply.raw(Buffer.of(byte));
      await new Promise((resolve) => setImmediate(resolve));
    }
    reply.raw('data: {"choices":[{"delta":\ndata: {"content":"!"},"finish_reason":null}]}\n\n');
    reply.finish();
  };
  await page.ask("odd");
  assert.equal(await page.text(".assistant .markdown"), "Grüße 👩‍🚀 一二三!");
  await page.close();
}

async function thinkingIsFolded(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  let next;
  fake.script = (reply) => {
    reply.chunk({ reasoning_content: "Let me see. " });
    next = reply;
  };
  await page.start("think");
  await page.shows(".thinking summary", "Thinking");
  assert.equal(await page.page.$eval(".thinking", (details) => details.open), false);
  next.chunk({ reasoning_content: "<b>Yes</b>." });
  next.content("Yes.");
  next.finish();
  await page.idle();
  await page.shows(".thinking summary", "Thought for");
  assert.equal(await page.page.$eval(".thinking", (details) => details.open), false);
  await page.page.click(".thinking summary");
  assert.equal(await page.text(".thinking-text"), "Let me see. <b>Yes</b>.");
  await page.close();
}

async function prefillProgress(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  let next;
  fake.script = (reply) => {
    reply.raw(": prefill 1234/5678\n\n");
    next = reply;
  };
  await page.start("long");
  await page.shows(".progress", "Reading the prompt: 1,234 of 5,678 tokens");
  assert.equal(await page.page.$eval(".progress progress", (bar) => bar.value / bar.max), 1234 / 5678);
  next.content("x");
  await page.page.waitForFunction(() => document.querySelector(".progress").hidden);
  next.finish();
  await page.idle();
  await page.close();
}

async function stops(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  fake.script = (reply) => reply.content("Half a");
  await page.start("stop");
  await page.shows(".assistant .markdown", "Half a");
  assert.equal(fake.running, 1);
  await page.click("Stop");
  await page.idle();
  await until("the request to end", () => fake.running === 0);
  await page.shows(".reply-foot", "Stopped.");
  assert.equal(await page.text(".assistant .markdown"), "Half a");
  // What was said so far goes into the next prompt.
  counting(fake);
  await page.ask("go on");
  assert.deepEqual(fake.requests[1].messages.map((m) => m.content), ["stop", "Half a", "go on"]);
  await page.close();
}

async function branches(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  counting(fake);
  await page.ask("first");
  await page.ask("second");
  await page.click("Regenerate");
  await page.shows(".assistant .markdown", "reply 3");
  await page.idle();
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1", "reply 3"]);
  assert.equal((await page.text(".message:last-child .branch-place")).replace(/\s+/g, " "), "Branch 2 / 2");
  await page.click("Previous branch");
  await page.shows(".message:last-child .markdown", "reply 2");
  assert.equal(await page.focused(), "button Next branch");

  // An edit of the first message keeps the old branch whole.
  await page.page.click(".user:first-child .actions button:last-child");
  await page.page.waitForSelector(".editor textarea");
  await page.page.keyboard.down("Control");
  await page.page.keyboard.press("a");
  await page.page.keyboard.up("Control");
  await page.page.keyboard.sendCharacter("first, edited");
  await page.click("Send as new branch");
  await page.shows(".assistant .markdown", "reply 4");
  await page.idle();
  assert.deepEqual(fake.requests.at(-1).messages.map((m) => m.content), ["first, edited"]);
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 4"]);
  await page.shows(".measures summary", "60 of 100 prompt tokens reused");
  await page.click("Previous branch");
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1", "reply 2"]);

  // All of it outlives a reload.
  await page.page.reload();
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1", "reply 2"]);
  await page.page.click(".user:first-child button[data-step='1']");
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 4"]);
  await page.close();
}

async function cacheMiss(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  fake.script = (reply) => {
    reply.content("x");
    const cache = { cached_tokens: 0, common_tokens: 812, miss: "no_snapshot", diverges_at: { token: 812, message: 2 }, from_disk: false };
    reply.finish("length", { prompt: 900, cached: 0, cache, timings: { queue_seconds: 0.25, prefill_seconds: 3, prefill_tokens_per_second: 300 } });
  };
  await page.ask("miss");
  await page.shows(".reply-foot .note", "Cut at the longest reply");
  await page.page.click(".measures summary");
  const rows = (await page.texts(".measures dl > div")).map((row) => row.replace(/\s+/g, " "));
  assert.ok(rows.includes("Prompt 900 tokens, 0 reused (0 %)"), rows.join("; "));
  assert.ok(rows.includes("Not reused no state had been saved closer to the point where the prompt is new"), rows.join("; "));
  assert.ok(rows.includes("Differs from turn 3 on (token 812)"), rows.join("; "));
  assert.ok(rows.includes("Waited 250 ms"), rows.join("; "));
  assert.ok(rows.includes("Reading 3.0 s, 300 tokens/s"), rows.join("; "));
  await page.close();
}

async function tools(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  await page.click("Settings");
  await page.type("{", "#setting-tools");
  await page.shows("#tools-problem", "This is not JSON");
  await page.page.$eval("#setting-tools", (area) => (area.value = ""));
  await page.click("Insert an example");
  await page.shows("#tools-count", "get_weather");
  await page.click("Close");
  let isAnswered = false;
  fake.script = (reply) => {
    if (isAnswered) {
      reply.content("Rain in Rome, sun in Oslo.");
      reply.finish();
      return;
    }
    isAnswered = true;
    const call = (index, id, name, text) => reply.chunk({ tool_calls: [{ index, ...(id && { id, type: "function" }), function: { ...(name && { name }), arguments: text } }] });
    call(0, "call_a", "get_weather", "");
    call(0, null, null, '{"city":');
    call(0, null, null, '"Rome","days":[1,2]}');
    call(1, "call_b", "get_weather", '{"city":"Oslo"}');
    reply.finish("tool_calls");
  };
  await page.ask("weather?");
  assert.equal(fake.requests[0].tools[0].function.name, "get_weather");
  assert.deepEqual(await page.texts(".card-head"), ["Tool call get_weather", "Tool call get_weather"]);
  assert.equal(await page.page.$eval(".card pre", (pre) => pre.textContent), '{\n  "city": "Rome",\n  "days": [\n    1,\n    2\n  ]\n}');
  await page.type("rain", ".card textarea");
  await page.type("sun", ".card:nth-child(2) textarea");
  await page.click("Send results");
  await page.shows(".message:last-child .markdown", "Rain in Rome, sun in Oslo.");
  await page.idle();
  const sent = fake.requests[1].messages;
  assert.deepEqual(sent[1].tool_calls[0], { id: "call_a", type: "function", function: { name: "get_weather", arguments: '{"city":"Rome","days":[1,2]}' } });
  assert.deepEqual(sent.slice(2), [
    { role: "tool", tool_call_id: "call_a", content: "rain" },
    { role: "tool", tool_call_id: "call_b", content: "sun" },
  ]);
  // The results may be given otherwise, as a branch.
  await page.click("Answer otherwise");
  await page.type("snow", ".card textarea");
  await page.page.keyboard.press("Enter");
  await page.idle();
  assert.equal(fake.requests[2].messages[2].content, "snow");
  await page.click("Previous branch");
  await page.shows(".tool pre", "rain");
  await page.close();
}

async function settings(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  counting(fake);
  await page.ask("plain");
  const { model, messages, stream, stream_options, chat_template_kwargs, ...others } = fake.requests[0];
  assert.deepEqual({ model, messages, stream }, { model: "fake", messages: [{ role: "user", content: "plain" }], stream: true });
  assert.deepEqual(stream_options, { include_usage: true });
  assert.deepEqual(chat_template_kwargs, { enable_thinking: true, preserve_thinking: false });
  assert.deepEqual(others, {}, "what is not set is the server's to choose");
  await page.click("Settings");
  await page.type("Be brief.", "#setting-system");
  await page.type("0.6", "#setting-temperature");
  await page.type("64", "#setting-thinking_budget");
  await page.type("3", "#setting-top_p");
  await page.shows("#setting-top_p-problem", "A number from 0 to 1");
  await page.type("200", "#setting-max_tokens");
  await page.page.click("#setting-preserve");
  await page.page.keyboard.press("Escape");
  await page.ask("set");
  const second = fake.requests[1];
  assert.deepEqual(second.messages[0], { role: "system", content: "Be brief." });
  assert.equal(second.temperature, 0.6);
  assert.equal(second.thinking_budget, 64);
  assert.equal(second.max_tokens, 200);
  assert.equal(second.top_p, undefined);
  assert.equal(second.chat_template_kwargs.preserve_thinking, true);
  await page.page.reload();
  await page.page.waitForFunction(() => document.getElementById("status-text").textContent === "Ready");
  await page.click("Thinking");
  await page.ask("again");
  const third = fake.requests[2];
  assert.equal(third.chat_template_kwargs.enable_thinking, false);
  assert.equal(third.thinking_budget, undefined);
  assert.equal(third.temperature, 0.6);
  await page.close();
}

async function reloadMidway(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  fake.script = (reply) => reply.content("So far");
  await page.start("long one");
  await page.shows(".assistant .markdown", "So far");
  await page.type("a draft");
  await page.page.reload();
  await page.shows(".assistant .markdown", "So far");
  await page.shows(".reply-foot", "Stopped.");
  assert.equal(await page.page.$eval("#message", (area) => area.value), "a draft");
  await until("the request to end", () => fake.running === 0);
  await page.close();
}

async function clearAndUndo(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  counting(fake);
  await page.ask("keep me");
  await page.click("Clear");
  assert.equal(await page.count(".message"), 0);
  assert.equal(await page.page.evaluate(() => localStorage.getItem("calla.conversation")), null);
  await page.click("Undo");
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1"]);
  await page.page.reload();
  assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1"]);
  await page.close();
}

async function exportAndImport(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const folder = await mkdtemp(join(tmpdir(), "calla-export-"));
  try {
    const client = await page.page.createCDPSession();
    await client.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: folder, browserContextId: page.context.id });
    counting(fake);
    await page.ask("export me");
    await page.click("Regenerate");
    await page.idle();
    await page.click("Settings");
    await page.click("Export");
    const done = async () => (await readdir(folder)).find((name) => /^calla-.*\.json$/.test(name));
    await until("the download", done);
    const path = join(folder, await done());
    assert.equal(JSON.parse(await readFile(path, "utf8")).nodes.length, 3);
    await page.click("Close");
    await page.click("Clear");
    const file = await page.page.$("#import-file");
    await file.uploadFile(path);
    await page.shows("#notice-text", "imported");
    assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 2"]);
    await page.click("Previous branch");
    assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1"]);
    for (const [text, reason] of [
      ["{", "JSON"],
      ["{}", "not a conversation"],
      [JSON.stringify({ format: "calla.conversation", version: 1, nodes: [{ id: "a", parent: "b", role: "user", content: "x" }] }), "nodes[0].parent"],
      [JSON.stringify({ format: "calla.conversation", version: 1, nodes: [{ id: "a", parent: "root", role: "user", content: 1 }] }), "nodes[0].content"],
    ]) {
      await writeFile(join(folder, "bad.json"), text);
      await file.uploadFile(join(folder, "bad.json"));
      await page.shows("#notice-text", reason);
      assert.deepEqual(await page.texts(".assistant .markdown"), ["reply 1"], "a bad file changes nothing");
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  await page.close();
}

async function boundedStore(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const [length, left, tooLong] = await page.page.evaluate(async () => {
    const { Conversation } = await import("/page/conversation.js");
    const conversation = new Conversation();
    for (let i = 0; i < 50; i++) conversation.add("root", { role: "user", content: `${i} ${"x".repeat(1000)}` });
    const text = conversation.fit(20_000);
    return [text.length, conversation.path()[0].content.slice(0, 2), conversation.fit(500)];
  });
  assert.ok(length <= 20_000 && length > 15_000, `${length}`);
  assert.equal(left, "49", "the shown branch stays");
  assert.equal(tooLong, null);
  await page.close();
}

async function secondTab(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const other = await page.context.newPage();
  await other.goto(fake.url);
  counting(fake);
  await page.page.bringToFront();
  await page.ask("seen in both");
  await other.waitForFunction(() => document.querySelector(".assistant .markdown")?.textContent === "reply 1", { polling: 50 });
  await page.close();
}

export const cases = [
  ["a reply streams in, with its figures", streams],
  ["bytes cut anywhere make the same text", oddPieces],
  ["thinking is folded", thinkingIsFolded],
  ["reading of a long prompt shows its progress", prefillProgress],
  ["stop ends the request and keeps the text", stops],
  ["regenerate and edit make branches that survive a reload", branches],
  ["a cache miss says why", cacheMiss],
  ["tool calls are shown and answered", tools],
  ["settings go into the request", settings],
  ["a reload in the middle keeps what has come", reloadMidway],
  ["clear can be undone", clearAndUndo],
  ["export and import, bad files refused", exportAndImport],
  ["what is kept is bounded", boundedStore],
  ["a second tab follows", secondTab],
];
