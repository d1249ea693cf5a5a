// The state of the service as cards, bars and lists; everything is changed in place.

import { $, bytes, bytesOf, clock, clone, compact, count, counted, duration, facts, figure, keyed, make, mark, percent, say, show, widen }
  from "./dom.js";
import { partWords, rowsOf, sharesOf, total } from "./plan.js";
import { note, rate } from "./rates.js";

const TINTS = 6; // shades of the accent, as many as the style sheet has
const DENSE = 10; // rows of a plan from which on they are drawn thin
const MOST_REPLANS = 3; // that are shown
const HOT_C = 80; // where a Raspberry Pi begins to throttle

const tints = new Map();
const changedAt = new Map(); // model -> its plan as text, and when it came

/** Shows a whole state. */
export function render(state) {
  const lost = new Set(state.boards.filter((board) => !board.alive).map((board) => board.name));
  const devices = state.models.flatMap((model) => model.plan?.devices ?? []);
  const boards = state.boards.map((board) => board.name);
  for (const name of [...boards.filter((board) => devices.includes(board)), ...devices]) {
    if (!tints.has(name)) tints.set(name, tints.size % TINTS);
  }
  for (const model of state.models) {
    note(model.name, { tokens: model.tokens ?? 0, requests: model.requests ?? 0 });
    for (const rank of model.ranks ?? []) note(rankKey(model, rank), countersOf(rank));
  }
  say($("version"), state.version);
  summary(state, lost);
  keyed($("boards"), state.boards, (board) => board.name, () => clone("board-template"), (card, board) => showBoard(card, board, state));
  show($("no-boards"), !state.boards.length);
  keyed($("models"), state.models, (model) => model.name, () => clone("model-template"), (panel, model) => showModel(panel, model, state, lost));
  showRequests(state.requests ?? []);
  showEvents(state.events);
}

/** The board that a rank, or a device of a plan, is on: its own, unless the model names those of its ranks. */
const boardOf = (model, rank, device) => model.boards?.[rank] ?? device;

/** The devices of a model's plan whose boards are lost. */
const lostDevices = (model, lost) =>
  new Set((model.plan?.devices ?? []).filter((device, rank) => lost.has(boardOf(model, rank, device))));

const rankKey = (model, rank) => `${model.name} ${rank.rank}`;

function countersOf(rank) {
  const counters = {};
  for (const name of ["compute_s", "wait_s", "sent_bytes"]) if (typeof rank[name] === "number") counters[name] = rank[name];
  return counters;
}

function summary(state, lost) {
  const ready = state.models.filter((model) => model.state === "ready").length;
  say($("sum-boards"), lost.size ? `${state.boards.length - lost.size} of ${state.boards.length} alive` : `${state.boards.length} alive`);
  mark($("sum-boards"), "state", lost.size ? "lost" : "");
  say($("sum-models"), `${ready} of ${state.models.length} ready`);
  say($("sum-requests"), counted((state.requests ?? []).length, "request"));
  const unit = state.models.some((model) => model.kind === "decoder") ? "tokens" : "requests";
  const speed = state.models.reduce((sum, model) => sum + (rate(model.name, unit) ?? 0), 0);
  // Right after a loss nothing is counted yet.
  say($("sum-speed"), !speed && state.requests?.length ? "–" : `${figure(speed)} ${unit}/s`);
}

// ---- boards

function showBoard(card, board, state) {
  mark(card, "state", board.alive ? "alive" : "lost");
  paint(card.querySelector(".swatch"), board.name);
  show(card.querySelector(".swatch"), tints.has(board.name) || !board.alive);
  say(card.querySelector(".name"), board.name);
  say(card.querySelector(".seen"), seenWords(board));
  const badge = card.querySelector(".badge");
  show(badge, Boolean(board.throttled) && board.alive);
  say(badge, "Throttled: it is too hot, or has too little power");
  keyed(card.querySelector(".facts"), factsOf(board, state), ({ key }) => key, () => clone("fact-template"), showFact);
}

function seenWords(board) {
  if (typeof board.seen_s !== "number") return "not heard of yet";
  const words = board.seen_s < 1 ? `${board.seen_s.toFixed(1)} s` : duration(board.seen_s);
  return board.alive ? `heard ${words} ago` : `Lost: silent for ${words}`;
}

