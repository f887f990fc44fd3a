// How a reply is shown while it streams in and afterwards: thinking, text, tool calls, errors, figures.

import { parseArguments } from "./conversation.js";
import { button, copyText, count, duration, el, fitHeight, redraw } from "./dom.js";
import { MarkdownStream, renderMarkdown } from "./markdown.js";
import { measuresElement } from "./measures.js";
import { branchControl, messageFrame } from "./messages.js";

export class ReplyView {
  constructor(node, conversation, actions) {
    Object.assign(this, { node, conversation, actions });
    const { article, heading } = messageFrame("assistant", "calla");
    this.element = article;
    this.heading = heading;
    this.thinkingLabel = el("span", {}, "Thought");
    this.thinkingText = el("div", { class: "thinking-text" });
    this.thinking = el("details", { class: "thinking" }, el("summary", {}, this.thinkingLabel), this.thinkingText);
    this.progress = el("div", { class: "progress", hidden: true });
    this.content = el("div", { class: "markdown" });
    this.calls = el("div", { class: "calls" });
    this.footer = el("div", { class: "reply-foot" });
    article.append(this.thinking, this.progress, this.content, this.calls, this.footer);
    this.frame = 0;
    if (node.state === "streaming") {
      this.stream = new MarkdownStream(this.content);
      this.thinking.hidden = true;
      this.setProgress("Waiting for the server");
    } else {
      renderMarkdown(node.content, this.content);
      this.showThinking();
    }
    this.refresh();
  }

  // While it streams.

  /** The prompt is being read; `total` may be unknown. */
  setProgress(text, done = null, total = null) {
    const bar = total === null ? el("span", { class: "pulse", "aria-hidden": "true" }) : el("progress", { max: total, "aria-label": "Prompt read" });
    if (total !== null) bar.value = done;
    this.progress.replaceChildren(bar, el("span", {}, text));
    this.progress.hidden = false;
  }

  prefill(done, total) {
    this.setProgress(`Reading the prompt: ${count(done)} of ${count(total)} tokens`, done, total);
  }

  addReasoning(text) {
    this.progress.hidden = true;
    this.thinking.hidden = false;
    this.element.dataset.phase = "thinking";
    this.thinkingLabel.textContent = "Thinking";
    this.pendingThinking = (this.pendingThinking ?? "") + text;
    this.requestDraw();
  }

  addContent(text) {
    this.progress.hidden = true;
    this.endThinking();
    this.stream.push(text);
    this.requestDraw();
  }

  /** The tool calls so far have changed. */
  updateCalls() {
    this.progress.hidden = true;
    this.endThinking();
    this.requestDraw();
  }

  endThinking() {
    if (this.element.dataset.phase === "writing") return;
    this.element.dataset.phase = "writing";
    this.showThinkingLabel();
  }

  requestDraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
      this.actions.drawn();
    });
  }

  draw() {
    if (this.pendingThinking) {
      const { lastChild } = this.thinkingText;
      if (lastChild) lastChild.appendData(this.pendingThinking);
      else this.thinkingText.append(this.pendingThinking);
      this.pendingThinking = "";
    }
    this.stream.draw();
    for (const [i, call] of this.node.toolCalls.entries()) this.drawCall(i, call);
  }

  drawCall(i, { name, arguments: text }) {
    const card = this.calls.children[i] ?? this.calls.appendChild(callCard(name, ""));
    card.querySelector("code").textContent = name;
    const pre = card.querySelector("pre");
    const shown = pre.textContent;
    if (text.startsWith(shown)) pre.append(text.slice(shown.length));
    else pre.textContent = text;
  }

  /** The reply has ended, one way or another. */
  end() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.draw();
    this.stream.end();
    this.progress.hidden = true;
    delete this.element.dataset.phase;
    this.showThinking();
    this.refresh();
  }

  // Afterwards.

  showThinking() {
    this.thinking.hidden = this.node.reasoning === "";
    if (this.thinkingText.textContent === "") this.thinkingText.textContent = this.node.reasoning;
    this.showThinkingLabel();
  }

  showThinkingLabel() {
    const { thinkingSeconds } = this.node;
    this.thinkingLabel.textContent = thinkingSeconds ? `Thought for ${duration(thinkingSeconds)}` : "Thought";
  }

  refresh() {
    const { node } = this;
    if (node.state === "streaming") return;
    this.showCalls();
    const figures = measuresElement(node);
    if (figures) figures.open = this.footer.querySelector("details")?.open ?? false;
    redraw(this.footer, [this.notice(), figures, this.row()]);
  }

  notice() {
    const { node } = this;
    if (node.state === "failed") return this.errorCard();
    if (node.state === "stopped") return el("p", { class: "note" }, "Stopped.");
    if (node.finish === "length") return el("p", { class: "note" }, "Cut at the longest reply that was allowed.");
    return null;
  }

  errorCard() {
    const { node, actions } = this;
    const retry = button("Try again", () => actions.retry(node), { class: "primary", disabled: actions.isBusy() });
    const wait = el("span", { class: "note" });
    const until = node.retryAt ?? 0;
    const tick = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      wait.textContent = left > 0 ? `The server asks to wait ${left} s.` : "";
      if (left > 0 && (wait.isConnected || wait.dataset.new)) setTimeout(tick, 1000);
      delete wait.dataset.new;
    };
    wait.dataset.new = "true";
    tick();
    return el("div", { class: "error" }, el("p", {}, node.error ?? "The request failed."), el("div", { class: "row" }, retry, wait));
  }

  row() {
    const { node, actions, conversation } = this;
    const branches = branchControl(conversation, node.id, actions);
    // Where nothing came, there is nothing to copy, and "Try again" does what regenerating would.
    if (node.state === "failed" && node.content === "") return el("div", { class: "row actions" }, branches);
    const copy = button("Copy", () => copyText(node.content, copy), { class: "quiet", disabled: node.content === "" });
    const regenerate = button("Regenerate", () => actions.regenerate(node), {
      class: "quiet",
      "data-action": "regenerate",
      disabled: actions.isBusy(),
    });
    return el("div", { class: "row actions" }, branches, copy, regenerate);
  }

  /** The tool calls, and where nobody has answered them a form for that. */
  showCalls() {
    const { node, actions } = this;
    const isAnswered = node.active !== null;
    const isOpen = node.toolCalls.length > 0 && !isAnswered && node.state === "done";
    if (this.shownCalls === `${node.toolCalls.length} ${isOpen}`) return;
    this.shownCalls = `${node.toolCalls.length} ${isOpen}`;
    this.calls.replaceChildren(...node.toolCalls.map(({ name, arguments: text }) => callCard(name, pretty(text))));
    if (!isOpen) return;
    const areas = node.toolCalls.map(({ name }, i) => this.resultArea(name, i));
    const form = el("form", { class: "row answer", "aria-label": "Tool results" }, el("button", { class: "primary" }, areas.length === 1 ? "Send result" : "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!actions.isBusy()) actions.answer(node, areas.map((area, i) => ({ id: node.toolCalls[i].id, content: area.value })));
    });
    if (node.children.length > 0) {
      form.append(button("Cancel", () => actions.switchBranch(node.children.at(-1), 0)));
    }
    this.submitResults = () => form.requestSubmit();
    this.calls.append(form);
  }

  resultArea(name, i) {
    const area = el("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: "Result, as text or JSON" });
    area.addEventListener("input", () => fitHeight(area));
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submitResults();
    });
    this.calls.children[i].append(area);
    return area;
  }
}

function callCard(name, text) {
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, text);
  return el("div", { class: "card" }, el("p", { class: "card-head" }, el("span", {}, "Tool call "), el("code", {}, name)), pre);
}

function pretty(text) {
  const value = parseArguments(text);
  return value === null ? text : JSON.stringify(value, null, 2);
}
