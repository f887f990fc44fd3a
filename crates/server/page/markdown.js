// Markdown in blocks, as it streams in: what is finished is left alone, only the open end is drawn again.
//
// Finished are all blocks, items of a list and rows of a table that are followed by another whose first line is
// complete: nothing that comes can change them. An open code block is only appended to. The open end is drawn
// again at each step while it is short, and then each time it has grown by an eighth, with new text appended as it
// is in between; so the work is linear in the text.

import { button, copyText, el } from "./dom.js";
import { renderInline } from "./inline.js";

/** Nesting of quotes and lists; deeper ones stay text. Each level reads its lines once more. */
const DEPTH_MAX = 8;
/** Columns of a table; further cells of a row are dropped with those that the header has no place for. */
const COLUMNS_MAX = 64;
/** Length from which the open end is drawn again only after it has grown by an eighth. */
const REDRAW_ALWAYS = 4096;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-+*]|\d{1,9}[.)])([ \t]+|$)/;

/** Draws text that arrives in pieces into `host`. */
export class MarkdownStream {
  constructor(host) {
    this.host = host;
    /** Text of the open end; in an open code block, what is not yet in it. */
    this.tail = "";
    /** How much of the tail was there when it was last drawn as Markdown, and how much is shown in any form. */
    this.drawnLength = 0;
    this.shownLength = 0;
    /** What shows the tail, to be replaced. */
    this.tailNodes = [];
    /** The list or table body whose finished parts are no longer in the tail. */
    this.group = null;
    /** The open code block at top level: {mark, length, indent, code}. */
    this.fence = null;
    this.headings = [];
  }

  /** Adds text; `draw` shows it. */
  push(text) {
    this.tail += text;
  }

  /** Shows what was added. Call it once a frame at most. */
  draw() {
    if (this.fence !== null) this.drawFence();
    if (this.fence !== null || this.tail.length === this.shownLength) return;
    const isDue = this.tail.length >= this.drawnLength * 1.125;
    if (this.tail.length <= REDRAW_ALWAYS || isDue || this.tailNodes.length === 0) this.drawTail();
    else this.appendPlain();
  }

  /** The text is complete. */
  end() {
    if (this.fence !== null) this.drawFence();
    if (this.fence === null && this.tail.length > this.drawnLength) this.drawTail();
    if (this.fence !== null) this.endFence();
  }

  drawTail() {
    for (const node of this.tailNodes) node.remove();
    this.tailNodes = [];
    const lines = this.tail.split("\n").map(expandTabs);
    const blocks = parseBlocks(lines, 0);
    const finished = countFinished(blocks, lines);
    // The group is the start of the tail's first block.
    for (const block of blocks.splice(0, finished)) {
      this.drawBlock(block, this.headings, this.group);
      this.group = null;
    }
    const open = blocks[0];
    if (open?.isFenced && !open.isClosed && lines.length > open.start + 1) {
      this.tail = lines.slice(open.start + 1).join("\n");
      this.openFence(open);
      return;
    }
    this.tail = this.finishParts(open, lines);
    // Drawn with a copy: the levels count once the block is finished.
    const levels = [...this.headings];
    this.tailNodes = blocks.flatMap((block) => this.drawBlock(block, levels, block === open ? this.group : null));
    this.drawnLength = this.tail.length;
    this.shownLength = this.tail.length;
  }

  /** Draws a block, or into the group that has its first parts the others. Returns the new nodes. */
  drawBlock(block, headings, group) {
    const nodes = group ? block.parts.map((part) => renderPart(block, part, headings)) : [renderBlock(block, headings)];
    for (const node of nodes) (group ?? this.host).append(node);
    return nodes;
  }

  /** Draws the finished parts of the open block for good; returns the text that stays open. */
  finishParts(block, lines) {
    if (block === undefined) return lines[lines.length - 1];
    const { parts = [], start } = block;
    let cut = parts.length - 1;
    while (cut > 0 && (parts[cut].start >= lines.length - 1 || !canStart(block, lines[parts[cut].start]))) cut -= 1;
    if (cut < 1) return lines.slice(start).join("\n");
    if (this.group === null) {
      const shell = renderBlock({ ...block, parts: [] }, this.headings);
      this.host.append(shell);
      this.group = shell.querySelector("tbody") ?? shell;
    }
    for (const part of parts.splice(0, cut)) this.group.append(renderPart(block, part, this.headings));
    // A table's rows mean nothing without its first two lines.
    const head = block.type === "table" ? lines.slice(start, start + 2) : [];
    return [...head, ...lines.slice(parts[0].start)].join("\n");
  }

