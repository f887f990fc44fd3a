// The page's course of events: sending, streaming, stopping, branching, and what each shows.

import { countTokens, RequestError, streamReply } from "./api.js";
import { Conversation } from "./conversation.js";
import { announce, byId, count, fitHeight } from "./dom.js";
import { Health } from "./health.js";
import { cleanMeasures, measuresOf } from "./measures.js";
import { ToolView, UserView } from "./messages.js";
import { ReplyView } from "./reply.js";
import { Settings } from "./settings.js";
import { loadConversation, loadDraft, onConversationChange, saveConversation, saveDraft } from "./store.js";
import { connectTransfer } from "./transfer.js";

const VIEWS = { user: UserView, assistant: ReplyView, tool: ToolView };
/** How near the end of the page counts as being there, in pixels. */
const END_MARGIN = 80;
/** Longest reply that is read out whole, in UTF-16 units. */
const SPOKEN_MAX = 2000;

let conversation = loadConversation();
/** Views of the messages that are shown, by node. */
let views = new Map();
/** The reply that is running: {node, view, controller}. */
let running = null;
let followsEnd = true;
let countTimer = 0;
/** Whether the page is about to go away. */
let isLeaving = false;
/** Tokens of the next prompt as counted by the server, or null. */
let counted = null;

const message = byId("message");
const settings = new Settings(() => countSoon());
const health = new Health(() => settings.key, showContext);

const actions = {
  isBusy: () => running !== null,
  drawn: () => followsEnd && scrollToEnd(),
  edit(node, text) {
    if (running) return;
    const branch = conversation.add(node.parent, { role: "user", content: text });
    reply(branch.id);
  },
  regenerate(node) {
    if (!running) reply(node.parent);
  },
  retry(node) {
    if (running) return;
    const isEmpty = node.content === "" && node.reasoning === "" && node.toolCalls.length === 0;
    if (isEmpty) conversation.remove(node.id);
    reply(node.parent);
  },
  answer(node, results) {
    const branch = conversation.add(node.id, { role: "tool", results });
    reply(branch.id);
  },
  answerAgain(node) {
    conversation.deselect(node.parent);
    show();
    views.get(node.parent).element.querySelector("textarea")?.focus();
  },
  switchBranch(id, by) {
    if (running) return;
    conversation.select(id);
    show();
    keep();
    const { ids, index } = conversation.siblings(id);
    announce(`Branch ${index + 1} of ${ids.length}`);
    const { element, heading } = views.get(id);
    const step = element.querySelector(`button[data-step="${by}"]:enabled`) ?? element.querySelector("button[data-step]:enabled");
    (step ?? heading).focus();
  },
};

// What is shown.

/** Brings the page in line with the conversation's path; messages that stay are left as they are. */
function show() {
  const path = conversation.path();
  const list = byId("messages");
  const wanted = new Set(path.map((node) => node.id));
  for (const [id, view] of views) {
    if (wanted.has(id)) continue;
    view.element.remove();
    views.delete(id);
  }
  for (const node of path) {
    let view = views.get(node.id);
    if (view === undefined) {
      view = new VIEWS[node.role](node, conversation, actions);
      views.set(node.id, view);
      list.append(view.element);
    } else view.refresh();
  }
  list.hidden = path.length === 0;
  byId("empty").hidden = path.length > 0;
  byId("clear").disabled = conversation.isEmpty || running !== null;
  showContext();
  countSoon();
}

function replaceConversation(other) {
  conversation = other;
  for (const view of views.values()) view.element.remove();
  views = new Map();
  counted = null;
  show();
}

function keep() {
  if (saveConversation(conversation)) return;
  notify("The conversation is too long to be kept in this browser. Export it in the settings.");
}

let undo = null;

/** Shows a line above the message box; with `undoing`, one may take back what it tells. */
function notify(text, undoing = null) {
  undo = undoing;
  byId("notice-text").textContent = text;
  byId("notice-action").hidden = undoing === null;
  byId("notice").hidden = text === "";
  if (text !== "") announce(text);
}

