// The server's API: one model, streamed answers, the card as it changes. Knows HTTP, and no page.

import { CUT, Trouble } from "./words.js";

const DONE = "[DONE]";

async function request(address, { key, ...options } = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(address, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const said = await response.json().catch(() => null);
  const error = said?.error;
  if (typeof error?.message === "string") return new Trouble(error.message, response.status, error.code ?? "");
  return new Trouble(`The server answered with status ${response.status}, and said no more.`, response.status);
}

// The data of each server-sent event, as it comes.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trim()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function model(key) {
  const listed = await (await request("v1/models", { key })).json();
  return listed.data[0];
}

// The chunks of an answer. Throws a Trouble where the server refuses, and where the stream breaks off.
export async function* ask(body, { key, signal }) {
  const response = await request("v1/chat/completions", {
    key,
    signal,
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  try {
    for await (const data of events(response)) {
      if (data === DONE) return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Trouble(chunk.error.message, 0, chunk.error.code ?? "");
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Trouble || signal.aborted) throw error;
    throw new Trouble(CUT);
  }
  throw new Trouble(CUT);
}

// Calls `see` with every picture of the card, `lost` with a Trouble whenever the connection ends; comes back by itself.
// A page that nobody sees lets go of its connection: a browser has six for each server, and tabs share them.
export async function watch(keyOf, see, lost) {
  let connection = new AbortController();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) connection.abort();
    else reconnect();
  });
  for (let pause = 500; ; pause = Math.min(2 * pause, 8000)) {
    while (document.hidden) await rest(60_000);
    connection = new AbortController();
    try {
      const response = await request("events", { key: keyOf(), signal: connection.signal });
      for await (const data of events(response)) {
        pause = 500;
        see(JSON.parse(data));
      }
      lost(null);
    } catch (error) {
      if (!connection.signal.aborted) lost(error);
    }
    await rest(pause);
  }
}

let wake = () => {};

// Ends the pause before the next attempt, for instance because there is a key now.
export function reconnect() {
  wake();
}

function rest(time) {
  return new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, time);
  });
}