  openFence(block) {
    const element = renderBlock({ ...block, lines: [] }, this.headings);
    this.host.append(element);
    const { mark, length, indent } = block;
    this.fence = { mark, length, indent, code: element.querySelector("code") };
    this.drawFence();
  }

  /** Moves whole lines into the open code block. A line not yet complete may become the closing one: it waits. */
  drawFence() {
    const { mark, length, indent, code } = this.fence;
    let at = 0;
    let text = "";
    for (let end = this.tail.indexOf("\n"); end >= 0 && this.fence; end = this.tail.indexOf("\n", at)) {
      const line = this.tail.slice(at, end);
      at = end + 1;
      if (closesFence(line, mark, length)) this.fence = null;
      else text += `${stripIndent(line, indent)}\n`;
    }
    this.tail = this.tail.slice(at);
    if (text !== "") appendText(code, text);
    this.drawnLength = 0;
    this.shownLength = 0;
  }

  endFence() {
    const { mark, length, indent, code } = this.fence;
    if (this.tail !== "" && !closesFence(this.tail, mark, length)) appendText(code, stripIndent(this.tail, indent));
    this.fence = null;
    this.tail = "";
  }

  appendPlain() {
    let host = this.tailNodes[this.tailNodes.length - 1];
    while (host.lastElementChild?.matches("ul, ol, li, blockquote, p, table, tbody, tr, td")) host = host.lastElementChild;
    appendText(host, this.tail.slice(this.shownLength));
    this.shownLength = this.tail.length;
  }
}

/** How many blocks nothing that comes can change: those before the last whose start is certain, and closed code. */
function countFinished(blocks, lines) {
  const last = lines.length - 1;
  let count = blocks.length - 1;
  while (count > 0 && blocks[count].start + (blocks[count].type === "table" ? 1 : 0) >= last) count -= 1;
  while (count >= 0 && blocks[count]?.isFenced && blocks[count].isClosed && blocks[count].end <= last) count += 1;
  return Math.max(count, 0);
}

/** Whether a part that begins with that line is still one when what comes before it is no longer seen. */
function canStart(block, line) {
  return block.type === "table" || startsList(line);
}

/** Appends to the last text node if there is one, so that a thousand pieces do not become a thousand nodes. */
function appendText(host, text) {
  if (host.lastChild?.nodeType === Node.TEXT_NODE) host.lastChild.appendData(text);
  else host.append(text);
}

/** Draws a whole text into `host`. */
export function renderMarkdown(text, host) {
  const stream = new MarkdownStream(host);
  stream.push(text);
  stream.end();
}

/** Tabs in the indentation, widened to the next multiple of four. */
function expandTabs(line) {
  if (!/^ *\t/.test(line)) return line;
  let column = 0;
  let i = 0;
  for (; line[i] === " " || line[i] === "\t"; i++) column += line[i] === "\t" ? 4 - (column % 4) : 1;
  return " ".repeat(column) + line.slice(i);
}

function indentation(line) {
  let i = 0;
  while (line[i] === " ") i += 1;
  return i;
}

function stripIndent(line, width) {
  return line.slice(Math.min(width, indentation(line)));
}

function isBlank(line) {
  return line.trim() === "";
}

function closesFence(line, mark, length) {
  const text = line.trim();
  return text.length >= length && indentation(line) < 4 && text === mark.repeat(text.length);
}

/** Three or more of one of `-*_`, with nothing but spaces between. */
function isRule(line) {
  if (indentation(line) > 3) return false;
  const text = line.replaceAll(" ", "").replaceAll("\t", "");
  return text.length >= 3 && "-*_".includes(text[0]) && text === text[0].repeat(text.length);
}

/** Whether a line starts a list. A bare "42." is an answer and no list. */
function startsList(line) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length < 4 && item[3] !== "";
}

/** Whether a line starts a block of its own even right after a paragraph's line. */
function interrupts(line) {
  if (startsList(line) && /^ *(?:[-+*]|1[.)])\s/.test(line)) return true;
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line);
}

