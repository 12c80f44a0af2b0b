// What a person has chosen for answers, and the key of the server; kept in this browser. Knows the settings' form.

const PLACE = "mmswap.settings";
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];

export class Settings {
  constructor(dialog, changed) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    this.values = read();
    this.changed = changed;
    this.form.addEventListener("input", () => this.take());
    dialog.addEventListener("close", () => this.changed());
    dialog.querySelector("#reset-settings").addEventListener("click", () => {
      this.values = { key: this.values.key };
      this.fill();
      keep(this.values);
    });
  }

  open(field) {
    this.fill();
    if (!this.dialog.open) this.dialog.showModal();
    if (field) this.form.elements[field].focus();
  }

  get key() {
    return this.values.key ?? "";
  }

  get system() {
    return (this.values.system ?? "").trim();
  }

  get detail() {
    return this.values.detail ?? "";
  }

  // The fields of a request; what was left empty is not among them.
  get sampling() {
    const chosen = NUMBERS.filter((name) => this.values[name] !== undefined);
    return Object.fromEntries(chosen.map((name) => [name, this.values[name]]));
  }

  fill() {
    for (const field of this.form.elements) if (field.name) field.value = this.values[field.name] ?? "";
  }

  take() {
    const values = {};
    for (const field of this.form.elements) {
      if (!field.name || field.value === "" || !field.validity.valid) continue;
      values[field.name] = NUMBERS.includes(field.name) ? Number(field.value) : field.value;
    }
    this.values = values;
    keep(values);
  }
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(PLACE)) ?? {};
  } catch {
    return {};
  }
}

function keep(values) {
  try {
    localStorage.setItem(PLACE, JSON.stringify(values));
  } catch {
    // a browser that keeps nothing: they hold until the page is closed
  }
}
