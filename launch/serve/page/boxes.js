// What one can try: a chat, two sentences, a picture. Each is shown where a model for it is served.

import { call, eventsOf, KeyNeeded, post } from "./api.js";
import { $, counted, duration, figure, keyed, make, percent, say, show, widen } from "./dom.js";
import { sharesOf } from "./plan.js";
import { computedOf, showWho } from "./view.js";

const BOXES = { chat: "decoder", embedding: "encoder", picture: "convnet" };
const MOST_CLASSES = 5;
const END_PX = 80; // from the end of the chat: so near is at it
const LATE_S = 6; // ranks tell what they computed now and then: so long is waited for their word

let latest = { models: [] };
const waiting = new Set(); // functions that look at every new state until they return true
let askForKey = () => {};

/** Brings the boxes in line with a state. */
export function renderBoxes(state) {
  latest = state;
  for (const [box, kind] of Object.entries(BOXES)) {
    const models = state.models.filter((model) => model.kind === kind && model.reads !== "token ids");
    const select = $(`${box}-model`);
    keyed(select, models, (model) => model.name, (model) => new Option(model.name, model.name), () => {});
    show(select.parentElement, models.length > 1);
    show($(box), models.length > 0);
  }
  for (const look of waiting) if (look()) waiting.delete(look);
}

export function startBoxes(onKeyNeeded) {
  askForKey = onKeyNeeded;
  startChat();
  startForm("embedding", compare);
  startForm("picture", classify);
  $("picture-file").addEventListener("change", showPicture);
}

const modelOf = (name) => latest.models.find((model) => model.name === name);

/** Shows who computed an answer as soon as all that have a share have told, or what the plan says. */
function tellWho(area, name, before) {
  const since = performance.now();
  const look = () => {
    const model = modelOf(name);
    const now = computedOf(model);
    const told = before && now && [...sharesOf(model.plan)]
      .every(([device, share]) => !share || now.get(device) > (before.get(device) ?? 0));
    const late = performance.now() - since > 1000 * LATE_S;
    if (told || late || !now) showWho(area, model, before);
    return told || late || !now;
  };
  if (!look()) waiting.add(look);
}

function failed(box, error) {
  if (error instanceof KeyNeeded) askForKey(error);
  say($(`${box}-error`), error.message);
  show($(`${box}-error`), true);
}

// ---- chat

let messages = [];
let running = null;

function startChat() {
  follow();
  $("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) send();
  });
  $("chat-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("chat-form").requestSubmit();
    }
  });
  $("chat-stop").addEventListener("click", () => running?.abort());
  $("chat-clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    $("chat-log").replaceChildren();
    show($("chat-error"), false);
    $("chat-text").focus();
  });
}

function busy(control) {
  running = control;
  const [shown, hidden] = control ? [$("chat-stop"), $("chat-send")] : [$("chat-send"), $("chat-stop")];
  show(shown, true);
  if (document.activeElement === hidden) shown.focus();
  show(hidden, false);
  $("chat-log").setAttribute("aria-busy", String(Boolean(control)));
}

async function send() {
  const name = $("chat-model").value;
  const words = $("chat-text").value.trim();
  if (!words) return;
  show($("chat-error"), false);
  $("chat-text").value = "";
  const question = bubble("user", "You");
  question.body.textContent = words;
  const talk = messages; // a new chat begins another one
  talk.push({ role: "user", content: words });
  const answer = bubble("assistant", name);
  const before = computedOf(modelOf(name));
  const control = new AbortController();
  busy(control);
  const told = progress(answer.note, name);
  try {
    for await (const chunk of answers(name, talk, control.signal)) {
      if (chunk.error) throw new Error(chunk.error.message);
      told.take(chunk);
      const piece = textOf(chunk);
      if (piece) answer.body.append(piece);
    }
    told.end();
  } catch (error) {
    told.end(control.signal.aborted);
    if (!control.signal.aborted) failed("chat", error);
  }
  if (answer.body.textContent) {
    talk.push({ role: "assistant", content: answer.body.textContent });
    tellWho(answer.who, name, before);
  } else { // nothing came: it can be asked again
    talk.pop();
    for (const parts of [question, answer]) parts.entry.remove();
    if (talk === messages) $("chat-text").value ||= words;
  }
  if (running === control) busy(null);
}

const textOf = (chunk) => chunk.choices?.[0]?.delta?.content ?? chunk.choices?.[0]?.text ?? "";

/** The chunks of an answer: of a chat, or of a plain completion where the model has no chat template. */
async function* answers(name, talk, signal) {
  const settings = {
    model: name, stream: true, stream_options: { include_usage: true }, max_tokens: Number($("chat-most").value),
  };
  const response = modelOf(name)?.reads === "text"
    ? await post("v1/completions", { ...settings, prompt: talk.at(-1).content }, signal)
    : await post("v1/chat/completions", { ...settings, messages: talk }, signal);
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    yield JSON.parse(data);
  }
}