/** Cells of a table's row. */
function splitRow(line) {
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  const cells = [];
  let cell = "";
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      i += 1;
    } else if (text[i] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else cell += text[i];
  }
  if (cell.trim() !== "") cells.push(cell.trim());
  return cells;
}

/** Alignments of a table whose header is `header` and whose second line is `line`; null if it is none. */
function tableColumns(header, line) {
  if (line === undefined || !header.includes("|") || !/^[ |:-]+$/.test(line)) return null;
  const cells = splitRow(line);
  if (cells.length === 0 || cells.length > COLUMNS_MAX || !cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  if (splitRow(header).length !== cells.length) return null;
  return cells.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : "start"));
}

/** Blocks of `lines`; each says at which line it starts. */
function parseBlocks(lines, depth) {
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    if (isBlank(lines[i])) {
      i += 1;
      continue;
    }
    const block = parseBlock(lines, i, depth);
    block.start = i;
    blocks.push(block);
    i = block.end;
  }
  return blocks;
}

function parseBlock(lines, i, depth) {
  const line = lines[i];
  const fence = FENCE.exec(line);
  if (fence) return parseFence(lines, i, fence);
  const heading = HEADING.exec(line);
  if (heading) return { type: "heading", level: heading[1].length, text: trimHashes(heading[2] ?? ""), end: i + 1 };
  if (isRule(line)) return { type: "rule", end: i + 1 };
  if (depth < DEPTH_MAX && QUOTE.test(line)) return parseQuote(lines, i, depth);
  if (depth < DEPTH_MAX && startsList(line)) return parseList(lines, i, depth);
  if (indentation(line) >= 4) return parseIndented(lines, i);
  const columns = tableColumns(line, lines[i + 1]);
  if (columns) return parseTable(lines, i, columns);
  return parseParagraph(lines, i);
}

/** A heading's text without closing `#`. */
function trimHashes(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end -= 1;
  const isClosed = end === 0 || text[end - 1] === " ";
  return (isClosed ? text.slice(0, end) : text).trim();
}

function parseFence(lines, i, fence) {
  const mark = fence[1][0];
  const indent = indentation(lines[i]);
  let end = i + 1;
  while (end < lines.length && !closesFence(lines[end], mark, fence[1].length)) end += 1;
  const isClosed = end < lines.length;
  return {
    type: "fence",
    isFenced: true,
    mark,
    indent,
    length: fence[1].length,
    language: fence[2].trim().split(/\s/, 1)[0].slice(0, 40),
    lines: lines.slice(i + 1, end).map((line) => stripIndent(line, indent)),
    isClosed,
    end: isClosed ? end + 1 : end,
  };
}

function parseQuote(lines, i, depth) {
  const inner = [];
  let end = i;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    else if (isBlank(line) || interrupts(line) || isBlank(inner[inner.length - 1])) break;
    else inner.push(line);
  }
  return { type: "quote", blocks: parseBlocks(inner, depth + 1), end };
}

function parseList(lines, i, depth) {
  const first = ITEM.exec(lines[i]);
  const isOrdered = first[2].length > 1;
  const kind = first[2].at(-1);
  const parts = [];
  let inner = null;
  let width = 0;
  let least = 0;
  let end = i;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const indent = indentation(line);
    const isAfterBlank = end > i && isBlank(lines[end - 1]);
    if (isBlank(line)) {
      inner.push("");
      continue;
    }
    if (inner !== null && indent >= least) {
      inner.push(stripIndent(line, width));
      continue;
    }
    const item = ITEM.exec(line);
    if (item && item[2].at(-1) === kind && !isRule(line)) {
      const padding = item[3].length > 4 ? 1 : item[3].length;
      width = item[1].length + item[2].length + Math.max(padding, 1);
      // Two spaces are enough to belong to an item, also under "1. ": models indent that way.
      least = Math.min(width, item[1].length + 2);
      inner = [line.slice(Math.min(width, line.length))];
      parts.push({ start: end, lines: inner });
    } else if (!isAfterBlank && !interrupts(line)) inner.push(line);
    else break;
  }
  // A blank line at the end does not belong to the list, but nothing is lost by having read it.
  for (const part of parts) part.blocks = parseBlocks(part.lines, depth + 1);
  const startNumber = isOrdered ? Number.parseInt(first[2], 10) : 1;
  return { type: "list", isOrdered, startNumber, parts, end };
}