const ranksOn = (board, model) => (model.ranks ?? []).filter((rank) => boardOf(model, rank.rank, rank.device) === board.name);

/** A board's share of a model, of all its devices together; null where the plan has none of them. */
function shareOn(board, model) {
  const own = [...sharesOf(model.plan)].filter(([device], rank) => boardOf(model, rank, device) === board.name);
  return own.length ? own.reduce((sum, [, share]) => sum + share, 0) : null;
}

/** A board's share of every model, and what it did for it lately. */
function* modelFacts(board, state) {
  for (const model of state.models) {
    const share = shareOn(board, model);
    const ranks = board.alive ? ranksOn(board, model) : [];
    if (share) yield { key: `share ${model.name}`, term: model.name, words: `has ${percent(share)}`, parts: [100 * share] };
    else if (ranks.length) yield { key: `share ${model.name}`, term: model.name, words: "" };
    for (const rank of ranks) {
      const [computes, waits] = ["compute_s", "wait_s"].map((name) => Math.min(1, rate(rankKey(model, rank), name) ?? NaN));
      if (Number.isNaN(computes)) continue;
      yield {
        key: `work ${rankKey(model, rank)}`,
        kind: "work",
        term: `computes ${percent(computes)}`,
        words: Number.isNaN(waits) ? "" : `waits ${percent(waits)}`,
        parts: [100 * computes, 100 * (waits || 0)],
      };
    }
  }
}

function* sentFact(board, state) {
  const sending = state.models.flatMap((model) => ranksOn(board, model)
    .filter((rank) => typeof rank.sent_bytes === "number")
    .map((rank) => [rank.sent_bytes, rate(rankKey(model, rank), "sent_bytes") ?? 0]));
  const [sum, speed] = [0, 1].map((index) => sending.reduce((all, numbers) => all + numbers[index], 0));
  if (sending.length) yield { key: "sent", term: `Sends ${bytes(speed)}/s`, words: `${bytes(sum)} in all` };
}

function factsOf(board, state) {
  const found = [...modelFacts(board, state)];
  if (!board.alive) return found;
  if (board.total_bytes) {
    const used = board.total_bytes - board.free_bytes;
    const part = used / board.total_bytes;
    found.push({ key: "memory", term: "Memory", words: bytesOf(used, board.total_bytes), parts: [100 * part], bad: part > 0.95 });
  }
  if (typeof board.cpu_percent === "number") found.push({ key: "cpu", term: "CPU", words: `${count(board.cpu_percent)} %`, parts: [board.cpu_percent] });
  if (typeof board.temperature_c === "number") {
    found.push({ key: "heat", term: "Temperature", words: `${count(board.temperature_c)} °C`, bad: board.temperature_c >= HOT_C });
  }
  return [...found, ...sentFact(board, state)];
}

function showFact(row, { kind, term, words, parts, bad }) {
  const [name, value, meter] = row.children;
  say(name, term);
  say(value, words);
  mark(row, "kind", kind ?? "");
  mark(row, "bad", Boolean(bad));
  show(meter, parts !== undefined);
  [...meter.children].forEach((part, index) => widen(part, parts?.[index] ?? 0));
}

const paint = (node, device) => mark(node, "tint", tints.get(device) ?? 0);

// ---- models and their plans

const STATES = { loading: "Loading", ready: "Ready", replanning: "Planning again", failed: "Failed" };

function showModel(panel, model, state, lostBoards) {
  const lost = lostDevices(model, lostBoards);
  const plan = model.plan;
  const rows = rowsOf(plan);
  mark(panel, "state", model.state);
  say(panel.querySelector("h3"), model.name);
  say(panel.querySelector(".state"), STATES[model.state] ?? model.state);
  const reason = panel.querySelector(".reason");
  show(reason, Boolean(model.reason));
  say(reason, model.reason ?? "");
  noteChange(panel, model);
  show(panel.querySelector(".nothing"), !rows.length);
  showLegend(panel.querySelector(".legend"), plan, rows, lost);
  showRows(panel.querySelector(".rows"), rows, lost);
  facts(panel.querySelector(".figures"), figuresOf(model));
  keyed(panel.querySelector(".why"), reasonsOf(model, state), (words) => words, (words) => make("li", "", words), () => {});
}

