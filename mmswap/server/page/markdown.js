// A model's text as DOM nodes: paragraphs, headings, lists, quotes, code, tables, emphasis, links to http(s).
//
// Text reaches the page as text nodes only, so whatever a model writes stays text. `renderInto(element, text)` may be
// called with ever longer text: blocks that have not changed stay as they are, selection and all.

import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 6;

export function renderInto(element, text) {
  const wanted = blocks(text.split("\n"));
  const before = element.blocks ?? [];
  let same = 0;
  while (same < wanted.length && same < before.length && wanted[same].source === before[same]) same += 1;
  while (element.childNodes.length > same) element.lastChild.remove();
  for (const block of wanted.slice(same)) element.append(block.make());
  element.blocks = wanted.map((block) => block.source);
}

// Lines cut into blocks, each with its source and a function that makes its node.
function blocks(lines, depth = 0) {
  const found = [];
  let at = 0;
  const take = (until, kind, make) => {
    const cut = lines.slice(at, until);
    found.push({ source: `${kind}\n${cut.join("\n")}`, make: () => make(cut) });
    at = until;
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) take(fenceEnd(lines, at, fence[1]), "code", (cut) => code(cut, fence));
    else if (HEADING.test(line)) take(at + 1, "heading", heading);
    else if (RULE.test(line)) take(at + 1, "rule", () => document.createElement("hr"));
    else if (QUOTE.test(line) && depth < DEEPEST)
      take(
        end(lines, at, (next) => QUOTE.test(next)),
        "quote",
        (cut) => quote(cut, depth),
      );
    else if (ITEM.test(line) && depth < DEEPEST) take(listEnd(lines, at), "list", (cut) => list(cut, depth));
    else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? ""))
      take(
        end(lines, at, (next) => next.includes("|")),
        "table",
        table,
      );
    else
      take(
        end(lines, at + 1, (next) => next.trim() && !interrupts(next)),
        "text",
        paragraph,
      );
  }
  return found;
}

function end(lines, from, goesOn) {
  let at = from;
  while (at < lines.length && goesOn(lines[at])) at += 1;
  return at;
}

function interrupts(line) {
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || RULE.test(line);
}

function fenceEnd(lines, from, mark) {
  const close = end(lines, from + 1, (line) => !(line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "")));
  return Math.min(close + 1, lines.length);
}

function listEnd(lines, from) {
  const ordered = /\d/.test(ITEM.exec(lines[from])[2]);
  let at = from + 1;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    const next = lines[at].trim() ? lines[at] : (lines[at + 1] ?? "");
    if (!next.trim()) break;
    if (item && !item[1] && /\d/.test(item[2]) !== ordered) break;
    if (!lines[at].trim() && !/^ {2,}/.test(next) && !ITEM.test(next)) break;
    if (!item && lines[at].trim() && !/^ /.test(lines[at]) && (interrupts(lines[at]) || !lines[at - 1].trim())) break;
    at += 1;
  }
  return at;
}

function made(name, lines, depth) {
  const node = document.createElement(name);
  for (const block of blocks(lines, depth)) node.append(block.make());
  return node;
}

function paragraph(lines) {
  const node = document.createElement("p");
  lines.forEach((line, number) => {
    if (number) node.append(document.createElement("br"));
    node.append(inline(line.trim()));
  });
  return node;
}

function heading(lines) {
  const [, marks, text] = HEADING.exec(lines[0]);
  const node = document.createElement(`h${Math.min(marks.length + 2, 6)}`); // the page has its own first two
  node.append(inline(text));
  return node;
}

function quote(lines, depth) {
  return made(
    "blockquote",
    lines.map((line) => line.replace(QUOTE, "")),
    depth + 1,
  );
}

function code(lines, fence) {
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence[1]);
  const node = document.createElement("pre");
  const inner = document.createElement("code");
  inner.textContent = lines.slice(1, closed ? -1 : undefined).join("\n");
  if (fence[2]) node.dataset.language = fence[2];
  node.tabIndex = 0; // so that the keyboard can scroll a long line
  node.append(inner);
  return node;
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const node = document.createElement(ordered ? "ol" : "ul");
  const start = parseInt(first[2], 10);
  if (ordered && start !== 1) node.start = start;
  const items = [];
  let inner = 0;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length < Math.max(inner, 1)) {
      inner = item[0].length;
      items.push([line.slice(inner)]);
    } else {
      items.at(-1).push(line.slice(Math.min(inner, line.length - line.trimStart().length)));
    }
  }
  for (const item of items) node.append(entry(item, depth));
  return node;
}

// An item of one paragraph has no paragraph of its own, so that lists stay close.
function entry(lines, depth) {
  const node = made("li", lines, depth + 1);
  const [only] = node.children;
  if (only?.tagName === "P") only.replaceWith(...only.childNodes);
  return node;
}

function table(lines) {
  const node = document.createElement("table");
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split("|")
      .map((cell) => cell.trim());
  const row = (line, name) => {
    const made = document.createElement("tr");
    for (const text of cells(line)) {
      const cell = document.createElement(name);
      cell.append(inline(text));
      made.append(cell);
    }
    return made;
  };
  const head = document.createElement("thead");
  const body = document.createElement("tbody");
  head.append(row(lines[0], "th"));
  for (const line of lines.slice(2)) body.append(row(line, "td"));
  node.append(head, body);
  const frame = document.createElement("div");
  frame.className = "table";
  frame.append(node);
  return frame;
}
