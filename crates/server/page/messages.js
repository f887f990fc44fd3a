// How a user's message and the results of tools are shown, edited and switched between branches.

import { button, copyText, el, fitHeight, redraw } from "./dom.js";

let headings = 0;

/** The frame that every message has: an article named by its heading. */
export function messageFrame(role, name) {
  headings += 1;
  const heading = el("h2", { id: `message-${headings}`, tabindex: "-1" }, name);
  return { article: el("article", { class: `message ${role}`, "aria-labelledby": heading.id }, heading), heading };
}

/** The controls that lead to a message's other branches; empty where there are none. */
export function branchControl(conversation, id, actions) {
  const { ids, index } = conversation.siblings(id);
  if (ids.length < 2) return null;
  const step = (label, by, sign) =>
    button(sign, () => actions.switchBranch(ids[index + by], by), {
      class: "quiet step",
      "aria-label": label,
      "data-step": by,
      disabled: ids[index + by] === undefined || actions.isBusy(),
    });
  return el(
    "div",
    { class: "branches", role: "group", "aria-label": "Branches" },
    step("Previous branch", -1, "‹"),
    el("span", { class: "branch-place" }, el("span", { class: "visually-hidden" }, "Branch "), `${index + 1} / ${ids.length}`),
    step("Next branch", 1, "›"),
  );
}

/** A text area that Enter submits and Escape leaves. */
function editor(text, label, { submitLabel, onsubmit, oncancel }) {
  const area = el("textarea", { "aria-label": label, rows: 1 });
  area.value = text;
  const submit = () => {
    if (area.value.trim() !== "") onsubmit(area.value);
  };
  area.addEventListener("input", () => fitHeight(area));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      oncancel();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  const buttons = el("div", { class: "row" }, button(submitLabel, submit, { class: "primary" }), button("Cancel", oncancel));
  const element = el("div", { class: "editor" }, area, buttons);
  const focus = () => {
    fitHeight(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  };
  return { element, focus };
}

export class UserView {
  constructor(node, conversation, actions) {
    Object.assign(this, { node, conversation, actions });
    const { article, heading } = messageFrame("user", "You");
    this.element = article;
    this.heading = heading;
    this.text = el("div", { class: "text" }, node.content);
    this.row = el("div", { class: "row actions" });
    article.append(this.text, this.row);
    this.refresh();
  }

  /** Draws the controls again: branches and whether anything runs may have changed. */
  refresh() {
    const edit = button("Edit", () => this.edit(), { class: "quiet", disabled: this.actions.isBusy() });
    const copy = button("Copy", () => copyText(this.node.content, copy), { class: "quiet" });
    redraw(this.row, [branchControl(this.conversation, this.node.id, this.actions), copy, edit]);
  }

  edit() {
    const close = () => {
      element.replaceWith(this.text);
      this.row.hidden = false;
    };
    const { element, focus } = editor(this.node.content, "Edit your message", {
      submitLabel: "Send as new branch",
      onsubmit: (text) => {
        close();
        this.actions.edit(this.node, text);
      },
      oncancel: () => {
        close();
        this.row.querySelector("button:last-child").focus();
      },
    });
    this.text.replaceWith(element);
    this.row.hidden = true;
    focus();
  }
}

export class ToolView {
  constructor(node, conversation, actions) {
    Object.assign(this, { node, conversation, actions });
    const calls = conversation.get(node.parent).toolCalls;
    const name = (id) => calls.find((call) => call.id === id)?.name ?? id;
    const { article, heading } = messageFrame("tool", node.results.length === 1 ? "Tool result" : "Tool results");
    this.element = article;
    this.heading = heading;
    for (const { id, content } of node.results) {
      const pre = el("pre", { tabindex: "0", role: "group", "aria-label": `Result of ${name(id)}` }, content);
      article.append(el("div", { class: "card" }, el("p", { class: "card-head" }, el("code", {}, name(id))), pre));
    }
    this.row = el("div", { class: "row actions" });
    article.append(this.row);
    this.refresh();
  }

  refresh() {
    const again = button("Answer otherwise", () => this.actions.answerAgain(this.node), {
      class: "quiet",
      disabled: this.actions.isBusy(),
    });
    redraw(this.row, [branchControl(this.conversation, this.node.id, this.actions), again]);
  }
}
