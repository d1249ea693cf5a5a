// Small helpers for the document. All that comes from outside is set as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Sets a node's text where it is another one. */
export function say(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Sets a data attribute where it is another one; style sheets read them. */
export function mark(node, name, value) {
  if (node.dataset[name] !== String(value)) node.dataset[name] = String(value);
}

/** Sets a length of a bar, in percent. */
export function widen(node, percent) {
  const width = `${Math.max(0, Math.min(100, percent)).toFixed(1)}%`;
  if (node.style.width !== width) node.style.width = width;
}

export function make(tag, className = "", words = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (words) node.textContent = words;
  return node;
}

export const clone = (id) => $(id).content.firstElementChild.cloneNode(true);

const kept = new WeakMap();

/** Brings a parent's children in line with a list: nodes stay those of their keys, and only what is new is made. */
export function keyed(parent, items, keyOf, build, update) {
  const before = kept.get(parent) ?? new Map();
  const now = new Map();
  items.forEach((item, index) => {
    const key = String(keyOf(item, index));
    const node = before.get(key) ?? build(item);
    now.set(key, node);
    update(node, item);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
  for (const [key, node] of before) if (!now.has(key)) node.remove();
  kept.set(parent, now);
}

/** A term and what it is: a row of a list of facts, made or changed in place. */
export function facts(list, entries) {
  keyed(list, entries, ([term]) => term, () => {
    const row = make("div");
    row.append(make("dt"), make("dd"));
    return row;
  }, (row, [term, words]) => {
    say(row.firstChild, term);
    say(row.lastChild, words);
  });
}

// Numbers with their units.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const tight = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A number where there is little room: 26.3K. */
export const compact = (number) => (number < 10_000 ? count(number) : tight.format(number));
export const count = (number) => whole.format(number);
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const percent = (part) => `${count(100 * part)} %`;
export const figure = (number) => (Math.abs(number) >= 100 ? count(number) : short.format(number));

export function duration(seconds) {
  if (seconds < 1) return `${count(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${count(Math.floor(seconds / 60))} min ${count(seconds % 60)} s`;
  return `${count(Math.floor(seconds / 3600))} h ${count(Math.floor((seconds % 3600) / 60))} min`;
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) [number, unit] = [number / 1024, unit + 1];
  return `${figure(number)} ${units[unit]}`;
}

/** A part of bytes, in the unit of all: 2.5 of 4 GiB. */
export function bytesOf(part, all) {
  const [number, unit] = bytes(all).split(" ");
  const scale = all / Number(number.replaceAll(",", ""));
  return `${figure(Number((part / scale).toFixed(2)))} of ${number} ${unit}`;
}

export const clock = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleTimeString("en-GB");
