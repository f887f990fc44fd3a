// A conversation as a tree: each edit and each further reply is a branch, and one path through it is shown.
//!
//! A node is {id, parent, role, ...}. A user's has `content`; an assistant's has `content`, `reasoning`,
//! `toolCalls` ([{id, name, arguments}]), `state` ("streaming", "done", "stopped" or "failed") and what was
//! measured; a tool's has `results` ([{id, content}]), one for each call of its parent.

import { cleanMeasures } from "./measures.js";

const FORMAT = "calla.conversation";
/** More than fit into what a browser keeps, so that what was kept can be read. */
const NODES_MAX = 50_000;
const TEXT_MAX = 4 << 20;
/** Which roles may follow. */
const FOLLOWERS = { root: ["user"], user: ["assistant"], assistant: ["user", "tool"], tool: ["assistant"] };

export class Conversation {
  constructor() {
    this.root = { id: "root", role: "root", children: [], active: null };
    this.nodes = new Map([["root", this.root]]);
  }

  get isEmpty() {
    return this.nodes.size === 1;
  }

  get(id) {
    return this.nodes.get(id);
  }

  /** Adds a node below `parent` and shows it. */
  add(parent, fields) {
    const node = { id: newId(), ...fields, parent, children: [], active: null };
    this.nodes.set(node.id, node);
    const above = this.nodes.get(parent);
    above.children.push(node.id);
    above.active = node.id;
    return node;
  }

  /** Removes a node with all that follows it; a sibling takes its place in the path. */
  remove(id) {
    const node = this.nodes.get(id);
    const above = this.nodes.get(node.parent);
    const place = above.children.indexOf(id);
    above.children.splice(place, 1);
    if (above.active === id) above.active = above.children[Math.max(place - 1, 0)] ?? null;
    for (const each of this.subtree(id)) this.nodes.delete(each);
  }

  subtree(id) {
    const found = [id];
    for (const each of found) found.push(...this.nodes.get(each).children);
    return found;
  }

  /** The nodes that are shown, first to last. */
  path() {
    const path = [];
    for (let id = this.root.active; id !== null; id = this.nodes.get(id).active) path.push(this.nodes.get(id));
    return path;
  }

  /** The nodes from the first to that of `id`. */
  pathTo(id) {
    const path = [];
    for (let at = id; at !== "root"; at = this.nodes.get(at).parent) path.push(this.nodes.get(at));
    return path.reverse();
  }

  /** The alternatives to a node with it: {ids, index}. */
  siblings(id) {
    const { children } = this.nodes.get(this.nodes.get(id).parent);
    return { ids: children, index: children.indexOf(id) };
  }

  /** Shows the branch that goes through that node. */
  select(id) {
    this.nodes.get(this.nodes.get(id).parent).active = id;
  }

  /** Ends the path at that node, so that it can be answered anew. */
  deselect(id) {
    this.nodes.get(id).active = null;
  }

  restore(active) {
    for (const node of this.nodes.values()) node.active = null;
    for (const id of active) if (id !== "root" && this.nodes.has(id)) this.select(id);
    this.root.active ??= this.root.children.at(-1) ?? null;
  }

  /** The messages up to that node, as the API takes them. */
  messages(id, system) {
    const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
    for (const node of this.pathTo(id)) messages.push(...nodeMessages(node));
    return messages;
  }

  toJSON() {
    const nodes = [...this.nodes.values()].filter((node) => node !== this.root);
    return {
      format: FORMAT,
      version: 1,
      nodes: nodes.map(plainNode),
      active: nodes.concat(this.root).map((node) => node.active).filter((id) => id !== null),
    };
  }

