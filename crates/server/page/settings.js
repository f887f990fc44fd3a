// The settings dialog, and what its values mean for a request.

import { byId, el } from "./dom.js";
import { loadKey, loadSettings, saveKey, saveSettings } from "./store.js";
import { EXAMPLE, parseTools } from "./tools.js";

/** Numbers that go into a request under their own name; an empty field leaves the choice to the server. */
const NUMBERS = [
  { name: "max_tokens", label: "Longest reply", hint: "tokens", min: 1, max: 1_000_000, step: 1 },
  { name: "thinking_budget", label: "Thinking budget", hint: "tokens", min: 0, max: 1_000_000, step: 1 },
  { name: "temperature", label: "Temperature", hint: "0 to 2", min: 0, max: 2, step: "any" },
  { name: "top_p", label: "Top p", hint: "0 to 1", min: 0, max: 1, step: "any" },
  { name: "top_k", label: "Top k", hint: "0: all", min: 0, max: 100_000, step: 1 },
  { name: "min_p", label: "Min p", hint: "0 to 1", min: 0, max: 1, step: "any" },
  { name: "presence_penalty", label: "Presence penalty", hint: "-2 to 2", min: -2, max: 2, step: "any" },
  { name: "seed", label: "Seed", hint: "whole number", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

export class Settings {
  /** `changed` is called after each change. */
  constructor(changed) {
    this.changed = changed;
    this.dialog = byId("settings");
    this.key = loadKey();
    const kept = loadSettings();
    const text = (value) => (typeof value === "string" ? value : "");
    this.values = {
      system: text(kept.system),
      tools: text(kept.tools),
      thinking: kept.thinking !== false,
      preserve: kept.preserve === true,
    };
    for (const { name, min, max } of NUMBERS) {
      const value = kept[name];
      if (Number.isFinite(value) && value >= min && value <= max) this.values[name] = value;
    }
    this.buildNumbers();
    this.connect();
    this.readTools();
  }

  open() {
    this.dialog.showModal();
  }

  buildNumbers() {
    for (const { name, label, hint, min, max, step } of NUMBERS) {
      const id = `setting-${name}`;
      const isWhole = step === 1;
      const input = el("input", { id, type: "number", min, max, step, placeholder: "default", inputmode: isWhole ? "numeric" : "decimal" });
      input.value = this.values[name] ?? "";
      const problem = el("p", { class: "problem", id: `${id}-problem` });
      input.setAttribute("aria-describedby", problem.id);
      input.addEventListener("input", () => {
        const isValid = input.checkValidity();
        input.setAttribute("aria-invalid", String(!isValid));
        problem.textContent = isValid ? "" : `${isWhole ? "A whole number" : "A number"} from ${min} to ${max}`;
        if (!isValid) return;
        if (input.value === "") delete this.values[name];
        else this.values[name] = input.valueAsNumber;
        this.save();
      });
      const labelText = el("label", { for: id }, label, " ", el("span", { class: "hint" }, hint));
      byId("numbers").append(el("div", { class: "field" }, labelText, input, problem));
    }
  }

  connect() {
    const text = (id, name) => {
      const area = byId(id);
      area.value = this.values[name];
      area.addEventListener("input", () => {
        this.values[name] = area.value;
        if (name === "tools") this.readTools();
        this.save();
      });
    };
    text("setting-system", "system");
    text("setting-tools", "tools");
    const check = (id, name) => {
      byId(id).checked = this.values[name];
      byId(id).addEventListener("change", (event) => {
        this.values[name] = event.target.checked;
        this.save();
        this.showThinking();
      });
    };
    check("setting-thinking", "thinking");
    check("setting-preserve", "preserve");
    byId("think").addEventListener("click", () => {
      this.values.thinking = !this.values.thinking;
      byId("setting-thinking").checked = this.values.thinking;
      this.save();
      this.showThinking();
    });
    this.showThinking();
    byId("setting-key").value = this.key;
    byId("setting-key").addEventListener("input", (event) => this.setKey(event.target.value));
    byId("tools-example").addEventListener("click", () => {
      const area = byId("setting-tools");
      area.value = JSON.stringify(EXAMPLE, null, 2);
      area.dispatchEvent(new Event("input"));
      area.focus();
    });
    byId("settings-close").addEventListener("click", () => this.dialog.close());
    byId("settings-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
    });
  }

  setKey(key) {
    this.key = key.trim();
    byId("setting-key").value = this.key;
    saveKey(this.key);
    this.changed();
  }

  showThinking() {
    byId("think").setAttribute("aria-pressed", String(this.values.thinking));
  }

  readTools() {
    const area = byId("setting-tools");
    const problem = byId("tools-problem");
    try {
      this.tools = parseTools(this.values.tools);
      problem.textContent = "";
      area.removeAttribute("aria-invalid");
    } catch (error) {
      // A half-typed list sends no tools rather than the last good one, which nobody sees.
      this.tools = [];
      problem.textContent = error.message;
      area.setAttribute("aria-invalid", "true");
    }
    const names = this.tools.map((tool) => tool.function.name).join(", ");
    byId("tools-count").textContent = names === "" ? "none" : names;
  }

  save() {
    saveSettings(this.values);
    this.changed();
  }

  /** The part of a request that the prompt depends on. */
  promptBody(messages, model) {
    const { thinking, preserve } = this.values;
    const body = { model, messages, chat_template_kwargs: { enable_thinking: thinking, preserve_thinking: preserve } };
    if (this.tools.length > 0) body.tools = this.tools;
    return body;
  }

  /** A request for a streamed reply. */
  chatBody(messages, model) {
    const body = { ...this.promptBody(messages, model), stream: true, stream_options: { include_usage: true } };
    for (const { name } of NUMBERS) {
      if (this.values[name] !== undefined) body[name] = this.values[name];
    }
    if (!this.values.thinking) delete body.thinking_budget;
    return body;
  }
}
