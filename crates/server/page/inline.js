// Markdown within a line: emphasis, code, links. One pass; the work is linear in the text.
//!
//! A reply is not trusted. Every string becomes a text node; the only attribute that takes text of the reply is
//! the address of a link, and only http, https and mailto pass. Images are never loaded (an address in a reply
//! could carry the conversation away): they become links.

import { el } from "./dom.js";

/** Open delimiters at a time; more stay as they are. It bounds nesting and each search for an opener. */
const OPEN_MAX = 24;
/** Longest address of a link, in UTF-16 units. */
const ADDRESS_MAX = 2048;

const SPECIAL = /[\\`*_~[\]!<&\n]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}]/u;
const ANGLE_ADDRESS = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2048})>/y;
const BREAK_TAG = /<br ?\/?>/iy;
const BARE_ADDRESS = /https?:\/\/[^\s<>"'`*\[\]{}|\\^]{1,2000}/y;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#39);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };

/** The address if a link may lead there, else null. */
export function safeAddress(text) {
  // Browsers ignore controls inside a scheme, so "java\nscript:" must not be judged by its letters.
  if (text.length > ADDRESS_MAX || /[\u0000-\u0020\u007f]/.test(text)) return null;
  if (!/^(?:https?:\/\/[^/]|mailto:[^/])/i.test(text)) return null;
  return URL.canParse(text) ? text : null;
}