function showContext() {
  const total = health.context;
  const last = conversation.path().findLast((node) => node.usage);
  const used = counted ?? (last ? last.usage.prompt_tokens + last.usage.completion_tokens : null);
  byId("context").hidden = total === null || used === null;
  if (total === null || used === null) return;
  const bar = byId("context-bar");
  bar.max = total;
  bar.value = Math.min(used, total);
  bar.dataset.level = used > total ? "over" : used > 0.85 * total ? "high" : "";
  byId("context-text").textContent = `${count(used)} of ${count(total)}`;
  byId("context-share").textContent = `${Math.round((100 * used) / total)} %`;
  bar.setAttribute("aria-valuetext", `${count(used)} of ${count(total)} tokens of context`);
}

/** Counts the prompt that the draft would make, once typing pauses. */
function countSoon() {
  clearTimeout(countTimer);
  counted = null;
  const draft = message.value;
  if (draft.trim() === "" || running || health.latest?.status !== "ready") return;
  countTimer = setTimeout(async () => {
    const path = conversation.path();
    const messages = conversation.messages(path.at(-1)?.id ?? "root", settings.values.system);
    messages.push({ role: "user", content: draft });
    const body = settings.promptBody(messages, health.model);
    const found = await countTokens({ ...body, ...body.chat_template_kwargs }, { key: settings.key });
    if (message.value !== draft || running) return;
    counted = found;
    showContext();
  }, 500);
}

function isAtEnd() {
  const { scrollHeight } = document.documentElement;
  return scrollHeight - innerHeight - scrollY < END_MARGIN;
}

function scrollToEnd() {
  followsEnd = true;
  scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}

// A reply.

async function reply(parent) {
  const node = conversation.add(parent, {
    role: "assistant",
    state: "streaming",
    content: "",
    reasoning: "",
    toolCalls: [],
    error: null,
    ...cleanMeasures({}),
  });
  const controller = new AbortController();
  running = { node, controller, view: null, started: performance.now(), thinkingFrom: null };
  notify("");
  show();
  running.view = views.get(node.id);
  showRunning();
  scrollToEnd();
  keep();
  announce("Waiting for the reply");
  const run = running;
  try {
    const messages = conversation.messages(parent, settings.values.system);
    const body = settings.chatBody(messages, health.model);
    for await (const event of streamReply(body, { key: settings.key, signal: controller.signal })) receive(run, event);
    node.state = "done";
  } catch (error) {
    fail(node, controller.signal, error);
  }
  endThinking(run);
  running = null;
  run.view.end();
  show();
  showRunning();
  keep();
  actions.drawn();
  speakEnd(node, run.view);
  health.refresh();
  if (node.status === 401) askKey(node);
}

function receive(run, event) {
  const { node, view } = run;
  if (event.type === "prefill") return view.prefill(event.done, event.total);
  if (event.type === "usage") return Object.assign(node, measuresOf(event), { firstToken: node.firstToken, thinkingSeconds: node.thinkingSeconds, finish: node.finish });
  if (event.type === "finish") {
    node.finish = event.reason;
    return undefined;
  }
  node.firstToken ??= (performance.now() - run.started) / 1000;
  if (event.type === "reasoning") {
    if (run.thinkingFrom === null) announce("Thinking");
    run.thinkingFrom ??= performance.now();
    node.reasoning += event.text;
    return view.addReasoning(event.text);
  }
  endThinking(run);
  if (event.type === "content") {
    if (node.content === "") announce("Writing");
    node.content += event.text;
    return view.addContent(event.text);
  }
  const call = (node.toolCalls[event.index] ??= { id: "", name: "", arguments: "" });
  call.id ||= event.id;
  call.name += event.name;
  call.arguments += event.arguments;
  return view.updateCalls();
}

function endThinking(run) {
  if (run.thinkingFrom === null || run.node.thinkingSeconds !== null) return;
  run.node.thinkingSeconds = (performance.now() - run.thinkingFrom) / 1000;
}

