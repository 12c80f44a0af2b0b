// One conversation: its turns, what is asked of the server, and what of it is kept. Knows no layout.

import { ask } from "./api.js";
import { dataUri } from "./pictures.js";
import { newId } from "./store.js";
import { troubleOf } from "./words.js";

const KEEP = 1500; // milliseconds after which an answer under way is kept again
const TITLE = 60;

export class Chat {
  // `told`: begun(), ended(turn), refused(trouble): what the page wants to know.
  constructor(store, turns, settings, told) {
    Object.assign(this, { store, turns, settings, told });
    this.running = null;
    this.begin();
  }

  get last() {
    return this.kept.turns.at(-1);
  }

  begin() {
    this.leave();
    this.kept = { id: newId(), title: "", changed: Date.now(), turns: [] };
    this.turns.clear();
  }

  // Shows a chat of the store; false if it is not there any more.
  async open(id) {
    this.leave();
    const kept = await this.store.chat(id);
    if (!kept) return false;
    for (const turn of kept.turns) if (turn.state === "running") await this.mend(turn, kept);
    const blobs = await Promise.all(kept.turns.map((turn) => this.blobs(turn)));
    this.kept = kept;
    this.turns.clear();
    kept.turns.forEach((turn, number) => {
      if (turn.role === "user") this.turns.question(turn, blobs[number]);
      else this.turns.answer(turn);
    });
    return true;
  }

  async send(text, files) {
    const pictures = [];
    for (const file of files)
      pictures.push({ key: await this.store.keepPicture(file), name: file.name || "pasted picture" });
    const question = { role: "user", text, pictures };
    this.kept.turns.push(question);
    this.kept.title ||= (text || pictures[0].name).slice(0, TITLE);
    this.turns.question(question, files);
    await this.answer();
  }

  // The last answer anew.
  async again() {
    if (this.running || this.last?.role !== "assistant") return;
    this.kept.turns.pop();
    this.turns.drop(1);
    await this.answer();
  }

  // Takes the last question back, with its answer.
  async takeBack() {
    this.leave();
    const at = this.kept.turns.findLastIndex((turn) => turn.role === "user");
    const [question, ...rest] = this.kept.turns.splice(at);
    this.turns.drop(1 + rest.length);
    const blobs = await this.blobs(question);
    const files = question.pictures.map(
      ({ name }, number) => blobs[number] && new File([blobs[number]], name, { type: blobs[number].type }),
    );
    await this.store.forget(question);
    if (this.kept.turns.length) await this.keep();
    else await this.store.remove(this.kept);
    this.told.ended({ text: "The question can be changed." });
    return { text: question.text, files: files.filter(Boolean) };
  }

  stop() {
    this.running?.abort();
  }

  // What runs ends by itself, and is kept where it belongs.
  leave() {
    this.stop();
    this.running = null;
  }

  async discard(chat) {
    if (chat.id === this.kept.id) {
      this.kept.turns = [];
      this.begin();
    }
    await this.store.remove(chat);
  }

  async answer() {
    const running = new AbortController();
    const { kept, turns } = this;
    const turn = { role: "assistant", text: "", state: "running" };
    kept.turns.push(turn);
    const view = turns.answer(turn);
    this.running = running;
    this.told.begun();
    await this.keep(kept);
    try {
      await this.read(turn, view, kept, running.signal);
      turn.state = "done";
    } catch (error) {
      turn.state = running.signal.aborted ? "stopped" : "failed";
      if (turn.state === "failed") {
        const trouble = troubleOf(error);
        turn.error = { sentence: trouble.message, status: trouble.status };
      }
    }
    view.end(turn);
    if (this.running === running) this.running = null;
    await this.keep(kept);
    this.told.ended(turn);
  }

  async read(turn, view, kept, signal) {
    const { sampling, key } = this.settings;
    const begun = performance.now();
    const since = () => performance.now() - begun;
    const stats = {};
    let saved = begun;
    const messages = await this.messages(kept.turns.slice(0, -1));
    for await (const chunk of ask({ ...sampling, messages }, { key, signal })) {
      const [choice] = chunk.choices;
      if (choice?.delta?.content) {
        stats.first ??= since();
        turn.text += choice.delta.content;
        view.show(turn.text);
      }
      if (choice?.finish_reason) stats.finish = choice.finish_reason;
      if (chunk.mmswap) stats.mmswap = chunk.mmswap;
      if (chunk.usage) stats.usage = chunk.usage;
      if (performance.now() - saved > KEEP) {
        saved = performance.now();
        this.keep(kept);
      }
    }
    turn.stats = { ...stats, whole: since() };
  }

  // What is asked. A question whose answer never began is no part of it: templates want question and answer in turns.
  async messages(turns) {
    const asked = this.settings.system ? [{ role: "system", content: this.settings.system }] : [];
    for (const [number, turn] of turns.entries()) {
      const next = turns[number + 1];
      if (turn.role === "user" && (!next || next.text)) asked.push({ role: "user", content: await this.content(turn) });
      if (turn.role === "assistant" && turn.text) asked.push({ role: "assistant", content: turn.text });
    }
    return asked;
  }

  async content(turn) {
    const { detail } = this.settings;
    const parts = [];
    for (const blob of await this.blobs(turn)) {
      if (blob) parts.push({ type: "image_url", image_url: { url: await dataUri(blob), ...(detail && { detail }) } });
    }
    if (!parts.length) return turn.text;
    return turn.text ? [...parts, { type: "text", text: turn.text }] : parts;
  }

  blobs(turn) {
    return Promise.all((turn.pictures ?? []).map(async ({ key }) => (await this.store.picture(key)) ?? null));
  }

  // The page is about to go: a database would come too late.
  hurry() {
    if (this.running) this.store.hurry(this.kept.id, this.last.text);
  }

  // An answer whose page went away is kept as far as it came; one that another page is writing stays that page's.
  async mend(turn, kept) {
    const rest = this.store.hurried(kept.id);
    turn.state = "cut";
    if (!rest?.startsWith(turn.text)) return;
    turn.text = rest;
    await this.store.keep(kept);
  }

  async keep(kept = this.kept) {
    if (!kept.turns.length) return; // it was discarded meanwhile
    kept.changed = Date.now();
    await this.store.keep(kept);
  }
}
