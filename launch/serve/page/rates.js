// What counters did lately: ranks tell sums since their start, the page shows what they do now.

const WINDOW_S = 12;

const samples = new Map();

/** Takes note of counters, an object of numbers; one that falls back begins anew. */
export function note(key, counters, now = performance.now() / 1000) {
  let seen = samples.get(key) ?? [];
  const last = seen.at(-1);
  if (last && Object.keys(counters).some((name) => counters[name] < last.counters[name])) seen = [];
  seen.push({ at: now, counters });
  while (seen.length > 2 && seen[1].at < now - WINDOW_S) seen.shift();
  samples.set(key, seen);
}

/** How much a counter grew in a second, lately; null where nothing is known yet. */
export function rate(key, name) {
  const seen = samples.get(key) ?? [];
  const [first, last] = [seen[0], seen.at(-1)];
  if (seen.length < 2 || last.counters[name] === undefined) return null;
  return (last.counters[name] - (first.counters[name] ?? 0)) / (last.at - first.at);
}
