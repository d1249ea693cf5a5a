// Calls to the service: the key, errors as one sentence, and streams of events.

const KEY = "hepti-key";

/** The service answered 401. */
export class KeyNeeded extends Error {
  constructor() {
    super("The service asks for a key.");
    this.refused = sessionStorage.getItem(KEY) !== null;
  }
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

/** Fetches a path, with the key where there is one. */
export async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.status === 401) throw new KeyNeeded();
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

export const post = (path, body, signal) =>
  call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

async function reason(response) {
  const words = await response.text();
  try {
    const { error } = JSON.parse(words);
    return error.message ?? String(error);
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

/** The data of every event of a stream. */
export async function* eventsOf(response) {
  let data = [];
  for await (const line of lines(response.body)) {
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    else if (line === "" && data.length) {
      yield data.join("\n");
      data = [];
    }
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const line of parts) yield line.replace(/\r$/, "");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
