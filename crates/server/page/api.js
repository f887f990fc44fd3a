// What the page asks the server: a reply as a stream of events, the count of a prompt's tokens, its health.

import { serverSentEvents } from "./sse.js";

/** A request that failed, with what the server said about it. */
export class RequestError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    /** Seconds after which the server wants to be asked again, or null. */
    this.retryAfter = retryAfter;
  }
}

function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function post(path, body, { key, signal }) {
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: headers(key), body: JSON.stringify(body), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError("The server cannot be reached. Is it running?", { code: "unreachable" });
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy's page, perhaps. The status says enough.
  }
  const seconds = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  const message = typeof error.message === "string" ? error.message : `The server answered with status ${status}.`;
  return new RequestError(message, {
    status,
    code: typeof error.code === "string" ? error.code : null,
    retryAfter: Number.isFinite(seconds) ? Math.min(Math.max(seconds, 0), 3600) : null,
  });
}

/**
 * Streams a reply. Yields {type: "prefill", done, total}, {type: "reasoning" | "content", text},
 * {type: "tool", index, id, name, arguments} (pieces), {type: "finish", reason} and {type: "usage", usage, timings,
 * cache}. Throws a `RequestError`, or whatever `fetch` throws when `signal` stops it.
 */
export async function* streamReply(body, options) {
  const response = await post("/v1/chat/completions", body, options);
  let isFinished = false;
  try {
    for await (const { comment, data } of serverSentEvents(response.body)) {
      if (comment !== undefined) {
        const progress = /^prefill (\d+)\/(\d+)$/.exec(comment);
        if (progress) yield { type: "prefill", done: Number(progress[1]), total: Number(progress[2]) };
        continue;
      }
      if (data === "[DONE]") break;
      const chunk = parseChunk(data);
      for (const event of chunkEvents(chunk)) {
        isFinished ||= event.type === "finish";
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof RequestError || options.signal?.aborted) throw error;
    throw new RequestError("The connection to the server broke off.", { code: "interrupted" });
  }
  if (!isFinished) throw new RequestError("The server ended the reply early.", { code: "interrupted" });
}

function parseChunk(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new RequestError("The server sent something that is not JSON.", { code: "bad_chunk" });
  }
  if (chunk?.error) {
    const { message, code } = chunk.error;
    throw new RequestError(String(message ?? "The server failed."), { code: code ?? null });
  }
  return chunk;
}

function* chunkEvents(chunk) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) yield { type: "reasoning", text: delta.reasoning_content };
  if (delta.content) yield { type: "content", text: delta.content };
  for (const call of delta.tool_calls ?? []) {
    const { index = 0, id = "", function: { name = "", arguments: text = "" } = {} } = call;
    yield { type: "tool", index, id: id ?? "", name: name ?? "", arguments: text ?? "" };
  }
  if (choice?.finish_reason) yield { type: "finish", reason: choice.finish_reason };
  if (chunk.usage) {
    yield { type: "usage", usage: chunk.usage, timings: chunk.timings ?? null, cache: chunk.cache ?? null };
  }
}

/** Tokens of the prompt that `body` would become, or null if the server does not say. */
export async function countTokens(body, options) {
  try {
    const response = await post("/tokenize", body, options);
    const { count } = await response.json();
    return Number.isFinite(count) ? count : null;
  } catch {
    // A courtesy: without it the page shows the last reply's figures.
    return null;
  }
}

/** The server's health, or null if it cannot be reached. */
export async function fetchHealth(key) {
  try {
    const response = await fetch("/health", { headers: headers(key), signal: AbortSignal.timeout(5000) });
    // Not ready is 503 with the same body.
    const health = await response.json();
    return typeof health?.status === "string" ? health : null;
  } catch {
    return null;
  }
}