function fail(node, signal, error) {
  // A page that goes away breaks off its requests; nobody did anything wrong.
  if (signal.aborted || isLeaving) {
    node.state = "stopped";
    return;
  }
  if (!(error instanceof RequestError)) console.error(error);
  node.state = "failed";
  node.error = error.message;
  node.status = error.status;
  if (error.retryAfter) node.retryAt = Date.now() + 1000 * error.retryAfter;
}

function speakEnd(node, view) {
  if (node.state === "failed") announce(`The reply failed. ${node.error}`);
  else if (node.state === "stopped") announce("Stopped");
  else if (node.toolCalls.length > 0) announce(`The model calls ${node.toolCalls.map((call) => call.name).join(", ")}. Enter the result.`);
  else announce(`Reply finished. ${view.content.innerText.slice(0, SPOKEN_MAX)}`);
}

function showRunning() {
  const isRunning = running !== null;
  const stop = byId("stop");
  const send = byId("send");
  // Who used the keyboard stays on a control; who used a finger is not shown a keyboard.
  const stopHadFocus = stop.matches(":focus-visible");
  const sendHadFocus = document.activeElement === send || document.activeElement === document.body;
  stop.hidden = !isRunning;
  send.hidden = isRunning;
  document.documentElement.dataset.running = isRunning;
  if (isRunning && sendHadFocus) stop.focus({ preventScroll: true });
  if (!isRunning && stopHadFocus) message.focus({ preventScroll: true });
}

function send() {
  const text = message.value;
  if (text.trim() === "" || running) return;
  const leaf = conversation.path().at(-1);
  const node = conversation.add(leaf?.id ?? "root", { role: "user", content: text });
  message.value = "";
  saveDraft("");
  fitHeight(message);
  reply(node.id);
}

let refused = null;

function askKey(node) {
  refused = node;
  byId("key-reason").textContent = settings.key === "" ? "The server asks for a key. It is kept until this tab is closed." : "The server refused this key.";
  byId("key-input").value = "";
  byId("key-dialog").showModal();
}

// Events.

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
message.addEventListener("input", () => {
  fitHeight(message);
  saveDraft(message.value);
  countSoon();
});
byId("stop").addEventListener("click", () => running?.controller.abort());
addEventListener("keydown", (event) => {
  const isElsewhere = document.querySelector("dialog[open], [popover]:popover-open") !== null;
  if (event.key === "Escape" && running && !isElsewhere) running.controller.abort();
});
byId("jump").addEventListener("click", scrollToEnd);
addEventListener(
  "scroll",
  () => {
    followsEnd = isAtEnd();
    byId("jump").hidden = followsEnd;
  },
  { passive: true },
);
byId("settings-open").addEventListener("click", () => settings.open());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  settings.setKey(byId("key-input").value);
  byId("key-dialog").close();
  actions.retry(refused);
});
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("clear").addEventListener("click", () => replaceWithUndo(new Conversation(), "The conversation is cleared."));
byId("notice-action").addEventListener("click", () => {
  undo?.();
  notify("");
  message.focus();
});
byId("notice-close").addEventListener("click", () => {
  notify("");
  message.focus();
});

function replaceWithUndo(other, text) {
  const before = conversation;
  const put = (what) => {
    replaceConversation(what);
    keep();
  };
  put(other);
  notify(text, before.isEmpty ? null : () => put(before));
  message.focus({ preventScroll: true });
}

connectTransfer({
  conversation: () => conversation,
  imported(other) {
    settings.dialog.close();
    replaceWithUndo(other, "The conversation is imported.");
  },
  failed: (reason) => {
    settings.dialog.close();
    notify(`The file was not imported: ${reason}.`);
  },
  isBusy: actions.isBusy,
});
onConversationChange(() => {
  if (!running) replaceConversation(loadConversation());
});
// What has streamed in so far is kept when the page goes away in the middle of a reply.
addEventListener("pagehide", () => {
  isLeaving = true;
  if (running) saveConversation(conversation);
});
addEventListener("pageshow", () => {
  isLeaving = false;
});
addEventListener("beforeunload", () => {
  isLeaving = true;
  // Still here: the user stayed, or it was a download.
  setTimeout(() => (isLeaving = false), 1000);
});

message.value = loadDraft();
fitHeight(message);
show();
scrollToEnd();
