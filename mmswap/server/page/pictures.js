// Pictures on their way into a question: dropped, pasted or picked; their previews; their bytes as data URIs.

import { bytes } from "./words.js";

// The files among what was dropped or pasted that may be pictures, and a sentence about those that are not. They are
// read at once: a folder cannot be, and what is deleted or changed later is still what was picked.
export async function sortFiles(files) {
  const good = [];
  const others = [];
  const unread = [];
  for (const file of [...files]) {
    if (file.type && !file.type.startsWith("image/")) others.push(file); // no type: the server looks
    else
      await file.arrayBuffer().then(
        (read) => good.push(new File([read], file.name, { type: file.type })),
        () => unread.push(file),
      );
  }
  const named = (some, one, more) =>
    some.length ? `${some.map((file) => `“${file.name}”`).join(", ")} ${some.length === 1 ? one : more}.` : "";
  const said = [named(others, "is no picture", "are no pictures"), named(unread, "cannot be read", "cannot be read")];
  return { good, sentence: said.filter(Boolean).join(" ") };
}

export function dataUri(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob.type ? blob : blob.slice(0, blob.size, "application/octet-stream"));
  });
}

// A preview that opens the picture when it is pressed. `release` gives its address back to the browser.
export function preview(blob, name, view) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "preview";
  const image = document.createElement("img");
  image.alt = name;
  button.title = `${name}, ${bytes(blob.size)}`;
  image.src = URL.createObjectURL(blob);
  image.onerror = () => {
    image.remove();
    button.textContent = name; // a format that this browser cannot show; the server may know it
    button.disabled = true;
  };
  button.append(image);
  button.addEventListener("click", () => view(image.src, name));
  button.release = () => URL.revokeObjectURL(image.src);
  return button;
}

// The pictures of the question that is being written.
export class Picked {
  constructor(list, view, changed) {
    this.list = list;
    this.view = view;
    this.changed = changed;
    this.files = [];
  }

  add(files) {
    for (const file of files) {
      const entry = document.createElement("li");
      const shown = preview(file, file.name || "pasted picture", this.view);
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "remove";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove ${file.name || "pasted picture"}`);
      remove.addEventListener("click", () => this.remove(file, entry, shown));
      entry.append(shown, remove);
      this.list.append(entry);
      this.files.push({ file, shown });
    }
    this.update();
  }

  // Hands the files over and is empty.
  take() {
    const taken = this.files.map((one) => one.file);
    for (const one of this.files) one.shown.release();
    this.files = [];
    this.list.replaceChildren();
    this.update();
    return taken;
  }

  remove(file, entry, shown) {
    shown.release();
    const next = entry.nextElementSibling?.querySelector(".remove");
    entry.remove();
    this.files = this.files.filter((one) => one.file !== file);
    this.update();
    if (next) next.focus();
  }

  update() {
    this.list.hidden = this.files.length === 0;
    this.changed();
  }
}

// Calls `take` with files that are dropped or pasted; `zone` is shown while something is dragged over the page.
export function receive(zone, take) {
  let depth = 0;
  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const end = () => {
    depth = 0;
    zone.hidden = true;
  };
  addEventListener("dragenter", (event) => {
    if (!carries(event)) return;
    depth += 1;
    zone.hidden = false;
  });
  addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) end();
  });
  addEventListener("dragover", (event) => {
    if (carries(event)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    end();
    take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    const files = event.clipboardData?.files ?? [];
    if (!files.length) return;
    event.preventDefault();
    take(files);
  });
}
