// What the browser keeps: the conversation and settings for good, the API key and the draft for this tab.

import { Conversation } from "./conversation.js";

/** Longest conversation that is kept, in UTF-16 units; browsers allow about five million. */
const CONVERSATION_MAX = 4_000_000;
const CONVERSATION = "calla.conversation";
const SETTINGS = "calla.settings";
const KEY = "calla.key";
const DRAFT = "calla.draft";

function read(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    // Storage may be forbidden altogether; the page then works without.
    return null;
  }
}

function write(storage, name, value) {
  try {
    if (value === null || value === "") window[storage].removeItem(name);
    else window[storage].setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

/** The kept conversation, or an empty one. */
export function loadConversation() {
  const text = read("localStorage", CONVERSATION);
  if (text === null) return new Conversation();
  try {
    return Conversation.fromJSON(JSON.parse(text));
  } catch (error) {
    console.warn(`the kept conversation cannot be read: ${error.message}`);
    return new Conversation();
  }
}

/** Keeps the conversation; branches that are not shown are dropped where it is too long. False if it was not kept. */
export function saveConversation(conversation) {
  if (conversation.isEmpty) return write("localStorage", CONVERSATION, null);
  const text = conversation.fit(CONVERSATION_MAX);
  return text !== null && write("localStorage", CONVERSATION, text);
}

/** Calls `changed` when another tab has kept a conversation. */
export function onConversationChange(changed) {
  addEventListener("storage", (event) => {
    if (event.storageArea === localStorage && event.key === CONVERSATION) changed();
  });
}

export function loadSettings() {
  try {
    const settings = JSON.parse(read("localStorage", SETTINGS) ?? "{}");
    return settings !== null && typeof settings === "object" ? settings : {};
  } catch {
    return {};
  }
}

export function saveSettings(settings) {
  return write("localStorage", SETTINGS, JSON.stringify(settings));
}

export function loadKey() {
  return read("sessionStorage", KEY) ?? "";
}

export function saveKey(key) {
  return write("sessionStorage", KEY, key);
}

export function loadDraft() {
  return read("sessionStorage", DRAFT) ?? "";
}

export function saveDraft(text) {
  return write("sessionStorage", DRAFT, text);
}
