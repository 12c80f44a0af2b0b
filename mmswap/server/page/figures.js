// The figures of one answer, as a line and as a list. Values in, words out.

import { back, bytes, count, milliseconds, rate } from "./words.js";

// `stats`: {first, whole} milliseconds as this page saw them, `usage` and `mmswap` as the server sent them.
export function line(stats) {
  const { usage, mmswap } = stats;
  const parts = [];
  if (usage) parts.push(count(usage.completion_tokens, "token"));
  if (mmswap?.decode_tok_s) parts.push(`${rate(mmswap.decode_tok_s)} tokens/s`);
  if (stats.first !== undefined) parts.push(`first after ${milliseconds(stats.first)}`);
  if (mmswap?.images.length) parts.push(encoded(mmswap.images));
  if (mmswap?.window.opened) parts.push(`${bytes(mmswap.window.evicted_bytes)} lent`);
  if (spilled(mmswap)) parts.push(`spilled ${bytes(spilled(mmswap))}`);
  return parts.join(" · ");
}

export function list(stats) {
  const { usage, mmswap } = stats;
  const rows = [];
  const add = (name, value) => rows.push([name, value]);
  if (usage) {
    const kept = usage.prompt_tokens_details?.cached_tokens ?? 0;
    add("Prompt", `${count(usage.prompt_tokens, "token")}${kept ? `, ${kept} of them kept from the turn before` : ""}`);
    add("Answer", count(usage.completion_tokens, "token"));
  }
  if (mmswap) {
    add("Reading", `${rate(mmswap.prefill_tok_s)} tokens/s`);
    if (mmswap.decode_tok_s) add("Writing", `${rate(mmswap.decode_tok_s)} tokens/s`);
  }
  if (stats.first !== undefined) add("First word", `after ${milliseconds(stats.first)}`);
  if (stats.whole !== undefined) add("Whole answer", `after ${milliseconds(stats.whole)}`);
  if (!mmswap) return rows;
  for (const image of mmswap.images) add("Picture", picture(image));
  if (mmswap.images.length) {
    const [first] = mmswap.images;
    if (first.peak_measured)
      add("Encoder's peak", `${bytes(first.peak_predicted)} predicted, ${bytes(first.peak_measured)} measured`);
    add("Window", windowed(mmswap.window));
  }
  if (spilled(mmswap)) add("Spilled", `${bytes(spilled(mmswap))} into host memory`);
  add("Card", mmswap.card);
  return rows;
}

function encoded(images) {
  const time = images.reduce((sum, image) => sum + image.encode_ms, 0);
  const what = images.length === 1 ? "picture" : `${images.length} pictures`;
  return time ? `${what} in ${milliseconds(time)}` : `${what} seen before`;
}

function picture(image) {
  const parts = [count(image.patches, "patch", "patches"), count(image.tokens, "token")];
  const size = `${image.width} × ${image.height}, ${parts.join(", ")}`;
  return image.encode_ms ? `${size}, encoded in ${milliseconds(image.encode_ms)}` : `${size}, encoded before`;
}

function windowed(window) {
  if (!window.opened) return window.reason || "None was needed.";
  return `${window.reason} ${back(window.restore_ms, window.restore_hidden_ms)}`;
}

function spilled(mmswap) {
  return mmswap?.window.spilled_bytes || mmswap?.spill?.bytes || 0;
}
