// Chats and their pictures in this browser's IndexedDB; in memory where it gives none. Knows no page.
//
// A chat is {id, title, changed, turns}; a turn's pictures are {key, name}, and their bytes lie apart, so that keeping
// a chat after every answer writes its text only.

const CHATS = "chats";
const PICTURES = "pictures";
const HURRIED = "mmswap.hurried";

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Store {
  // `trouble` is told once, with a sentence, if nothing can be kept.
  constructor(trouble) {
    this.trouble = trouble;
    this.memory = { [CHATS]: new Map(), [PICTURES]: new Map() };
    this.ready = open().catch(() => this.lose("This browser keeps nothing for this page"));
    this.others = "BroadcastChannel" in globalThis ? new BroadcastChannel("mmswap") : null;
  }

  // Calls `heard` with the id of a chat that another tab has kept or removed.
  listen(heard) {
    if (this.others) this.others.onmessage = (event) => heard(event.data);
  }

  async list() {
    const chats = await this.all();
    return chats.sort((one, other) => other.changed - one.changed);
  }

  async chat(id) {
    return this.read(CHATS, id);
  }

  async keep(chat) {
    await this.write(CHATS, chat.id, structuredClone(chat));
    this.others?.postMessage(chat.id);
  }

  async picture(key) {
    return this.read(PICTURES, key);
  }

  async keepPicture(blob) {
    const key = newId();
    await this.write(PICTURES, key, blob);
    return key;
  }

  // The pictures of a turn go.
  async forget(turn) {
    for (const picture of turn.pictures ?? []) await this.drop(PICTURES, picture.key);
  }

  async remove(chat) {
    for (const turn of chat.turns) await this.forget(turn);
    await this.drop(CHATS, chat.id);
    this.others?.postMessage(chat.id);
  }

  // The text of an answer whose page goes away before the database could take it.
  hurry(id, text) {
    try {
      localStorage.setItem(HURRIED, JSON.stringify({ id, text }));
    } catch {
      // then it is as it was kept last
    }
  }

  // That text, once.
  hurried(id) {
    try {
      const left = JSON.parse(localStorage.getItem(HURRIED));
      if (left?.id !== id) return null;
      localStorage.removeItem(HURRIED);
      return left.text;
    } catch {
      return null;
    }
  }

  async all() {
    const base = await this.ready;
    const kept = base ? await done(base.transaction(CHATS).objectStore(CHATS).getAll()) : [];
    const known = new Set(kept.map((chat) => chat.id));
    return [...kept, ...[...this.memory[CHATS].values()].filter((chat) => !known.has(chat.id))];
  }

  async read(kind, key) {
    const held = this.memory[kind].get(key);
    const base = await this.ready;
    return held ?? (base ? await done(base.transaction(kind).objectStore(kind).get(key)) : undefined);
  }

  async write(kind, key, value) {
    const base = await this.ready;
    try {
      if (!base) throw new Error("no store");
      const transaction = base.transaction(kind, "readwrite");
      transaction.objectStore(kind).put(value, key);
      await finished(transaction);
      this.memory[kind].delete(key);
    } catch (error) {
      this.memory[kind].set(key, value);
      if (base)
        this.lose(
          error?.name === "QuotaExceededError"
            ? "This browser's room for this page is full"
            : "This browser keeps no more for this page",
        );
    }
  }

  async drop(kind, key) {
    this.memory[kind].delete(key);
    const base = await this.ready;
    if (!base) return;
    const transaction = base.transaction(kind, "readwrite");
    transaction.objectStore(kind).delete(key);
    await finished(transaction).catch(() => {});
  }

  lose(why) {
    this.trouble?.(`${why}: what is new here will be gone when the page is closed.`);
    this.trouble = null;
    return null;
  }
}

function open() {
  return new Promise((resolve, reject) => {
    const asked = indexedDB.open("mmswap", 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore(CHATS);
      asked.result.createObjectStore(PICTURES);
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

function done(asked) {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}
