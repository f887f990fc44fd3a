// Cases of what goes wrong: refusals, broken streams, keys, a server that is away.

import assert from "node:assert/strict";
import { Driver, until } from "./driver.mjs";

async function busy(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  page.expectedStatuses = [429, 503];
  fake.script = (reply) => reply.error(429, { message: "The queue is full.", type: "rate_limit_error" }, { "retry-after": "7" });
  await page.ask("hello");
  await page.shows(".error", "The queue is full.");
  await page.shows(".error", "The server asks to wait");
  fake.script = (reply) => reply.error(503, { message: "Shutting down." });
  await page.click("Try again");
  await page.shows(".error", "Shutting down.");
  await page.idle();
  fake.script = (reply) => {
    reply.content("Here.");
    reply.finish();
  };
  await page.click("Try again");
  await page.shows(".assistant .markdown", "Here.");
  await page.idle();
  // A reply that never began leaves no branch.
  assert.equal(await page.count(".branches"), 0);
  assert.ok((await page.announced()).some((text) => text === "The reply failed. The queue is full."));
  await page.close();
}

async function brokenStreams(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  page.expectedStatuses = ["network", 500, 400];
  const breaks = [
    [(reply) => reply.raw('data: {"error":{"message":"The device was lost.","code":"device"}}\n\n'), "The device was lost."],
    [(reply) => reply.response.destroy(), "The connection to the server broke off."],
    [(reply) => reply.response.end(), "The server ended the reply early."],
    [(reply) => reply.raw("data: {oops\n\n"), "not JSON"],
  ];
  for (const [breakOff, message] of breaks) {
    fake.script = async (reply) => {
      reply.content("Up to here");
      // An error overtakes what the page has not read yet.
      await page.shows(".message:last-child .markdown", "Up to here");
      breakOff(reply);
    };
    await page.ask("go");
    await page.shows(".message:last-child .error", message);
    assert.equal(await page.text(".message:last-child .markdown"), "Up to here", "what came stays");
    await until("the request to end", () => fake.running === 0);
  }
  fake.script = (reply) => reply.response.writeHead(500, { "content-type": "text/html" }).end("<h1>Oops</h1>");
  await page.ask("go");
  await page.shows(".message:last-child .error", "The server answered with status 500.");
  fake.script = (reply) => reply.error(400, { message: "<img src=x onerror=alert(1)> messages[0] is bad", code: "context_length_exceeded" });
  await page.ask("go");
  await page.shows(".message:last-child .error", "<img src=x onerror=alert(1)> messages[0] is bad");
  await page.close();
}

async function key(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  page.expectedStatuses = [401];
  fake.script = (reply) => {
    if (reply.request.headers.authorization !== "Bearer open sesame") {
      reply.error(401, { message: "This server wants an API key.", type: "authentication_error" });
      return;
    }
    reply.content("Come in.");
    reply.finish();
  };
  await page.ask("hello");
  await page.page.waitForSelector("#key-dialog[open]");
  await page.shows("#key-reason", "The server asks for a key.");
  assert.equal(await page.page.evaluate(() => document.activeElement.id), "key-input");
  await page.type("wrong", "#key-input");
  await page.page.keyboard.press("Enter");
  await page.shows("#key-reason", "The server refused this key.");
  await page.type("open sesame", "#key-input");
  await page.page.keyboard.press("Enter");
  await page.shows(".assistant .markdown", "Come in.");
  await page.idle();
  const [local, session] = await page.page.evaluate(() => [JSON.stringify(localStorage), JSON.stringify(sessionStorage)]);
  assert.ok(!local.includes("sesame") && session.includes("sesame"), "the key is kept in the session alone");
  await page.page.reload();
  await page.ask("again");
  assert.equal((await page.texts(".assistant .markdown")).at(-1), "Come in.");
  await page.close();
}

async function away(browser, fake) {
  fake.health = { status: "loading", model: null, context: null, reason: "reading weights" };
  const page = await Driver.open(browser, fake.url);
  page.expectedStatuses = ["network"];
  await page.shows("#status-text", "Loading");
  await page.page.click("#status");
  await page.shows("#server", "reading weights");
  fake.health = { waiting: 2 };
  await page.shows("#status-text", "Ready, 2 waiting");
  await page.shows("#server", "3 of 16");
  await page.page.keyboard.press("Escape");
  await fake.close();
  await page.shows("#status-text", "Offline");
  assert.ok((await page.announced()).includes("Server: Offline"));
  await page.ask("anyone?");
  await page.shows(".error", "The server cannot be reached.");
  await page.close();
}

async function brokenStore(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  await page.page.evaluate(() => {
    localStorage.setItem("calla.conversation", '{"format":"calla.conversation","version":1,"nodes":[{"id":"__proto__"}]}');
    localStorage.setItem("calla.settings", '{"system":7,"temperature":"hot","top_p":9,"tools":{}}');
  });
  await page.page.reload();
  await page.shows("#status-text", "Ready");
  fake.script = (reply) => {
    reply.content("Fine.");
    reply.finish();
  };
  await page.ask("works?");
  await page.shows(".assistant .markdown", "Fine.");
  assert.deepEqual(fake.requests[0].messages, [{ role: "user", content: "works?" }]);
  assert.equal(fake.requests[0].top_p, undefined);
  assert.match(page.problems.splice(0).join(), /the kept conversation cannot be read/);
  await page.close();
}

export const cases = [
  ["a busy server is asked again", busy],
  ["a stream that breaks says so and keeps the text", brokenStreams],
  ["a key is asked for on 401", key],
  ["a server that loads or is away is shown as such", away],
  ["a broken store does no harm", brokenStore],
];
