// What stands inside a line of a model's text: code, emphasis, links to http(s). A fragment, all text in text nodes.

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "s"],
  ["*", "em"],
  ["_", "em"],
];
const WORD = /[\p{L}\p{N}]/u;
const ADDRESS = /^https?:\/\/[^\s<>"]*[^\s<>"'.,;:!?)\]}]/;
const DEEPEST = 6;

export function inline(text, depth = 0) {
  const into = document.createDocumentFragment();
  const absent = new Set(); // marks that do not come again: looked for once, not at every place
  let plain = "";
  let at = 0;
  const find = (mark, from) => {
    if (absent.has(mark)) return -1;
    const place = text.indexOf(mark, from);
    if (place < 0) absent.add(mark);
    return place;
  };
  const put = (node, next) => {
    if (plain) into.append(plain);
    plain = "";
    into.append(node);
    at = next;
  };
  while (at < text.length) {
    const special =
      depth < DEEPEST && (codeAt(text, at, find) ?? linkAt(text, at, find, depth) ?? marked(text, at, find, depth));
    if (special) {
      put(special.node, special.next);
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain) into.append(plain);
  return into;
}

function codeAt(text, at, find) {
  if (text[at] !== "`") return null;
  let size = 1;
  while (text[at + size] === "`") size += 1;
  const close = find("`".repeat(size), at + size);
  if (close < 0) return null;
  const node = document.createElement("code");
  node.textContent = text.slice(at + size, close).trim();
  return { node, next: close + size };
}

function linkAt(text, at, find, depth) {
  if (text[at] === "[") {
    const middle = find("](", at);
    const close = middle < 0 ? -1 : find(")", middle);
    const address = close < 0 ? "" : text.slice(middle + 2, close).trim();
    if (!/^https?:\/\/\S+$/.test(address)) return null;
    return { node: link(address, inline(text.slice(at + 1, middle), depth + 1)), next: close + 1 };
  }
  if (text[at] !== "h" || WORD.test(text[at - 1] ?? "")) return null;
  const address = ADDRESS.exec(text.slice(at, at + 2000))?.[0];
  return address ? { node: link(address, address), next: at + address.length } : null;
}

function link(address, content) {
  const node = document.createElement("a");
  node.href = address;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  node.append(content);
  return node;
}

function marked(text, at, find, depth) {
  for (const [mark, name] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    const inWord = mark[0] === "_" && WORD.test(text[at - 1] ?? ""); // snake_case is no emphasis
    if (inWord || /^\s?$/.test(text[from] ?? "")) continue;
    let close = find(mark, from);
    while (mark.length === 1 && close >= 0 && text[close + 1] === mark) close = find(mark, close + 2); // another mark
    if (close <= from || /\s/.test(text[close - 1])) continue;
    if (mark[0] === "_" && WORD.test(text[close + mark.length] ?? "")) continue;
    const node = document.createElement(name);
    node.append(inline(text.slice(from, close), depth + 1));
    return { node, next: close + mark.length };
  }
  return null;
}
