// The real server with the demo checkpoint, started on a free port and stopped again.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const DEMO = fileURLToPath(new URL("../../demo", import.meta.url));
const START_MS = 60_000;
const running = new Set();

/** Starts it; resolves to {url, health, stop} once it listens and the model is loaded. */
export async function startServer(binary, ...flags) {
  const child = spawn(binary, ["serve", "--model", DEMO, "--port", "0", ...flags], { stdio: ["ignore", "ignore", "pipe"] });
  running.add(child);
  child.once("exit", () => running.delete(child));
  let said = "";
  const url = await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`the server did not start: ${said}`)), START_MS).unref();
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`the server ended with ${code}: ${said}`)));
    createInterface({ input: child.stderr }).on("line", (line) => {
      said += `${line}\n`;
      const address = /http:\/\/[\d.]+:\d+/.exec(line)?.[0];
      if (address) resolve(address);
    });
  });
  const health = async () => (await fetch(`${url}/health`)).json();
  const end = Date.now() + START_MS;
  while ((await health()).status !== "ready") {
    if (Date.now() > end) throw new Error(`the model was not loaded: ${said}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const stop = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 10_000);
    await exited;
    clearTimeout(timer);
  };
  return { url, health, stop };
}

/** Ends at once whatever still runs. */
export function killServers() {
  for (const child of running) child.kill("SIGKILL");
}
