// Building and finding elements. Text enters the document as text only: nothing here parses HTML.

/** The element of that id. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Creates an element. A property that starts with "on" is a listener, `class` and all others are
 * attributes; `true` sets an empty attribute, `false`, `null` and `undefined` none. Children are nodes or text.
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button that does not submit. */
export function button(label, onclick, properties = {}) {
  return el("button", { type: "button", onclick, ...properties }, label);
}

/** Replaces what a box holds. Whoever was on one of its controls is then on the new one of the same name. */
export function redraw(box, children) {
  const name = (control) => control.getAttribute("aria-label") ?? control.textContent;
  const focused = box.contains(document.activeElement) ? name(document.activeElement) : null;
  box.replaceChildren(...children.filter(Boolean));
  if (focused === null) return;
  const same = [...box.querySelectorAll("button, summary")].find((control) => name(control) === focused);
  same?.focus({ preventScroll: true });
}

/** Says something to a screen reader, politely and once. */
export function announce(text) {
  const region = byId("announcer");
  // The same words twice are only spoken twice if the node is new.
  region.replaceChildren(el("p", {}, text));
}

/** Copies text; `target` is the button that then says so. */
export async function copyText(text, target) {
  const done = await writeClipboard(text);
  announce(done ? "Copied" : "The browser did not allow copying");
  if (target.dataset.label === undefined) target.dataset.label = target.textContent;
  target.textContent = done ? "Copied" : "Not allowed";
  clearTimeout(Number(target.dataset.timer));
  const back = () => {
    target.textContent = target.dataset.label;
  };
  target.dataset.timer = String(setTimeout(back, 1600));
}

async function writeClipboard(text) {
  // The clipboard object exists on https and on localhost only; a plain address in a LAN has the old way.
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Refused by a permission: the old way may still be allowed.
    }
  }
  const focused = document.activeElement;
  const holder = el("textarea", { class: "visually-hidden", "aria-hidden": "true", tabindex: "-1" });
  holder.value = text;
  document.body.append(holder);
  holder.select();
  const done = document.execCommand("copy");
  holder.remove();
  focused?.focus({ preventScroll: true });
  return done;
}

/** Makes a text area as high as its text; the stylesheet bounds it. */
export function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

const integer = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 12345 as "12,345". */
export function count(value) {
  return integer.format(value);
}

/** "1 token", "2 tokens". */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A duration for people: "85 ms", "1.2 s", "3 min 5 s". */
export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** A speed for people: three figures are enough. */
export function rate(perSecond) {
  return `${perSecond < 100 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;
}