function link(address, children) {
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

/** Appends `text` with its inline markup to `parent`. */
export function renderInline(text, parent) {
  new Inline(text).run(parent);
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    /** Open delimiters, outermost first; each holds the nodes that came after it. */
    this.frames = [{ mark: "", literal: "", count: 0, nodes: [] }];
    this.plain = "";
    this.codeClosers = null;
  }

  run(parent) {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const special = SPECIAL.exec(text);
      const next = special ? special.index : text.length;
      this.plain += text.slice(this.at, next);
      this.at = next;
      if (special) this.special(text[next]);
    }
    while (this.frames.length > 1) this.flatten();
    this.flushPlain();
    for (const node of this.frames[0].nodes) parent.append(node);
  }

  special(mark) {
    if (mark === "\\") this.escape();
    else if (mark === "`") this.code();
    else if (mark === "*" || mark === "_" || mark === "~") this.emphasis(mark);
    else if (mark === "[") this.open({ mark: "[", literal: "[", count: 1, nodes: [] });
    else if (mark === "!" && this.text[this.at + 1] === "[") {
      this.open({ mark: "[", literal: "![", count: 2, nodes: [] });
    } else if (mark === "]") this.closeLink();
    else if (mark === "<") this.angle();
    else if (mark === "&") this.entity();
    else if (mark === "\n") this.lineBreak();
    else if (mark === "h") this.bareAddress();
    else this.literal(1);
  }

  literal(length) {
    this.plain += this.text.slice(this.at, this.at + length);
    this.at += length;
  }

  flushPlain() {
    if (this.plain === "") return;
    this.top().nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  push(node) {
    this.flushPlain();
    this.top().nodes.push(node);
  }

  top() {
    return this.frames[this.frames.length - 1];
  }

  /** Opens a delimiter of `frame.count` characters, or leaves it as text where too many are open. */
  open(frame) {
    if (this.frames.length > OPEN_MAX) {
      this.literal(frame.count);
      return;
    }
    this.flushPlain();
    this.frames.push(frame);
    this.at += frame.count;
  }

  /** The innermost open delimiter turns out to be text. */
  flatten() {
    this.flushPlain();
    const frame = this.frames.pop();
    const { nodes } = this.top();
    nodes.push(document.createTextNode(frame.literal));
    for (const node of frame.nodes) nodes.push(node);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next !== undefined && PUNCTUATION.test(next)) {
      this.plain += next;
      this.at += 2;
    } else if (next === "\n") this.at += 1;
    else this.literal(1);
  }

  lineBreak() {
    // A single line feed is kept: what the model wrote as lines is shown as lines.
    this.plain = this.plain.trimEnd();
    this.push(el("br"));
    this.at += 1;
  }

  code() {
    const { text } = this;
    const start = this.at;
    const length = runLength(text, start);
    const end = this.codeEnd(length, start + length);
    if (end < 0) {
      this.literal(length);
      return;
    }
    let inner = text.slice(start + length, end).replaceAll("\n", " ");
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "") inner = inner.slice(1, -1);
    this.push(el("code", {}, inner));
    this.at = end + length;
  }

  /** Where a run of exactly `length` backticks starts, at or after `from`; -1 if there is none. */
  codeEnd(length, from) {
    if (this.codeClosers === null) {
      this.codeClosers = new Map();
      for (let i = this.text.indexOf("`"); i >= 0; ) {
        const run = runLength(this.text, i);
        const starts = this.codeClosers.get(run) ?? { places: [], next: 0 };
        starts.places.push(i);
        this.codeClosers.set(run, starts);
        i = this.text.indexOf("`", i + run);
      }
    }
    const starts = this.codeClosers.get(length);
    if (starts === undefined) return -1;
    // The text is read forwards, so a place that lies behind never comes into question again.
    while (starts.next < starts.places.length && starts.places[starts.next] < from) starts.next += 1;
    return starts.places[starts.next] ?? -1;
  }

  emphasis(mark) {
    const { text } = this;
    let run = runLength(text, this.at);
    const before = text[this.at - 1] ?? " ";
    const after = text[this.at + run] ?? " ";
    if (mark === "~" && run !== 2) {
      this.literal(run);
      return;
    }
    const isInWord = mark === "_" && WORD.test(before) && WORD.test(after);
    const canClose = !SPACE.test(before) && !isInWord;
    const canOpen = !SPACE.test(after) && !isInWord;
    while (run > 0 && canClose) {
      const opener = this.opener(mark);
      if (opener < 0) break;
      run -= this.wrap(opener, run);
    }
    if (run === 0) return;
    if (canOpen) this.open({ mark, literal: mark.repeat(run), count: run, nodes: [] });
    else this.literal(run);
  }

  /** The innermost open delimiter of that kind; emphasis does not cross the start of a link. */
  opener(mark) {
    for (let i = this.frames.length - 1; i > 0; i--) {
      if (this.frames[i].mark === mark) return i;
      if (this.frames[i].mark === "[") return -1;
    }
    return -1;
  }

  /** Closes the delimiter at `index` with up to `run` characters; returns how many of them it used. */
  wrap(index, run) {
    while (this.frames.length - 1 > index) this.flatten();
    this.flushPlain();
    const frame = this.frames[index];
    const used = Math.min(run, frame.count, 2);
    const tag = frame.mark === "~" ? "del" : used === 2 ? "strong" : "em";
    const element = el(tag);
    for (const node of frame.nodes) element.append(node);
    frame.count -= used;
    frame.literal = frame.mark.repeat(frame.count);
    frame.nodes = [element];
    if (frame.count === 0) {
      this.frames.pop();
      this.top().nodes.push(element);
    }
    this.at += used;
    return used;
  }

  closeLink() {
    let index = this.frames.length - 1;
    while (index > 0 && this.frames[index].mark !== "[") index -= 1;
    const found = index > 0 ? this.destination(this.at + 1) : null;
    const address = found && safeAddress(found.address);
    if (!address) {
      // An opener closes once: "[a] [b](c)" links b alone.
      if (index > 0) while (this.frames.length - 1 >= index) this.flatten();
      this.literal(1);
      return;
    }
    while (this.frames.length - 1 > index) this.flatten();
    this.flushPlain();
    const frame = this.frames.pop();
    // A link within a link is not one; the inner text stays.
    const children = frame.nodes.map((node) => withoutLinks(node));
    this.push(link(address, children.length > 0 ? children : [address]));
    this.at = found.end;
  }

  /** `(address "title")` at `from`: the address and where it ends, or null. */
  destination(from) {
    const { text } = this;
    if (text[from] !== "(") return null;
    const limit = Math.min(text.length, from + ADDRESS_MAX);
    let depth = 0;
    for (let i = from + 1; i < limit; i++) {
      const c = text[i];
      if (c === "(") depth += 1;
      else if (c === ")" && depth > 0) depth -= 1;
      else if (c === ")" || c === " ") {
        const raw = text.slice(from + 1, i);
        const address = raw.startsWith("<") && raw.endsWith(">") ? raw.slice(1, -1) : raw;
        if (c === ")") return { address, end: i + 1 };
        const end = text.indexOf(")", i);
        // Between address and bracket only a quoted title may stand.
        const title = end < 0 || end > limit ? "" : text.slice(i, end).trim();
        return /^(?:"[^"]*"|'[^']*')$/.test(title) ? { address, end: end + 1 } : null;
      } else if (c === "\n") return null;
    }
    return null;
  }

  angle() {
    ANGLE_ADDRESS.lastIndex = this.at;
    BREAK_TAG.lastIndex = this.at;
    const found = ANGLE_ADDRESS.exec(this.text);
    const address = found && safeAddress(found[1]);
    if (address) {
      this.push(link(address, [address]));
      this.at += found[0].length;
    } else if (BREAK_TAG.test(this.text)) {
      this.push(el("br"));
      this.at = BREAK_TAG.lastIndex;
    } else this.literal(1);
  }

  bareAddress() {
    BARE_ADDRESS.lastIndex = this.at;
    const found = WORD.test(this.text[this.at - 1] ?? " ") ? null : BARE_ADDRESS.exec(this.text);
    const isInLink = this.frames.some((frame) => frame.mark === "[");
    const address = found && !isInLink && safeAddress(trimAddress(found[0]));
    if (address) {
      this.push(link(address, [address]));
      this.at += address.length;
    } else {
      // Text, all of it: to try again within it would read it over and over.
      this.literal(found ? found[0].length : 4);
    }
  }

  entity() {
    ENTITY.lastIndex = this.at;
    const found = ENTITY.exec(this.text);
    if (found === null) {
      this.literal(1);
      return;
    }
    this.plain += ENTITIES[found[1]];
    this.at += found[0].length;
  }
}

function runLength(text, from) {
  let end = from + 1;
  while (text[end] === text[from]) end += 1;
  return end - from;
}

/** An address in running text without the punctuation that belongs to the sentence. */
function trimAddress(address) {
  let end = address.length;
  let unmatched = 0;
  for (const c of address) unmatched += c === ")" ? 1 : c === "(" ? -1 : 0;
  for (; end > 0; end--) {
    const c = address[end - 1];
    if (c === ")" && unmatched > 0) unmatched -= 1;
    else if (!".,;:!?_~".includes(c)) break;
  }
  return address.slice(0, end);
}

function withoutLinks(node) {
  if (node.nodeName !== "A") return node;
  const span = el("span");
  span.append(...node.childNodes);
  return span;
}
