// The server's state as the header shows it: asked for every few seconds while the page is visible.

import { fetchHealth } from "./api.js";
import { announce, byId, count, el } from "./dom.js";

const PERIOD_MS = 4000;

const WORDS = {
  ready: "Ready",
  loading: "Loading",
  degraded: "Degraded",
  draining: "Shutting down",
  unloaded: "Asleep",
  offline: "Offline",
};

const EXPLANATIONS = {
  loading: "The model is being loaded. A message waits until it is there or is refused with the time to wait.",
  degraded: "The server answers, but not as it should.",
  draining: "The server finishes running replies and takes no new ones.",
  unloaded: "The model was idle and has been unloaded. The next message loads it again.",
  offline: "The server does not answer. The page keeps trying.",
};

export class Health {
  /** `changed` is called with the health, or null, whenever it was asked for. */
  constructor(key, changed) {
    this.key = key;
    this.changed = changed;
    this.latest = null;
    this.shown = "";
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.schedule(0));
    this.schedule(0);
  }

  get model() {
    return this.latest?.model || "default";
  }

  /** Tokens of context, or null where the server has not said. */
  get context() {
    return this.latest?.context > 0 ? this.latest.context : null;
  }

  /** Asks now rather than when the period is over. */
  refresh() {
    this.schedule(0);
  }

  schedule(delay) {
    clearTimeout(this.timer);
    if (!document.hidden) this.timer = setTimeout(() => this.poll(), delay);
  }

  async poll() {
    const health = await fetchHealth(this.key());
    // What the model is stays known while the server is away.
    this.latest = health ?? (this.latest && { ...this.latest, status: "offline" });
    this.show(health);
    this.changed(health);
    this.schedule(PERIOD_MS);
  }

  show(health) {
    const status = health?.status ?? "offline";
    const words = WORDS[status] ?? status;
    const load = health?.waiting > 0 ? `, ${count(health.waiting)} waiting` : "";
    byId("status-dot").dataset.status = status;
    byId("status-text").textContent = words + load;
    byId("status-model").textContent = this.latest?.model ?? "";
    if (this.shown !== "" && this.shown !== status) announce(`Server: ${words}`);
    this.shown = status;
    const explanation = health?.reason || EXPLANATIONS[status] || "";
    byId("server-reason").textContent = explanation;
    byId("server-reason").hidden = explanation === "";
    byId("server-facts").replaceChildren(...this.facts().map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
  }

  facts() {
    const { model, device, context, running, waiting, cache } = this.latest ?? {};
    const facts = [];
    const add = (term, value) => {
      if (value !== undefined && value !== null && value !== "") facts.push([term, String(value)]);
    };
    const number = (value) => (Number.isFinite(value) ? count(value) : undefined);
    const share = (used, all) => (Number.isFinite(used) && Number.isFinite(all) ? `${count(used)} of ${count(all)}` : number(used));
    add("Model", model);
    add("Device", device);
    add("Context", Number.isFinite(context) ? `${count(context)} tokens` : undefined);
    add("Running", number(running));
    add("Waiting", number(waiting));
    add("Saved states", number(cache?.snapshots));
    add("State slots", share(cache?.slots_used, cache?.slots));
    add("Context pages", share(cache?.pages_used, cache?.pages));
    add("In host memory", number(cache?.host_prefixes || undefined));
    add("Files", number(cache?.files));
    return facts;
  }
}