  /** The reverse of `toJSON`, of a file or store that nobody vouches for. Throws an `Error` that says what is wrong. */
  static fromJSON(data) {
    if (data?.format !== FORMAT || data.version !== 1) throw new Error(`not a conversation: no "format": "${FORMAT}", "version": 1`);
    if (!Array.isArray(data.nodes) || data.nodes.length > NODES_MAX) throw new Error(`"nodes" is not a list of at most ${NODES_MAX}`);
    const conversation = new Conversation();
    for (const [i, node] of data.nodes.entries()) {
      const fields = cleanNode(node, `nodes[${i}]`);
      const above = conversation.nodes.get(node.parent);
      if (above === undefined) throw new Error(`nodes[${i}].parent is not an earlier node`);
      if (!FOLLOWERS[above.role].includes(fields.role)) throw new Error(`nodes[${i}]: "${fields.role}" cannot follow "${above.role}"`);
      if (conversation.nodes.has(fields.id)) throw new Error(`nodes[${i}].id is there twice`);
      conversation.add(node.parent, fields);
    }
    if (Array.isArray(data.active)) conversation.restore(data.active);
    return conversation;
  }

  /**
   * Drops branches that are not shown, oldest first, until the JSON has at most `limit` characters.
   * Returns it, or null if the path alone is longer.
   */
  fit(limit) {
    let text = JSON.stringify(this);
    if (text.length <= limit) return text;
    const shown = new Set(this.path().map((node) => node.id));
    let excess = text.length - limit;
    for (const node of [...this.nodes.values()]) {
      if (excess <= 0) break;
      if (node === this.root || shown.has(node.id) || !this.nodes.has(node.id)) continue;
      for (const id of this.subtree(node.id)) excess -= JSON.stringify(plainNode(this.nodes.get(id))).length + 1;
      this.remove(node.id);
    }
    text = JSON.stringify(this);
    return text.length <= limit ? text : null;
  }
}

/** A node without its place in the tree, which follows from the parents and `active`. */
function plainNode({ children, active, ...node }) {
  return node;
}

function newId() {
  // Not randomUUID: a plain address in a LAN is not a secure context.
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");
}

function nodeMessages(node) {
  if (node.role === "user") return [{ role: "user", content: node.content }];
  if (node.role === "tool") return node.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
  // A call that was cut short cannot be sent back: its arguments are no JSON.
  const calls = node.toolCalls.filter((call) => parseArguments(call.arguments) !== null);
  if (node.content === "" && node.reasoning === "" && calls.length === 0) return [];
  const message = { role: "assistant", content: node.content };
  if (node.reasoning !== "") message.reasoning_content = node.reasoning;
  if (calls.length > 0) {
    message.tool_calls = calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return [message];
}

/** A tool call's arguments as an object, or null if they are none. */
export function parseArguments(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function cleanNode(node, path) {
  const text = (value, name, limit = TEXT_MAX) => {
    if (typeof value !== "string" || value.length > limit) throw new Error(`${path}.${name} is not text of at most ${limit} characters`);
    return value;
  };
  const list = (value, name) => {
    if (!Array.isArray(value) || value.length > 128) throw new Error(`${path}.${name} is not a list of at most 128`);
    return value;
  };
  const id = text(node?.id, "id", 64);
  if (id === "root" || !/^[\w-]+$/.test(id)) throw new Error(`${path}.id is not made of letters, digits, "-" and "_"`);
  if (node.role === "user") return { id, role: "user", content: text(node.content, "content") };
  if (node.role === "tool") {
    const results = list(node.results, "results").map((result) => ({
      id: text(result?.id, "results.id", 256),
      content: text(result.content, "results.content"),
    }));
    return { id, role: "tool", results };
  }
  if (node.role !== "assistant") throw new Error(`${path}.role is not "user", "assistant" or "tool"`);
  const state = ["done", "failed"].includes(node.state) ? node.state : "stopped";
  return {
    id,
    role: "assistant",
    state,
    content: text(node.content, "content"),
    reasoning: text(node.reasoning, "reasoning"),
    toolCalls: list(node.toolCalls, "toolCalls").map((call) => ({
      id: text(call?.id, "toolCalls.id", 256),
      name: text(call.name, "toolCalls.name"),
      arguments: text(call.arguments, "toolCalls.arguments"),
    })),
    error: typeof node.error === "string" ? node.error.slice(0, 2000) : null,
    ...cleanMeasures(node),
  };
}
