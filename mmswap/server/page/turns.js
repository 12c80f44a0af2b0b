// The conversation as it is seen: questions with their pictures, answers with their figures. Knows no server.

import { line, list } from "./figures.js";
import { renderInto } from "./markdown.js";
import { preview } from "./pictures.js";

const ENDS = {
  stopped: "Stopped.",
  cut: "This answer is not whole: its page was closed, or another page is writing it.",
  length: "The answer ends here because it reached the most tokens that it may have.",
};

export class Turns {
  // `acts`: again(), edit(), view(address, name), settings().
  constructor(list, acts) {
    this.list = list;
    this.acts = acts;
  }

  clear() {
    for (const shown of this.list.querySelectorAll(".preview")) shown.release();
    this.list.replaceChildren();
  }

  // The last `count` turns are no longer there.
  drop(count) {
    for (let number = 0; number < count; number += 1) {
      for (const shown of this.list.lastChild.querySelectorAll(".preview")) shown.release();
      this.list.lastChild.remove();
    }
  }

  // `blobs`: of the turn's pictures, null for one that is gone.
  question(turn, blobs) {
    const entry = this.entry("question", "You asked");
    if (blobs.length) {
      const pictures = element("ul", "pictures");
      blobs.forEach((blob, number) => {
        const item = element("li");
        const { name } = turn.pictures[number];
        item.append(blob ? preview(blob, name, this.acts.view) : `${name} (gone)`);
        pictures.append(item);
      });
      entry.append(pictures);
    }
    if (turn.text) entry.append(written(element("p", "text", turn.text)));
    const tools = element("div", "tools");
    tools.append(button("Edit", "only-last", this.acts.edit));
    entry.append(tools);
  }

  answer(turn) {
    const view = new AnswerView(this.entry("answer", "The model answered"), this.acts);
    view.show(turn.text);
    if (turn.state !== "running") view.end(turn);
    return view;
  }

  entry(kind, heading) {
    const entry = element("li", kind);
    entry.append(element("h2", "unseen", heading));
    this.list.append(entry);
    return entry;
  }
}

class AnswerView {
  constructor(entry, acts) {
    this.entry = entry;
    this.acts = acts;
    this.text = written(element("div", "text"));
    entry.append(this.text);
    entry.setAttribute("aria-busy", "true");
    entry.classList.add("waiting", "running");
  }

  // `text` as far as it has come; drawn with the next frame.
  show(text) {
    if (text) this.entry.classList.remove("waiting");
    this.wanted = text;
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    renderInto(this.text, this.wanted);
    this.acts.grown();
  }

  end(turn) {
    this.draw();
    this.entry.removeAttribute("aria-busy");
    this.entry.classList.remove("waiting", "running");
    const end = ENDS[turn.state] ?? (turn.stats?.finish === "length" ? ENDS.length : "");
    if (end) this.entry.append(element("p", "end", end));
    if (turn.error) this.entry.append(this.trouble(turn.error));
    const tools = element("div", "tools");
    if (turn.text) tools.append(copier(turn.text));
    tools.append(button("Again", "only-last", this.acts.again));
    if (turn.stats) this.entry.append(figures(turn.stats));
    this.entry.append(tools);
    this.acts.grown();
  }

  trouble(error) {
    const said = element("p", "trouble", error.sentence);
    if (error.status === 401) said.append(" ", button("Enter the key", "", this.acts.settings));
    return said;
  }
}

function figures(stats) {
  const details = element("details", "figures");
  const rows = element("dl");
  for (const [name, value] of list(stats)) rows.append(element("dt", "", name), element("dd", "", value));
  details.append(element("summary", "", line(stats)), rows);
  return details;
}

function copier(text) {
  const copy = button("Copy", "", async () => {
    copy.textContent = (await copied(text)) ? "Copied" : "Not copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  return copy;
}

// Pages that did not come over TLS or from this machine have no clipboard: the old way then.
async function copied(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const area = element("textarea", "unseen");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

// In whatever script it is: from the right where its first letter is.
function written(node) {
  node.dir = "auto";
  return node;
}

export function button(name, kind, act) {
  const made = element("button", kind, name);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

export function element(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}