function parseIndented(lines, i) {
  let end = i;
  let last = i;
  for (; end < lines.length && (isBlank(lines[end]) || indentation(lines[end]) >= 4); end++) {
    if (!isBlank(lines[end])) last = end;
  }
  const code = lines.slice(i, last + 1).map((line) => stripIndent(line, 4));
  return { type: "fence", language: "", lines: code, end: last + 1 };
}

function parseTable(lines, i, columns) {
  const parts = [];
  let end = i + 2;
  for (; end < lines.length && !isBlank(lines[end]) && !interrupts(lines[end]); end++) {
    parts.push({ start: end, cells: splitRow(lines[end]) });
  }
  return { type: "table", columns, header: splitRow(lines[i]), parts, end };
}

function parseParagraph(lines, i) {
  let end = i + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines[end])) {
    if (tableColumns(lines[end], lines[end + 1])) break;
    end += 1;
  }
  return { type: "paragraph", text: lines.slice(i, end).map((line) => line.trimStart()).join("\n"), end };
}

/** The element of a block. `headings` holds the levels of the headings that enclose it. */
function renderBlock(block, headings) {
  if (block.type === "fence") return renderCode(block);
  if (block.type === "heading") return renderHeading(block, headings);
  if (block.type === "rule") return el("hr");
  if (block.type === "table") return renderTable(block);
  if (block.type === "list") return renderList(block, headings);
  if (block.type === "quote") return renderChildren(el("blockquote"), block.blocks, headings);
  const paragraph = el("p");
  renderInline(block.text.trimEnd(), paragraph);
  return paragraph;
}

function renderChildren(parent, blocks, headings) {
  for (const block of blocks) parent.append(renderBlock(block, headings));
  return parent;
}

/** A heading one level below the one that encloses it (a message's own is the second), so that none is skipped. */
function renderHeading({ level, text }, headings) {
  while (headings.length > 0 && headings[headings.length - 1] >= level) headings.pop();
  headings.push(level);
  const heading = el(`h${Math.min(headings.length + 2, 6)}`, { class: `heading-${Math.min(level, 4)}` });
  renderInline(text, heading);
  return heading;
}

function renderList(block, headings) {
  const { isOrdered, startNumber, parts } = block;
  const list = el(isOrdered ? "ol" : "ul", { start: isOrdered && startNumber !== 1 ? startNumber : null });
  for (const part of parts) list.append(renderPart(block, part, headings));
  return list;
}

/** An item of a list or a row of a table. */
function renderPart({ type, columns }, part, headings) {
  if (type === "table") return renderRow("td", part.cells, columns);
  // Headings within an item count for themselves.
  return renderChildren(el("li"), taskMarks(part.blocks), [...headings]);
}

/** `[ ]` and `[x]` at the start of an item, as characters. */
function taskMarks(blocks) {
  const text = blocks[0]?.type === "paragraph" ? blocks[0].text : "";
  const mark = /^\[([ xX])\] /.exec(text);
  if (!mark) return blocks;
  return [{ ...blocks[0], text: `${mark[1] === " " ? "☐" : "☑"} ${text.slice(4)}` }, ...blocks.slice(1)];
}

function renderCode({ language, lines }) {
  const name = language === "" ? "code" : language;
  const code = el("code");
  if (lines.length > 0) code.append(`${lines.join("\n")}\n`);
  const copy = button("Copy", () => copyText(code.textContent, copy), { class: "quiet", "aria-label": `Copy ${name}` });
  // Focusable, so that a wide line can be scrolled by keyboard.
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": `Code: ${name}` }, code);
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, name), copy), pre);
}

function renderTable(block) {
  const { columns, header, parts } = block;
  const body = el("tbody", {}, ...parts.map((part) => renderPart(block, part)));
  const table = el("table", {}, el("thead", {}, renderRow("th", header, columns)), body);
  return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table);
}

function renderRow(tag, cells, columns) {
  const row = el("tr");
  for (const [i, align] of columns.entries()) {
    const cell = el(tag, { class: `align-${align}`, scope: tag === "th" ? "col" : null });
    renderInline(cells[i] ?? "", cell);
    row.append(cell);
  }
  return row;
}
