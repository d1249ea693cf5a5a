// The live page: hears the service's state, and shows it at most once a second.

import { call, eventsOf, keepKey, KeyNeeded } from "./api.js";
import { renderBoxes, startBoxes } from "./boxes.js";
import { $, mark, say, show } from "./dom.js";
import { render } from "./view.js";

const RENDER_MS = 1000;
const SILENT_MS = 6000; // the service speaks every second
const WAITS_S = [1, 2, 4, 8]; // before the connection is tried again

let latest = null;
let shownAt = -Infinity;
let timer = 0;
let control = null; // of the connection

function take(state) {
  latest = state;
  timer ||= setTimeout(draw, Math.max(0, shownAt + RENDER_MS - performance.now()));
}

function draw() {
  timer = 0;
  shownAt = performance.now();
  render(latest);
  renderBoxes(latest);
}

function connection(state, words) {
  mark($("connection"), "state", state);
  say($("connection"), words);
  document.body.classList.toggle("stale", state === "lost");
}

/** Hears the service until the page is hidden; when the connection is lost, it is tried again and again. */
async function listen() {
  const own = new AbortController();
  control = own;
  for (let attempt = 0; !own.signal.aborted; attempt += 1) {
    try {
      await hear(own, () => { attempt = 0; });
    } catch (error) {
      if (own.signal.aborted) return;
      if (error instanceof KeyNeeded) return askForKey(error);
    }
    if (own.signal.aborted) return;
    await countDown(WAITS_S[Math.min(attempt, WAITS_S.length - 1)], own.signal);
  }
}

/** Takes states until the stream ends, or nothing comes any more. */
async function hear(own, onState) {
  const attempt = new AbortController();
  const stop = () => attempt.abort();
  own.signal.addEventListener("abort", stop);
  let watch = setTimeout(stop, SILENT_MS);
  try {
    const response = await call("events", { signal: attempt.signal });
    for await (const data of eventsOf(response)) {
      clearTimeout(watch);
      watch = setTimeout(stop, SILENT_MS);
      take(JSON.parse(data));
      connection("live", "Live");
      onState();
    }
  } finally {
    clearTimeout(watch);
    own.signal.removeEventListener("abort", stop);
  }
}

async function countDown(seconds, signal) {
  connection("lost", latest ? "Connection lost. What is shown is old. Trying again …" : "The service does not answer. Trying again …");
  await new Promise((resolve) => {
    const wait = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => { clearTimeout(wait); resolve(); }, { once: true });
  });
}

// ---- the key

function askForKey(error) {
  control?.abort();
  connection("lost", "A key is needed");
  say($("key-error"), "The service does not take this key.");
  show($("key-error"), error.refused);
  show($("key-form"), true);
  $("key").focus();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key").value);
  $("key").value = "";
  show($("key-form"), false);
  connection("waiting", "Connecting …");
  listen();
});

// A page that nobody sees costs the service nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) control?.abort();
  else if ($("key-form").hidden) listen();
});

startBoxes(askForKey);
listen();