/** Why the plan is what it is: what the service said of it last, and how it changed while it ran. */
function reasonsOf(model, state) {
  const about = (event) => ["planned", "restarted"].includes(event.kind) && event.text.startsWith(model.name);
  const said = state.events.filter(about).slice(-1).map((event) => `${clock(event.at)} ${event.text}`);
  return [...said, ...(model.replans ?? []).slice(-MOST_REPLANS).map((replan) => replan.line).filter(Boolean)];
}

/** Marks a panel for a while when its plan has become another one. */
function noteChange(panel, model) {
  const words = JSON.stringify(model.plan ?? null);
  const before = changedAt.get(model.name);
  if (before?.words === words) return;
  changedAt.set(model.name, { words });
  if (!before || !model.plan || before.words === "null") return;
  panel.classList.add("changed");
  setTimeout(() => panel.classList.remove("changed"), 4000);
}

function showLegend(list, plan, rows, lost) {
  const shares = rows.length ? [...sharesOf(plan, rows)].filter(([, share]) => share > 0) : [];
  keyed(list, shares, ([device]) => device, () => {
    const entry = make("li");
    entry.append(make("span", "swatch"), make("span"));
    return entry;
  }, (entry, [device, share]) => {
    paint(entry.firstChild, device);
    mark(entry, "state", lost.has(device) ? "lost" : "");
    say(entry.lastChild, `${device} ${percent(share)}${lost.has(device) ? ", lost" : ""}`);
  });
}

function showRows(area, rows, lost) {
  const dense = rows.length > DENSE;
  mark(area, "dense", dense);
  if (dense) area.tabIndex = 0;
  else area.removeAttribute("tabindex");
  const entries = rows.flatMap((row, index) => row.group && row.group !== rows[index - 1]?.group ? [{ title: row.group }, row] : [row]);
  keyed(area, entries, (entry, index) => (entry.title ? `title ${index}` : index), (entry) => {
    if (entry.title) return make("h4");
    const row = make("div", "row");
    row.append(make("span", "label"), make("div", "bar"));
    row.lastChild.setAttribute("role", "img");
    return row;
  }, (node, entry) => {
    if (entry.title) return say(node, entry.title);
    say(node.firstChild, entry.label);
    return showBar(node.lastChild, entry, lost);
  });
}

function showBar(bar, row, lost) {
  const words = row.parts.map(([device, number]) => `${device} ${partWords(row, number)}`);
  const label = `${row.label}: ${words.join(", ")}`;
  if (bar.getAttribute("aria-label") !== label) bar.setAttribute("aria-label", label);
  const all = total(row);
  keyed(bar, row.parts, ([device]) => device, newPart, (part, [device, number]) => {
    paint(part, device);
    mark(part, "state", lost.has(device) ? "lost" : "");
    show(part, number > 0);
    widen(part, (100 * number) / (all || 1));
    say(part.firstChild, device);
    say(part.lastChild, shortPart(number, all));
    const title = `${device}: ${partWords(row, number)}`;
    if (part.title !== title) part.title = title;
  });
}

const shortPart = (number, all) => (Number.isInteger(all) && all !== 1 ? compact(number) : percent(number / all));

function newPart() {
  const part = make("span", "part");
  part.append(make("span", "name"), make("span", "number"));
  return part;
}

