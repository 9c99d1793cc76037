// Numbers beside the lines of the editor. A line with a breakpoint is where the debugger stops, perhaps on a condition.
import { button, h, labelled } from "../admin/dom.js";

/** lines that have a number; the gateway takes fewer breakpoints than that */
const LINES = 2000;

export class Breakpoints {
  #input;
  #lines = [];
  /** conditions by line; "": none */
  #set = new Map();
  #count = 1;
  #stopped = null;
  #inner = h("div", {});
  /** the gutter is for the mouse; F9 in the editor does the same, and the list below is for everybody */
  gutter = h("div", { class: "gutter", "aria-hidden": "true" }, this.#inner);
  list = h("ul", { class: "breakpoints", "aria-label": "Breakpoints", hidden: true });

  /** @param input the editor's text */
  constructor(input) {
    this.#input = input;
    input.addEventListener("scroll", () => this.#scroll());
    this.#draw();
  }

  /** The breakpoints as the API takes them. */
  get all() {
    return [...this.#set].sort(([a], [b]) => a - b).map(([line, condition]) => (condition ? { line, condition } : { line }));
  }

  /** Set or take away the breakpoint of a line. */
  toggle(line) {
    if (!this.#set.delete(line)) this.#set.set(line, "");
    this.#draw();
    this.#showList();
  }

  /** That of the line where the text cursor is. */
  toggleHere() {
    this.toggle(this.#lineHere);
  }

  /** Show where the debugged cell stands; null: nowhere. */
  mark(line) {
    this.#stopped = line;
    this.#draw();
  }

  /** The text has changed: breakpoints below stay with their lines. */
  typed() {
    const count = this.#input.value.split("\n").length;
    const grown = count - this.#count;
    this.#count = count;
    if (grown && this.#set.size) {
      const [here, below] = [this.#lineHere, this.#lineHere - Math.max(grown, 0)];
      const moved = [...this.#set].filter(([line]) => grown > 0 || line <= here || line > here - grown);
      this.#set = new Map(moved.map(([line, condition]) => [line > below ? line + grown : line, condition]));
      for (const line of this.#set.keys()) if (line > count) this.#set.delete(line);
      this.#showList();
    }
    this.#draw();
  }

  get #lineHere() {
    return this.#input.value.slice(0, this.#input.selectionStart).split("\n").length;
  }

  #draw() {
    const count = Math.min(LINES, Math.max(this.#count, 1));
    while (this.#lines.length < count) {
      const line = this.#lines.length + 1;
      const number = h("span", { onclick: () => this.toggle(line) }, String(line));
      this.#lines.push(number);
      this.#inner.append(number);
    }
    while (this.#lines.length > count) this.#lines.pop().remove();
    this.#lines.forEach((number, index) => {
      number.className = `${this.#set.has(index + 1) ? "set" : ""} ${this.#stopped === index + 1 ? "stopped" : ""}`;
    });
    this.#scroll();
  }

  #scroll() {
    this.#inner.style.transform = `translateY(${-this.#input.scrollTop}px)`;
  }

  #showList() {
    this.list.hidden = !this.#set.size;
    const rows = [...this.#set.keys()].sort((a, b) => a - b).map((line) => this.#row(line));
    this.list.replaceChildren(...rows);
  }

  #row(line) {
    const condition = h("input", { class: "code", value: this.#set.get(line), placeholder: "always", spellcheck: "false" });
    condition.addEventListener("input", () => this.#set.set(line, condition.value.trim()));
    return h(
      "li",
      { class: "line" },
      labelled(`Line ${line}, if`, condition),
      button("Remove", () => this.toggle(line), { kind: "quiet small", "aria-label": `Remove the breakpoint of line ${line}` }),
    );
  }
}
