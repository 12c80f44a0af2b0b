// The page: what happens when something is pressed, typed, dropped or told by the server.

import { model, reconnect, watch } from "./api.js";
import { CardPicture } from "./card.js";
import { Chat } from "./chat.js";
import { Picked, receive, sortFiles } from "./pictures.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";
import { Turns, button, element } from "./turns.js";
import { UNREACHABLE, when } from "./words.js";

const HERE = "mmswap.chat"; // which chat this tab shows
const STATES = {
  ready: "Ready",
  unloaded: "Asleep",
  failed: "The model could not be loaded",
  stopping: "Stopping",
};
const NEAR = 80; // pixels from the end within which the page goes along with the answer
const TOUCH = matchMedia("(pointer: coarse)");

const at = (id) => document.getElementById(id);
const question = at("question");
const scroll = at("scroll");

const store = new Store(lose);
const settings = new Settings(at("settings"), reconnect);
const picked = new Picked(at("picked"), view, ready);
const turns = new Turns(at("turns"), {
  again: () => chat.again(),
  edit,
  view,
  grown: follow,
  settings: () => settings.open("key"),
});
const chat = new Chat(store, turns, settings, { begun, ended });
const card = new CardPicture(at("card"));

let following = true;

// -- asking

at("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  await reading; // a picture that was dropped goes along
  const text = question.value.trim();
  if (chat.running || !(text || picked.files.length)) return;
  notice("");
  question.value = "";
  fit();
  following = true;
  chat.send(text, picked.take());
});

question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || TOUCH.matches) return;
  event.preventDefault();
  at("ask").requestSubmit();
});
question.addEventListener("input", fit);
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", refocus);
at("stop").addEventListener("click", () => chat.stop());
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.running && !document.querySelector("dialog[open]")) chat.stop();
});

// Chromium gives the focus back to the field when a dialog closes, and then lets what is typed go nowhere.
function refocus() {
  if (document.activeElement !== question) return;
  question.blur();
  question.focus();
}

function begun() {
  at("empty").hidden = true;
  at("stop").hidden = false;
  at("send").hidden = true;
  document.body.classList.add("answering");
  remember();
  if (!TOUCH.matches) question.focus();
  follow();
}

function ended(turn) {
  if (chat.running) return;
  const inStop = document.activeElement === at("stop");
  at("stop").hidden = true;
  at("send").hidden = false;
  document.body.classList.remove("answering");
  if (inStop) question.focus();
  at("said").textContent = turn.error?.sentence ?? (turn.text || "No answer.");
  if (turn.error?.status === 401) settings.open("key");
}

async function edit() {
  const { text, files } = await chat.takeBack();
  question.value = text;
  picked.add(files);
  at("empty").hidden = chat.kept.turns.length > 0;
  fit();
  question.focus();
}

function fit() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
  ready();
}

function ready() {
  at("send").disabled = !question.value.trim() && picked?.files.length === 0;
}

// -- pictures

at("add").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", (event) => {
  take(event.target.files);
  event.target.value = "";
});
receive(at("dropzone"), take);

let reading = Promise.resolve(); // what was dropped, pasted or picked

function take(files) {
  const sorted = sortFiles(files);
  reading = reading.then(async () => {
    const { good, sentence } = await sorted;
    picked.add(good);
    notice(sentence);
    question.focus();
  });
}

function view(address, name) {
  at("viewed").src = address;
  at("viewed").alt = name;
  at("viewed-name").textContent = name;
  at("viewer").showModal();
}

let lasting = ""; // what stays true whatever is asked

function notice(sentence) {
  const shown = sentence || lasting;
  if (at("notice").textContent !== shown) at("notice").textContent = shown;
  at("notice").hidden = !shown;
}

function lose(sentence) {
  lasting = sentence;
  notice("");
}

// -- the end of the conversation stays in sight, unless somebody reads above

scroll.addEventListener("scroll", () => {
  following = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
});

function follow() {
  if (following) scroll.scrollTop = scroll.scrollHeight;
}

// -- chats

at("new").addEventListener("click", fresh);
at("open-settings").addEventListener("click", () => settings.open());
at("open-chats").addEventListener("click", async () => {
  await listChats();
  at("chats").showModal();
});

function fresh() {
  chat.begin();
  ended({ text: "A new chat." });
  remember();
  at("empty").hidden = false;
  question.focus();
}

async function open(id) {
  const found = await chat.open(id);
  if (!found) return fresh();
  at("empty").hidden = chat.kept.turns.length > 0;
  following = true;
  requestAnimationFrame(() => requestAnimationFrame(follow)); // once the answers are drawn
  return remember();
}

async function listChats() {
  const rows = (await store.list()).map((one) => {
    const row = element("li");
    const pick = button(one.title || "Without a title", "title", () => {
      at("chats").close();
      open(one.id);
    });
    if (one.id === chat.kept.id) pick.setAttribute("aria-current", "true");
    const remove = button("Delete", "", async () => {
      const shown = one.id === chat.kept.id;
      await chat.discard(one);
      if (shown) fresh();
      await listChats();
    });
    remove.setAttribute("aria-label", `Delete ${one.title}`);
    row.append(pick, element("span", "when", when(one.changed)), remove);
    return row;
  });
  at("chat-list").replaceChildren(...(rows.length ? rows : [element("li", "note", "There is none yet.")]));
}

function remember() {
  try {
    sessionStorage.setItem(HERE, chat.kept.id);
  } catch {
    // this browser keeps nothing: the store has said so
  }
}

async function resume() {
  let id = null;
  try {
    id = sessionStorage.getItem(HERE);
  } catch {
    // as above
  }
  id ??= (await store.list())[0]?.id;
  if (id) await open(id);
}

addEventListener("pagehide", () => chat.hurry());
store.listen((id) => {
  if (id === chat.kept.id && !chat.running) open(id);
});

// -- the server

let loaded = false;

function see(seen) {
  const progress = seen.state === "loading" ? `Loading, ${Math.round(100 * seen.progress)} %` : "";
  state(progress || (STATES[seen.state] ?? seen.state), seen.state);
  if (seen.state === "ready" && !loaded) learnModel();
  loaded = seen.state === "ready";
  card.show(seen);
}

function lost(error) {
  loaded = false;
  if (error?.status === 401) {
    state("A key is wanted", "failed");
    if (!settings.key && !at("settings").open) settings.open("key");
  } else {
    state(error?.status ? error.message : "Not connected", "failed");
    at("state").title = UNREACHABLE;
  }
}

function state(words, kind) {
  const shown = at("state");
  if (shown.textContent !== words) shown.textContent = words;
  shown.dataset.kind = kind;
  shown.removeAttribute("title");
}

function unfold() {
  at("card").open = !narrow.matches;
}

async function learnModel() {
  try {
    const known = await model(settings.key);
    at("model").textContent = known.id;
    at("model").title = `${known.context_length} tokens of context`;
    document.title = `${known.id} · mmswap`;
  } catch {
    // not loaded yet, or not for us: the events say so
  }
}

const narrow = matchMedia("(max-width: 60rem)"); // as in the style sheets
narrow.addEventListener("change", unfold);
unfold();
fit();
if (!TOUCH.matches) question.focus();
resume();
watch(() => settings.key, see, lost);
