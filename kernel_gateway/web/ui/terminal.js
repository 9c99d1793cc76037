// Printed text as a terminal shows it: colours, carriage returns, and lines that are written anew (progress bars).
// Only the last lines are kept, so text without end takes bounded memory.
import { h } from "../admin/dom.js";

/** lines that are shown of one output, and columns of a line before it is broken */
const LINES = 2000;
const COLUMNS = 5000;
/** lines in a row that a browser lays out only when they come into view (ui.css) */
const GROUP = 25;
/** characters of an escape sequence that is not complete yet */
const PENDING = 200;
const ESCAPES =
  /\x1b\[([0-9;:?]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()#][0-9A-Za-z]|\x1b[^[\]()#]|[\r\n\b]|[\0-\x08\x0b-\x1f\x7f]/g;
const INCOMPLETE = /\x1b(?:\[[0-9;:?]*|\][^\x07\x1b]*|[()#])?$/;
const ON = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck" };
const OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["struck"] };

export class Terminal {
  element = h("pre", { class: "text" });
  #lines = [blank()];
  #nodes = [];
  #row = 0;
  #column = 0;
  #style = {};
  #look = null;
  #pending = "";
  #left = 0;
  #dirty = 0;
  #note = null;

  write(text) {
    text = this.#pending + text;
    const rest = INCOMPLETE.exec(text);
    this.#pending = rest && rest[0].length < PENDING ? rest[0] : "";
    if (this.#pending) text = text.slice(0, -this.#pending.length);
    let from = 0;
    for (const found of text.matchAll(ESCAPES)) {
      this.#put(text.slice(from, found.index));
      from = found.index + found[0].length;
      this.#control(found[0], found[1], found[2]);
    }
    this.#put(text.slice(from));
    this.#draw();
  }

  #control(whole, parameters, letter) {
    const number = Number.parseInt(parameters, 10) || 1;
    if (whole === "\n") this.#newLine();
    else if (whole === "\r") this.#column = 0;
    else if (whole === "\b") this.#column = Math.max(0, this.#column - 1);
    else if (letter === "m") this.#paint(parameters);
    else if (letter === "K") this.#erase(parameters);
    else if (letter === "A") this.#go(this.#row - number);
    else if (letter === "B") this.#go(this.#row + number);
    else if (letter === "C") this.#column = Math.min(COLUMNS, this.#column + number);
    else if (letter === "D") this.#column = Math.max(0, this.#column - number);
    else if (letter === "G") this.#column = Math.min(COLUMNS, number - 1);
  }

  #put(text) {
    while (text) {
      const room = COLUMNS - this.#column;
      if (room <= 0) {
        this.#newLine();
        continue;
      }
      overwrite(this.#lines[this.#row], this.#column, text.slice(0, room), this.#look);
      this.#column += Math.min(room, text.length);
      this.#touch(this.#row);
      text = text.slice(room);
    }
  }

  #newLine() {
    this.#column = 0;
    this.#row += 1;
    if (this.#row === this.#lines.length) this.#lines.push(blank());
    this.#touch(this.#row);
    if (this.#lines.length >= 2 * LINES) this.#forget();
  }

  /** Drop the first lines. */
  #forget() {
    const gone = this.#lines.length - LINES;
    this.#lines.splice(0, gone);
    for (const node of this.#nodes.splice(0, gone)) {
      const group = node.parentNode;
      node.remove();
      if (!group.hasChildNodes()) group.remove();
    }
    this.#left += gone;
    this.#row = Math.max(0, this.#row - gone);
    this.#dirty = Math.max(0, this.#dirty - gone);
  }

  #go(row) {
    this.#row = Math.max(0, Math.min(row, this.#lines.length - 1));
  }

  #erase(parameters) {
    const line = this.#lines[this.#row];
    if (parameters === "2") line.text = "";
    else if (parameters === "1") overwrite(line, 0, " ".repeat(this.#column), null);
    else line.text = line.text.slice(0, this.#column);
    line.looks?.splice(line.text.length);
    this.#touch(this.#row);
  }

  #touch(row) {
    this.#lines[row].changed = true;
    this.#dirty = Math.min(this.#dirty, row);
  }

  #paint(parameters) {
    const codes = parameters.split(/[;:]/).map((code) => Number.parseInt(code, 10) || 0);
    while (codes.length) {
      const code = codes.shift();
      if (code === 0) this.#style = {};
      else if (ON[code]) this.#style[ON[code]] = true;
      else if (OFF[code]) for (const name of OFF[code]) delete this.#style[name];
      else if (code >= 30 && code <= 37) this.#style.fg = code - 30;
      else if (code >= 90 && code <= 97) this.#style.fg = code - 82;
      else if (code >= 40 && code <= 47) this.#style.bg = code - 40;
      else if (code >= 100 && code <= 107) this.#style.bg = code - 92;
      else if (code === 38 || code === 48) this.#style[code === 38 ? "fg" : "bg"] = extended(codes);
      else if (code === 39) delete this.#style.fg;
      else if (code === 49) delete this.#style.bg;
    }
    this.#look = Object.values(this.#style).some((value) => value != null) ? { ...this.#style } : null;
  }

  /** Put the node of a further line behind the others. */
  #place(node) {
    let group = this.element.lastElementChild;
    if (!group?.classList.contains("rows") || group.childElementCount >= GROUP) {
      group = h("span", { class: "rows" });
      this.element.append(group);
    }
    group.append(node);
  }

  #draw() {
    if (this.#left) {
      this.#note ??= h("p", { class: "hint" });
      this.#note.textContent = `${this.#left.toLocaleString("en")} earlier lines are not shown. The notebook has them.`;
      if (this.#note.parentNode !== this.element) this.element.prepend(this.#note);
    }
    for (let row = this.#dirty; row < this.#lines.length; row++) {
      const line = this.#lines[row];
      const last = row === this.#lines.length - 1;
      if (last && !line.text) break; // an empty last line is no line yet
      if (!this.#nodes[row]) this.#place((this.#nodes[row] = h("span", { class: "row" })));
      else if (!line.changed) continue;
      this.#nodes[row].replaceChildren(...pieces(line), "\n");
      line.changed = false;
    }
    this.#dirty = Math.max(0, this.#lines.length - 1);
  }
}

function blank() {
  return { text: "", looks: null, changed: true };
}

function overwrite(line, column, text, look) {
  if (line.text.length < column) line.text = line.text.padEnd(column);
  if (look || line.looks) {
    line.looks ??= [];
    for (let at = 0; at < text.length; at++) line.looks[column + at] = look;
  }
  line.text = line.text.slice(0, column) + text + line.text.slice(column + text.length);
}

/** The elements of a line: one for each run of characters with the same look. */
function pieces(line) {
  if (!line.looks) return [line.text];
  const made = [];
  for (let from = 0; from < line.text.length; ) {
    let to = from + 1;
    const look = line.looks[from] ?? null;
    while (to < line.text.length && (line.looks[to] ?? null) === look) to++;
    const text = line.text.slice(from, to);
    made.push(look ? painted(text, look) : text);
    from = to;
  }
  return made;
}

function painted(text, look) {
  const names = Object.keys(look).filter((name) => look[name] === true);
  const node = h("span", {}, text);
  for (const name of ["fg", "bg"]) {
    if (typeof look[name] === "number") names.push(`${name}${look[name]}`);
    else if (look[name]) {
      names.push(name);
      node.style.setProperty(`--${name}`, look[name]);
    }
  }
  node.className = names.join(" ");
  return node;
}

/** One of 256 colours, or any: the first 16 are numbers, for which the page has its own. */
function extended(codes) {
  const kind = codes.shift();
  if (kind === 2) {
    const [red, green, blue] = codes.splice(0, 3).map((part) => Math.min(part, 255));
    return `rgb(${red ?? 0} ${green ?? 0} ${blue ?? 0})`;
  }
  if (kind !== 5) return undefined;
  const number = codes.shift() ?? 0;
  if (number < 16) return number;
  if (number > 231) return `rgb(${Array(3).fill(8 + 10 * (Math.min(number, 255) - 232)).join(" ")})`;
  const level = (part) => (part ? 55 + 40 * part : 0);
  const cube = number - 16;
  return `rgb(${level(Math.floor(cube / 36))} ${level(Math.floor(cube / 6) % 6)} ${level(cube % 6)})`;
}