/** Counts tokens and time of an answer, and says them below it once a second. */
function progress(note, name) {
  const began = performance.now();
  let [tokens, first, ended, done] = [0, null, "", false];
  const seconds = () => (performance.now() - began) / 1000;
  const line = () => {
    const model = modelOf(name);
    const parts = [counted(tokens, "token"), duration(seconds())];
    if (tokens > 1 && seconds() > first) parts.push(`${figure((tokens - 1) / (seconds() - first))} tokens/s`);
    if (first !== null) parts.push(`first after ${duration(first)}`);
    if (!done && model && model.state !== "ready") parts.push(`waiting: ${model.reason ?? model.state}`);
    if (ended) parts.push(ended);
    say(note, parts.join(" · "));
  };
  const timer = setInterval(line, 1000);
  return {
    take(chunk) {
      const choice = chunk.choices?.[0];
      const piece = textOf(chunk);
      if (piece) tokens += 1;
      if (piece && first === null) first = seconds();
      if (choice?.finish_reason === "length") ended = "cut: as many tokens as it may have";
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
    },
    end(stopped = false) {
      clearInterval(timer);
      done = true;
      if (stopped) ended = "stopped";
      line();
    },
  };
}

function bubble(role, name) {
  const entry = make("article", `message ${role}`);
  const parts = { entry, body: make("p", "body"), note: make("p", "quiet"), who: make("div", "who") };
  entry.append(make("h3", "", name), parts.body, parts.note, parts.who);
  $("chat-log").append(entry);
  $("chat-log").scrollTop = $("chat-log").scrollHeight;
  return parts;
}

/** Keeps the end of the chat in view, unless somebody has scrolled up. */
function follow() {
  const log = $("chat-log");
  let atEnd = true;
  log.addEventListener("scroll", () => { atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < END_PX; });
  new MutationObserver(() => { if (atEnd) log.scrollTop = log.scrollHeight; })
    .observe(log, { childList: true, characterData: true, subtree: true });
}

// ---- embeddings and pictures

function startForm(box, ask) {
  const form = $(`${box}-form`);
  const button = form.querySelector("button[type=submit]");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    show($(`${box}-error`), false);
    button.disabled = true;
    const name = $(`${box}-model`).value;
    const before = computedOf(modelOf(name));
    const began = performance.now();
    try {
      const entries = await ask(name);
      const area = $(`${box}-answer`);
      area.replaceChildren(...entries);
      const who = make("div", "who");
      area.append(make("p", "quiet", `answered in ${duration((performance.now() - began) / 1000)}`), who);
      tellWho(who, name, before);
    } catch (error) {
      failed(box, error);
    }
    button.disabled = false;
  });
}

async function compare(model) {
  const input = [$("first-text").value, $("second-text").value];
  let answer;
  try {
    answer = await post("v1/embeddings", { model, input });
  } catch (error) {
    if (!/classifier/.test(error.message)) throw error;
    return classifyTexts(model, input);
  }
  const { data } = await answer.json();
  const [first, second] = data.map((entry) => entry.embedding);
  const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
  const cosine = dot(first, second) / Math.sqrt(dot(first, first) * dot(second, second));
  const scale = make("p", "quiet", "Cosine similarity: 1 is the same, 0 is unrelated.");
  return [make("p", "big", cosine.toFixed(3)), gauge(cosine), scale];
}

/** What a classifier, which embeds nothing, says of both texts. */
async function classifyTexts(model, input) {
  const { data } = await (await post("v1/classifications", { model, input })).json();
  return data.flatMap(({ label, scores }, index) =>
    [make("p", "quiet", input[index]), ...classLine({ label, score: Math.max(...scores) })]);
}

async function classify(model) {
  const body = new FormData();
  body.append("model", model);
  body.append("file", $("picture-file").files[0]);
  const { data } = await (await call("v1/classifications", { method: "POST", body })).json();
  return (data[0].top5 ?? data[0].boxes ?? [data[0]]).slice(0, MOST_CLASSES).flatMap(classLine);
}

function classLine({ label, score }) {
  const line = make("p", "class", String(label));
  line.append(make("span", "", percent(score)));
  return [line, gauge(score)];
}

function gauge(part) {
  const meter = make("div", "meter");
  meter.append(make("span"));
  widen(meter.firstChild, 100 * part);
  return meter;
}

async function showPicture() {
  const [file] = $("picture-file").files;
  const view = $("picture-view");
  show(view, false);
  if (!file) return;
  try {
    const picture = await createImageBitmap(file);
    const scale = Math.min(1, 480 / picture.width, 240 / picture.height);
    [view.width, view.height] = [picture.width * scale, picture.height * scale].map(Math.round);
    view.getContext("2d").drawImage(picture, 0, 0, view.width, view.height);
    view.setAttribute("aria-label", `The chosen picture, ${file.name}`);
    show(view, true);
  } catch {
    // No picture that this browser can draw: the service says what is wrong with it.
  }
}