function figuresOf(model) {
  const plan = model.plan ?? {};
  const found = [];
  const predicted = plan.predicted ?? model.predicted;
  if (predicted?.token_s) {
    found.push(["Predicted", `${figure(1 / predicted.token_s)} tokens/s: ${duration(predicted.token_s)} a token, `
      + `${duration(predicted.compute_s)} of them compute, ${duration(predicted.exchange_s)} exchange`]);
    found.push(["First token", `after ${duration(predicted.first_s)}, predicted for a prompt of ${counted(predicted.prompt, "token")}`]);
  } else if (predicted?.seconds) {
    found.push(["Predicted", `${duration(predicted.seconds)} a request: ${duration(predicted.compute_s)} compute, `
      + `${duration(predicted.exchange_s)} exchange, ${bytes(predicted.bytes_on_wire)} on the wire`]);
  }
  if (plan.system) found.push(["Planned by", plan.system]);
  if (plan.precision || plan.wire) {
    found.push(["Numbers", [plan.precision && `weights ${plan.precision}`, plan.cache && `cache ${plan.cache}`, plan.wire && `wire ${plan.wire}`]
      .filter(Boolean).join(", ")]);
  }
  if (plan.context) found.push(["Room for", `${counted(plan.sequences ?? 1, "sequence")} of ${counted(plan.context, "token")}`]);
  if (model.reads === "token ids") found.push(["Reads", "token ids alone: it came without a tokenizer"]);
  const served = [counted(model.requests ?? 0, "request")];
  if (model.kind === "decoder") served.push(counted(model.tokens ?? 0, "token"));
  if (model.restarts) served.push(counted(model.restarts, "restart"));
  found.push(["Served", served.join(", ")]);
  return found;
}

// ---- requests and events

function showRequests(requests) {
  show($("requests-table"), requests.length > 0);
  show($("no-requests"), !requests.length);
  keyed($("requests"), requests, (request) => request.id, () => {
    const row = make("tr");
    row.append(make("th"), ...Array.from({ length: 4 }, () => make("td")));
    row.firstChild.scope = "row";
    return row;
  }, (row, request) => {
    const words = [request.id, request.model, count(request.tokens), duration(request.seconds), request.tokens_per_s ? figure(request.tokens_per_s) : "–"];
    words.forEach((word, index) => say(row.children[index], String(word)));
    if (row.firstChild.title !== String(request.id)) row.firstChild.title = request.id;
  });
}

const KINDS = {
  lost: "Lost", back: "Back", restarted: "Restarted", planned: "New plan", measuring: "Measuring", fault: "Fault",
  unreached: "Not reached",
};

function showEvents(events) {
  show($("no-events"), !events.length);
  show($("events"), events.length > 0);
  keyed($("events"), [...events].reverse(), (event) => `${event.at} ${event.kind} ${event.text}`, () => {
    const entry = make("li");
    entry.append(make("time"), make("strong"), make("span"));
    return entry;
  }, (entry, event) => {
    mark(entry, "kind", event.kind);
    say(entry.children[0], clock(event.at));
    say(entry.children[1], KINDS[event.kind] ?? event.kind);
    say(entry.children[2], event.text);
  });
}

// ---- who computed what

/** What every board has computed so far for a model, in seconds; null where ranks do not tell. */
export function computedOf(model) {
  const ranks = (model?.ranks ?? []).filter((rank) => typeof rank.compute_s === "number");
  if (!ranks.length) return null;
  const sums = new Map();
  for (const rank of ranks) sums.set(rank.device, (sums.get(rank.device) ?? 0) + rank.compute_s);
  return sums;
}

/** Draws who computed how much: measured seconds since `before`, else the shares of the plan. */
export function showWho(area, model, before) {
  const now = computedOf(model);
  const measured = new Map([...(now ?? [])].map(([device, seconds]) => [device, seconds - (before?.get(device) ?? 0)]));
  const told = before !== null && [...measured.values()].every((seconds) => seconds >= 0) && [...measured.values()].some((seconds) => seconds > 0);
  const parts = [...(told ? measured : sharesOf(model?.plan))].filter(([, number]) => number > 0);
  if (!parts.length) return;
  const all = parts.reduce((sum, [, number]) => sum + number, 0);
  const bar = make("div", "bar thin");
  bar.setAttribute("aria-hidden", "true");
  for (const [device, number] of parts) {
    const part = make("span", "part");
    paint(part, device);
    widen(part, (100 * number) / all);
    bar.append(part);
  }
  const line = make("p", "quiet", told ? "Computed by" : "Shared out to");
  parts.forEach(([device, number], index) => {
    const end = index < parts.length - 1 ? "," : "";
    line.append(" ", make("span", "device", `${device} ${told ? duration(number) : percent(number / all)}${end}`));
  });
  area.replaceChildren(bar, line);
}
