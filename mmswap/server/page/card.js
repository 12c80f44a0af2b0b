// The picture of the card, from what the server tells at /events: who holds its memory, and the window that opens in
// the weights while a picture is encoded. Draws and explains; asks for nothing.

import { back, bytes, count } from "./words.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 296;
const HEIGHT = 400;
const COLUMN = 112; // width of the drawn memory; right of it are hinges, leaders and labels
const LABELS = 158;
const BEND = 132; // where leaders leave the horizontal
const GAP = 36; // between the middles of two labels
const HOLD = 900; // milliseconds for which a window is shown, however short it was
const SWING = 42; // degrees

const PARTS = [
  ["weights", "weights"],
  ["lent", "lent to the encoder"],
  ["kv", "KV cache"],
  ["kept", "kept KV cache"],
  ["other", "others and buffers"],
  ["free", "free"],
];

// Bytes of each part, from the bottom up; together they are the card. `free` holds what is lent while it is lent.
export function shares(card, lent) {
  const weights = Math.max(0, card.weights - lent);
  const free = Math.max(0, card.free - card.evicted);
  const other = Math.max(0, card.total - card.weights - card.kv - card.kv_kept - free);
  return { weights, lent, kv: card.kv, kept: card.kv_kept, other, free };
}

export class CardPicture {
  constructor(root) {
    const find = (id) => root.querySelector(`#${id}`);
    [this.plan, this.strip, this.name] = [find("plan"), find("strip"), find("card-name")];
    [this.window, this.spill, this.queue] = [find("window"), find("spill"), find("queue")];
    this.drawn = drawing(this.plan);
    this.bars = bars(this.strip);
    this.seen = null;
    this.held = { bytes: 0, until: 0 };
    this.windows = null; // how many there were when we last looked
    this.open = false; // whether the one under way was seen
  }

  // `seen`: one event of the server.
  show(seen) {
    this.seen = seen;
    const { card, window } = seen;
    if (card && window) {
      const missed = this.windows !== null && window.count > this.windows && !this.open; // it was shorter than a look
      if (card.evicted) this.hold(card.evicted);
      else if (missed && window.last) this.hold(window.last.evicted_bytes);
      if (window.count !== this.windows) this.open = false;
      this.windows = window.count;
    }
    this.update();
  }

  get holds() {
    return performance.now() < this.held.until;
  }

  // A window lasts milliseconds, an eye does not: it stays in the picture for a moment.
  hold(size) {
    if (this.holds || this.open) {
      this.held.bytes = Math.max(this.held.bytes, size);
      return;
    }
    this.open = true;
    this.held = { bytes: size, until: performance.now() + HOLD };
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), HOLD + 20);
  }

  update() {
    const { card, window, queue } = this.seen;
    this.plan.classList.toggle("known", Boolean(card));
    this.queue.textContent = queued(queue);
    this.spill.hidden = !card?.spilled;
    if (!card) {
      this.name.textContent =
        this.seen.state === "unloaded"
          ? "The card was given back; the next question loads the model again."
          : "The model is not loaded yet.";
      this.window.textContent = "";
      this.plan.setAttribute("aria-label", this.name.textContent);
      return;
    }
    const parts = shares(card, this.holds ? Math.max(card.evicted, this.held.bytes) : card.evicted);
    this.name.textContent = card.name;
    this.window.textContent = windowSentence(card, window, this.holds);
    this.spill.textContent = card.spilled
      ? `The driver has put ${bytes(card.spilled)} of the model into host memory: answers are slow until they are back.`
      : "";
    const said = PARTS.filter(([part]) => parts[part] > 0).map(([part, name]) => `${name} ${bytes(parts[part])}`);
    this.plan.setAttribute("aria-label", `Of ${bytes(card.total)}: ${said.join(", ")}.`);
    this.plan.classList.toggle("open", parts.lent > 0);
    this.draw(parts, card.total);
    this.remind(parts, card, window.last);
  }

  // Where the last window was, while none is open.
  remind(parts, card, last) {
    const { ghost } = this.drawn;
    const scale = (HEIGHT - 2) / card.total;
    const shown = last && !parts.lent;
    ghost.classList.toggle("hidden", !shown);
    if (shown) place(ghost, { y: HEIGHT - 1 - parts.weights * scale, height: last.evicted_bytes * scale });
  }

  draw(parts, total) {
    const scale = (HEIGHT - 2) / total;
    const wanted = [];
    let bottom = HEIGHT - 1;
    let left = 0;
    for (const [part] of PARTS) {
      const high = parts[part] * scale;
      const { block } = this.drawn[part];
      bottom -= high;
      place(block, { y: bottom, height: high });
      place(this.bars[part], { x: (100 * left) / total, width: (100 * parts[part]) / total }, "%");
      left += parts[part];
      wanted.push({ part, high, middle: bottom + high / 2, shown: parts[part] > 0 });
      if (part === "lent") this.swing(bottom, high, parts.lent > 0);
    }
    const shown = wanted.filter((one) => one.shown).reverse(); // from the top down
    spread(shown);
    for (const { part, shown: visible, middle, label } of wanted) {
      const { group, leader, size } = this.drawn[part];
      group.classList.toggle("hidden", !visible);
      if (!visible) continue;
      const from = part === "lent" ? BEND : COLUMN + 5; // its casements are there
      leader.setAttribute(
        "points",
        `${from},${middle} ${BEND},${middle} ${LABELS - 12},${label} ${LABELS - 6},${label}`,
      );
      group.style.setProperty("--at", `${label}px`);
      size.textContent = bytes(parts[part]);
    }
  }

  // Two casements hinged at the edges of what is lent.
  swing(top, high, open) {
    const { upper, lower } = this.drawn;
    if (open) {
      upper.setAttribute("y2", high / 2);
      lower.setAttribute("y2", -high / 2);
    }
    upper.style.transform = `translate(${COLUMN}px, ${top}px) rotate(${open ? -SWING : 0}deg)`;
    lower.style.transform = `translate(${COLUMN}px, ${top + high}px) rotate(${open ? SWING : 0}deg)`;
  }
}

