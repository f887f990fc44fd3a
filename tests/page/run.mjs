// The chat page in a headless Chromium: one line a case, exit status 1 if any fails.
//
//   CALLA_BIN=path/to/calla CHROMIUM=chromium node run.mjs [words of the cases to run]
//
// Without CALLA_BIN only the cases with a server of their own run.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import puppeteer from "puppeteer-core";
import { cases as accessCases } from "./cases-access.mjs";
import { cases as chatCases } from "./cases-chat.mjs";
import { cases as errorCases } from "./cases-error.mjs";
import { cases as markdownCases } from "./cases-markdown.mjs";
import { cases as realCases, stopShared } from "./cases-real.mjs";
import { startFakeServer } from "./fake-server.mjs";
import { killServers } from "./real-server.mjs";

const CASE_MS = 180_000;
const TOTAL_MS = 30 * 60_000;

const wanted = process.argv.slice(2);
const isWanted = ([name]) => wanted.length === 0 || wanted.some((word) => name.includes(word));
const failures = [];
let count = 0;

/** Fails rather than wait for ever. */
function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function check(name, run) {
  count += 1;
  const start = performance.now();
  try {
    await within(CASE_MS, run());
    console.log(`ok    ${name} (${Math.round(performance.now() - start)} ms)`);
  } catch (error) {
    failures.push(name);
    console.log(`FAIL  ${name}\n${String(error.stack).replace(/^/gm, "      ")}`);
  } finally {
    // A page left open by a failure would keep its request running.
    const others = browser.browserContexts().filter((context) => context !== browser.defaultBrowserContext());
    await Promise.all(others.map((context) => context.close().catch(() => {})));
  }
}


const profile = await mkdtemp(join(tmpdir(), "calla-page-"));
// Chromium has no sandbox for root, who runs tests in containers.
const isRoot = process.getuid?.() === 0;
const browser = await puppeteer.launch({
  browser: "chrome",
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  userDataDir: profile,
  handleSIGINT: false,
  handleSIGTERM: false,
  handleSIGHUP: false,
  args: ["--disable-dev-shm-usage", ...(isRoot ? ["--no-sandbox"] : [])],
});
/** The last resort: whatever hangs, the test ends and leaves no process. */
function giveUp(reason) {
  console.log(`FAIL  ${reason}`);
  killServers();
  browser.process()?.kill("SIGKILL");
  process.exit(1);
}
setTimeout(() => giveUp(`not done after ${TOTAL_MS} ms`), TOTAL_MS).unref();
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => giveUp(signal));
try {
  for (const [name, run] of [...chatCases, ...markdownCases, ...errorCases, ...accessCases].filter(isWanted)) {
    await check(name, async () => {
      const fake = await startFakeServer();
      try {
        await run(browser, fake);
      } finally {
        await fake.close();
      }
    });
  }
  if (process.env.CALLA_BIN) {
    for (const [name, run] of realCases.filter(isWanted)) await check(name, () => run(browser, process.env.CALLA_BIN));
  } else console.log("skipped: the cases with the real server, as CALLA_BIN is not set");
} finally {
  await stopShared();
  await browser.close();
  await rm(profile, { recursive: true, force: true, maxRetries: 5 });
}
console.log(`${count - failures.length} of ${count} cases passed`);
if (count === 0) console.log("FAIL  no case has such a name");
process.exitCode = failures.length > 0 || count === 0 ? 1 : 0;
