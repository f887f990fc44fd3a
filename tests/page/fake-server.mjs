// A server that serves the page and answers exactly what a test says, cut where it says: errors, odd chunks, delays.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const PAGE = new URL("../../crates/server/page/", import.meta.url);
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8", svg: "image/svg+xml" };

/** The policy that the real server sends: read from its source, so that both stay one. */
async function contentSecurityPolicy() {
  const source = await readFile(new URL("../src/page.rs", PAGE), "utf8");
  const [, text] = /const POLICY: &str = "((?:[^"]|\\\n)*)"/.exec(source);
  return text.replace(/\\\n\s*/g, "");
}

/** What a script writes a reply with. */
export class Reply {
  constructor(response, request) {
    this.response = response;
    this.request = request;
  }

  /** Raw bytes. */
  raw(bytes) {
    if (!this.response.headersSent) this.response.writeHead(200, { "content-type": "text/event-stream" });
    this.response.write(bytes);
  }

  chunk(delta, finish = null) {
    const choice = { index: 0, delta, finish_reason: finish };
    this.raw(`data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", choices: [choice], usage: null })}\n\n`);
  }

  content(text) {
    this.chunk({ content: text });
  }

  /** The end of a reply; `more` goes into the chunk that has the usage. */
  finish(reason = "stop", { prompt = 10, completion = 5, cached = 0, ...more } = {}) {
    this.chunk({}, reason);
    const usage = {
      prompt_tokens: prompt,
      completion_tokens: completion,
      total_tokens: prompt + completion,
      prompt_tokens_details: { cached_tokens: cached },
      completion_tokens_details: { reasoning_tokens: 0 },
    };
    this.raw(`data: ${JSON.stringify({ choices: [], usage, ...more })}\n\ndata: [DONE]\n\n`);
    this.response.end();
  }

  error(status, error, headers = {}) {
    this.response.writeHead(status, { "content-type": "application/json", ...headers });
    this.response.end(JSON.stringify({ error: { param: null, code: null, type: "invalid_request_error", ...error } }));
  }
}

/** Starts it on a free port. `server.script` is called with a `Reply` for each chat request. */
export async function startFakeServer() {
  const policy = await contentSecurityPolicy();
  const state = { script: (reply) => reply.finish(), requests: [], running: 0, health: {} };
  const http = createServer((request, response) => {
    handle(state, policy, request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
  state.url = `http://127.0.0.1:${http.address().port}`;
  state.close = () => {
    http.closeAllConnections();
    return new Promise((resolve) => http.close(resolve));
  };
  return state;
}

async function handle(state, policy, request, response) {
  const path = new URL(request.url, "http://x").pathname;
  if (request.method === "GET" && path === "/health") {
    const cache = { snapshots: 3, pages_used: 7, pages: 512, slots_used: 3, slots: 16, files: 0 };
    json(response, { status: "ready", model: "fake", device: "none", context: 4096, running: state.running, waiting: 0, cache, ...state.health });
  } else if (request.method === "POST" && path === "/tokenize") {
    json(response, { count: (await body(request)).messages.length * 10 });
  } else if (request.method === "POST" && path === "/v1/chat/completions") {
    const asked = await body(request);
    state.requests.push(asked);
    state.running += 1;
    response.on("close", () => (state.running -= 1));
    await state.script(new Reply(response, { ...asked, headers: request.headers }));
  } else await file(path, policy, response);
}

async function file(path, policy, response) {
  const name = path === "/" ? "index.html" : path.replace(/^\/(?:page\/)?/, "");
  const type = TYPES[name.split(".").pop()];
  if (!/^[a-z-]+\.[a-z]+$/.test(name) || type === undefined) {
    response.writeHead(404).end();
    return;
  }
  const bytes = await readFile(new URL(name, PAGE));
  response.writeHead(200, { "content-type": type, "content-security-policy": policy }).end(bytes);
}

async function body(request) {
  let text = "";
  for await (const piece of request.setEncoding("utf8")) text += piece;
  return JSON.parse(text);
}

function json(response, value) {
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(value));
}
