// Numbers and errors as people read them. Knows no page.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let power = 0;
  let size = count;
  while (size >= 1024 && power < UNITS.length - 1) {
    size /= 1024;
    power += 1;
  }
  return power ? `${size.toFixed(1)} ${UNITS[power]}` : `${count} B`;
}

export function milliseconds(time) {
  if (time >= 10_000) return `${(time / 1000).toFixed(0)} s`;
  if (time >= 1000) return `${(time / 1000).toFixed(1)} s`;
  return time >= 10 ? `${time.toFixed(0)} ms` : `${time.toFixed(1)} ms`;
}

export function rate(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function count(number, noun, nouns = `${noun}s`) {
  return `${number} ${number === 1 ? noun : nouns}`;
}

function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "100 %";
}

// How long the weights took to come back after a window, and how much of that nobody had to wait for.
export function back(time, hidden) {
  return `Back in ${milliseconds(time)}, ${share(hidden, time)} of it behind the prefill.`;
}

export function when(time) {
  const day = new Date(time);
  const today = day.toDateString() === new Date().toDateString();
  return today
    ? day.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : day.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" });
}

// What went wrong, as one sentence for a person. `status` and `code` are the server's, where it had the word.
export class Trouble extends Error {
  constructor(sentence, status = 0, code = "") {
    super(sentence);
    this.status = status;
    this.code = code;
  }
}

export const UNREACHABLE = "The server does not answer. Is it still running?";
export const CUT = "The answer ends here because the connection to the server was lost.";

export function troubleOf(error) {
  if (error instanceof Trouble) return error;
  if (error instanceof TypeError) return new Trouble(UNREACHABLE); // what fetch throws when there is no answer
  return new Trouble(`The page failed: ${String(error?.message || error).replace(/[.\s]+$/, "")}.`);
}