function queued({ running, waiting }) {
  if (!running && !waiting) return "";
  return waiting
    ? `${count(running, "question")} under way, ${waiting} waiting.`
    : `${count(running, "question")} under way.`;
}

export function windowSentence(card, window, held) {
  if (window.state === "open" || (held && card.evicted))
    return `The window is open: the encoder works in ${bytes(card.evicted)} of the weights' memory.`;
  if (window.state === "restoring") return `The weights come back: ${bytes(card.evicted)} are missing.`;
  if (!window.last) return "No picture has needed a window yet.";
  const { reason, restore_ms: time, restore_hidden_ms: hidden } = window.last;
  return `Window ${window.count}. ${reason} ${back(time, hidden)}`;
}

// Labels keep their distance and stay inside: pushed down from the top, then up from the bottom.
function spread(shown) {
  let least = 14;
  for (const one of shown) least = (one.label = Math.max(one.middle, least)) + GAP;
  let most = HEIGHT - 18;
  for (const one of [...shown].reverse()) most = (one.label = Math.min(one.label, most)) - GAP;
}

function place(node, values, unit = "") {
  for (const [name, value] of Object.entries(values)) node.setAttribute(name, `${Math.max(0, value)}${unit}`);
}

function drawing(svg) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  const drawn = {};
  for (const [part, name] of PARTS) {
    const block = make("rect", { class: part, x: 1, width: COLUMN - 1 }, svg);
    const group = make("g", { class: `label ${part} hidden` }, svg);
    const leader = make("polyline", { class: "leader" }, group);
    const text = make("g", { class: "text" }, group);
    make("text", { x: LABELS, dy: -2 }, text).textContent = name[0].toUpperCase() + name.slice(1);
    const size = make("text", { x: LABELS, dy: 14, class: "size" }, text);
    drawn[part] = { block, group, leader, size };
  }
  drawn.ghost = make("rect", { class: "ghost hidden", x: 5, width: COLUMN - 9 }, svg);
  make("rect", { class: "frame", x: 0.5, y: 0.5, width: COLUMN, height: HEIGHT - 1, rx: 2 }, svg);
  drawn.upper = make("line", { class: "casement" }, svg);
  drawn.lower = make("line", { class: "casement" }, svg);
  return drawn;
}

function bars(svg) {
  return Object.fromEntries(PARTS.map(([part]) => [part, make("rect", { class: part, y: 0, height: "100%" }, svg)]));
}

function make(name, attributes, parent) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}
