// What was measured of a reply: reuse of the prompt, speeds, times; its checks and its words.

import { count, duration, el, plural, rate } from "./dom.js";

const NUMBERS = {
  usage: ["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"],
  timings: [
    "queue_seconds",
    "prefill_seconds",
    "decode_seconds",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "drafted_tokens",
    "accepted_tokens",
  ],
  cache: ["common_tokens"],
};

/** Why less of the prompt was reused than might have been. */
const MISSES = {
  cold: "nothing like this prompt had been seen before",
  other_key: "the saved state belongs to another API key or cache key",
  no_snapshot: "no state had been saved closer to the point where the prompt is new",
  evicted: "the saved state had made room for others",
};

function numbers(source, names) {
  const found = names.filter((name) => Number.isFinite(source?.[name]) && source[name] >= 0);
  return Object.fromEntries(found.map((name) => [name, source[name]]));
}

/** The measures of a `usage` event, flat and checked. */
export function measuresOf({ usage, timings, cache }) {
  return cleanMeasures({
    usage: {
      ...usage,
      cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      reasoning_tokens: usage.completion_tokens_details?.reasoning_tokens ?? 0,
    },
    timings,
    cache,
  });
}

/** {usage, timings, cache, firstToken, thinkingSeconds, finish} of an object that nobody vouches for; what is missing is null. */
export function cleanMeasures({ usage, timings, cache, firstToken, thinkingSeconds, finish }) {
  const diverges = cache?.diverges_at;
  const isPlace = Number.isInteger(diverges?.token) && Number.isInteger(diverges.message);
  return {
    usage: Number.isFinite(usage?.prompt_tokens) ? { completion_tokens: 0, ...numbers(usage, NUMBERS.usage) } : null,
    timings: timings ? numbers(timings, NUMBERS.timings) : null,
    cache: cache
      ? {
          ...numbers(cache, NUMBERS.cache),
          miss: typeof cache.miss === "string" ? cache.miss.slice(0, 40) : null,
          diverges_at: isPlace ? { token: diverges.token, message: diverges.message } : null,
          from_host: cache.from_host === true,
          from_disk: cache.from_disk === true,
        }
      : null,
    firstToken: Number.isFinite(firstToken) ? firstToken : null,
    thinkingSeconds: Number.isFinite(thinkingSeconds) ? thinkingSeconds : null,
    finish: typeof finish === "string" ? finish.slice(0, 40) : null,
  };
}

function reuseText({ prompt_tokens: prompt, cached_tokens: cached = 0 }) {
  return `${count(cached)} of ${plural(prompt, "prompt token")} reused`;
}

function decodeRate(timings) {
  return timings?.decode_tokens_per_second ?? null;
}

/** The figures of a reply: the important ones in the summary, all of them when unfolded. Null if there are none. */
export function measuresElement(node) {
  const { usage, timings, firstToken } = node;
  if (!usage) return null;
  const share = usage.prompt_tokens > 0 ? (usage.cached_tokens ?? 0) / usage.prompt_tokens : 0;
  const bar = el("span", { class: "reuse-bar", "aria-hidden": "true" }, el("span"));
  bar.firstElementChild.style.inlineSize = `${Math.round(share * 100)}%`;
  const parts = [reuseText(usage)];
  if (decodeRate(timings) !== null) parts.push(rate(decodeRate(timings)));
  if (firstToken !== null) parts.push(`first token ${duration(firstToken)}`);
  const list = el("dl");
  for (const [term, value] of rows(node)) list.append(el("div", {}, el("dt", {}, term), el("dd", {}, value)));
  return el("details", { class: "measures" }, el("summary", {}, bar, el("span", {}, parts.join(" · "))), list);
}

function origin(cache) {
  if (cache?.from_host) return ", from host memory";
  return cache?.from_disk ? ", from disk" : "";
}

function* rows({ usage, timings, cache, firstToken, finish }) {
  const { prompt_tokens: prompt, completion_tokens: reply, cached_tokens: cached = 0 } = usage;
  const percent = prompt > 0 ? ` (${Math.floor((100 * cached) / prompt)} %)` : "";
  yield ["Prompt", `${plural(prompt, "token")}, ${count(cached)} reused${percent}${origin(cache)}`];
  if (cache?.miss) yield ["Not reused", MISSES[cache.miss] ?? cache.miss];
  if (cache?.diverges_at) {
    const { token, message } = cache.diverges_at;
    yield ["Differs from", `turn ${count(message + 1)} on (token ${count(token)})`];
  }
  const thought = usage.reasoning_tokens ? `, ${count(usage.reasoning_tokens)} of them thinking` : "";
  yield ["Reply", `${plural(reply, "token")}${thought}${finish === "length" ? ", cut at the limit" : ""}`];
  if (firstToken !== null) yield ["First token", `after ${duration(firstToken)}`];
  if (timings?.queue_seconds !== undefined) yield ["Waited", duration(timings.queue_seconds)];
  if (timings?.prefill_seconds !== undefined) {
    const speed = timings.prefill_tokens_per_second ? `, ${rate(timings.prefill_tokens_per_second)}` : "";
    yield ["Reading", duration(timings.prefill_seconds) + speed];
  }
  if (timings?.decode_seconds !== undefined) {
    const speed = timings.decode_tokens_per_second ? `, ${rate(timings.decode_tokens_per_second)}` : "";
    yield ["Writing", duration(timings.decode_seconds) + speed];
  }
  if (timings?.drafted_tokens) {
    yield ["Drafted", `${count(timings.accepted_tokens ?? 0)} of ${plural(timings.drafted_tokens, "token")} accepted`];
  }
}
