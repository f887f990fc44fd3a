// What the Node client tests share: the server's address, one line per case, waiting for /health.

export const URL_ = process.env.CALLA_URL ?? "http://127.0.0.1:8080";
// A second server, started with --api-key; cases that need it are skipped without it.
const KEYED_URL = process.env.CALLA_KEYED_URL;
export const KEY = process.env.CALLA_KEY ?? "";

// End-of-turn tokens of the demo checkpoint: a logit_bias of -100 on them keeps it talking.
export const END_TOKENS = { 4087: -100, 4089: -100 };

export const WEATHER = {
  name: "get_weather",
  description: "Get the current weather for a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", description: "Name of the city" } },
    required: ["city"],
  },
};
export const WEATHER_QUESTION = "What is the weather in Paris?";
export const WEATHER_RESULT = { temperature: 21, condition: "sunny" };

class Skipped extends Error {}

/** Fails the case with `message` unless `condition` holds. */
export function expect(condition, message) {
  if (!condition) throw new Error(typeof message === "string" ? message : JSON.stringify(message));
}

/** Awaits `promise`, which must reject with a `kind`; gives the error. */
export async function rejects(kind, promise) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name} was thrown`);
}

/** Address of the server that wants a key. */
export function keyed() {
  if (!KEYED_URL) throw new Skipped("no server with a key (CALLA_KEYED_URL)");
  return KEYED_URL;
}

/** The server's /health. */
export async function health() {
  return (await fetch(`${URL_}/health`)).json();
}

/** Waits until no request is running or waiting; gives the seconds that it took. */
export async function waitIdle(seconds) {
  const start = performance.now();
  for (;;) {
    const status = await health();
    const took = (performance.now() - start) / 1000;
    if (status.running === 0 && status.waiting === 0) return took;
    expect(took < seconds, `still busy after ${seconds} s: ${JSON.stringify(status)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Runs all cases in order, prints a line for each, and exits with 1 if one failed. */
export async function run(suite, cases) {
  const only = process.argv.slice(2);
  let failed = false;
  for (const [name, body] of Object.entries(cases)) {
    const label = `${suite}/${name}`;
    if (only.length > 0 && !only.some((word) => label.includes(word))) continue;
    try {
      const detail = await body();
      console.log(detail ? `ok ${label}: ${detail}` : `ok ${label}`);
    } catch (error) {
      if (error instanceof Skipped) {
        console.log(`skipped: ${label}: ${error.message}`);
        continue;
      }
      failed = true;
      console.error(error);
      console.log(`FAIL ${label}: ${String(error).replaceAll(/\s+/g, " ").slice(0, 600)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
