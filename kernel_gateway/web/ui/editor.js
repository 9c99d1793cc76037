// The cell to run code in. Shift+Enter runs it, Tab completes, the arrows go through the code of earlier cells, and F9 sets
// a breakpoint for the debugger.
import { call } from "../admin/api.js";
import { button, h, labelled, newId } from "../admin/dom.js";
import { Breakpoints } from "./breakpoints.js";

/** completions that are shown */
const MOST = 50;

export class Editor {
  #path;
  #notice;
  #codes;
  #own = [];
  #ran;
  #debug = null;
  #breakpoints;
  #place = null;
  #busy = false;
  #list = h("ul", { class: "matches", role: "listbox", id: newId(), "aria-label": "Completions", hidden: true });
  #completion = null;

  /**
   * @param codes returns the code of earlier cells, oldest first
   * @param ran called when code was sent
   * @param launch debugs code with breakpoints, and with the exceptions where it stops, too; returns whether that began
   */
  constructor(path, notice, codes, ran, launch) {
    this.#ran = ran;
    this.#path = path;
    this.#notice = notice;
    this.#codes = codes;
    const id = newId();
    const hint = h("p", { class: "hint", id: newId() });
    hint.textContent = "Shift+Enter runs it. Tab completes; Escape, then Tab, leaves. Up and down: earlier cells. F9: breakpoint.";
    this.input = h("textarea", {
      id,
      class: "code",
      rows: "3",
      wrap: "off",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      "aria-describedby": hint.id,
      "aria-controls": this.#list.id,
    });
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("input", () => this.#typed());
    this.input.addEventListener("blur", () => this.#close());
    this.#breakpoints = new Breakpoints(this.input);
    this.#debug = this.#debugging(launch);
    this.element = h(
      "section",
      { class: "editor card", "aria-label": "Run code" },
      h(
        "div",
        { class: "line apart" },
        h("label", { for: id }, "Code"),
        h("div", { class: "line" }, this.#debug, button("Run", () => this.run(), { kind: "main" })),
      ),
      h("div", { class: "typed" }, this.#breakpoints.gutter, this.input, this.#list),
      this.#breakpoints.list,
      hint,
    );
  }

  #debugging(launch) {
    const uncaught = h("input", { type: "checkbox" });
    const debug = async () => {
      if (!this.input.value.trim()) return this.input.focus();
      const began = await launch(this.input.value, this.#breakpoints.all, uncaught.checked ? ["uncaught"] : []);
      if (began) this.#ran();
    };
    return h("div", { class: "line" }, labelled("Stop at errors", uncaught), button("Debug", debug));
  }

  told({ state, can_debug: canDebug }) {
    this.#busy = state === "busy";
    this.#debug.hidden = !canDebug;
  }

  /** Show in which line the debugged cell stands; null: in none. */
  mark(line) {
    this.#breakpoints.mark(line);
  }

  async run() {
    const code = this.input.value;
    if (!code.trim()) return this.input.focus();
    this.#notice.clear();
    const waits = this.#busy;
    try {
      await call("POST", `${this.#path}/execute`, { code, wait: false, interactive: true });
    } catch (failure) {
      return this.#notice.fail(failure);
    }
    if (waits) this.#notice.tell("Another cell runs. This one runs when its turn comes.", "plain");
    this.#own.push(code);
    this.#ran();
    this.#place = null;
    if (this.input.value === code) this.input.value = "";
    this.#typed();
    this.input.focus({ preventScroll: true });
  }

  #typed() {
    this.#close();
    this.#breakpoints.typed();
    this.input.rows = Math.min(18, Math.max(3, this.input.value.split("\n").length));
  }

  #key(event) {
    const { key } = event;
    if (this.#completion && this.#choose(key)) return event.preventDefault();
    if (key === "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.run();
    } else if (key === "F9" && !this.#debug.hidden) {
      event.preventDefault();
      this.#breakpoints.toggleHere();
    } else if (key === "Tab" && !event.shiftKey && !this.#leaving && this.input.value) {
      event.preventDefault();
      this.#tab();
    } else if ((key === "ArrowUp" && this.#onFirstLine()) || (key === "ArrowDown" && this.#onLastLine())) {
      if (this.#recall(key === "ArrowUp" ? -1 : 1)) event.preventDefault();
    }
    this.#leaving = key === "Escape"; // then Tab goes on to the next control, as without this editor
  }

  #leaving = false;

  #onFirstLine() {
    return !this.input.value.slice(0, this.input.selectionStart).includes("\n");
  }

  #onLastLine() {
    return !this.input.value.slice(this.input.selectionEnd).includes("\n");
  }

  // -- history -----------------------------------------------------------------------------------------------

  /** Show the code of another cell, unless the present code was typed and is shown nowhere else. */
  #recall(step) {
    const codes = [...new Set([...this.#codes(), ...this.#own].reverse())].reverse();
    const place = this.#place ?? codes.length;
    if (this.#place === null ? this.input.value || step > 0 : this.input.value !== codes[place]) return false;
    const next = Math.max(0, Math.min(codes.length, place + step));
    this.#place = next === codes.length ? null : next;
    this.input.value = codes[next] ?? "";
    this.#typed();
    const end = step < 0 ? 0 : this.input.value.length;
    this.input.setSelectionRange(end, end);
    return true;
  }

  // -- completion --------------------------------------------------------------------------------------------

  async #tab() {
    const { value, selectionStart: at } = this.input;
    if (!/[\w.\])]/.test(value[at - 1] ?? "")) {
      this.input.setRangeText("    ", at, this.input.selectionEnd, "end");
      return this.#typed();
    }
    let found;
    try {
      // A kernel counts characters, and this language counts halves of some.
      const asked = { code: value, cursor: [...value.slice(0, at)].length };
      found = await call("POST", `${this.#path}/complete`, asked);
    } catch (failure) {
      return this.#notice.fail(failure);
    }
    if (this.input.value !== value || this.input.selectionStart !== at || !found.matches.length) return;
    const units = (count) => [...value].slice(0, count).join("").length;
    this.#completion = { ...found, from: units(found.start), to: units(found.end), chosen: 0 };
    if (found.matches.length === 1) this.#take();
    else this.#open();
  }

  #open() {
    const rows = this.#completion.matches.slice(0, MOST).map((match, index) => {
      const row = h("li", { role: "option", id: `${this.#list.id}-${index}` }, match);
      row.addEventListener("mousedown", (event) => {
        event.preventDefault();
        this.#completion.chosen = index;
        this.#take();
      });
      return row;
    });
    this.#list.replaceChildren(...rows);
    this.#list.hidden = false;
    this.#mark();
  }

  #mark() {
    [...this.#list.children].forEach((row, index) => row.setAttribute("aria-selected", index === this.#completion.chosen));
    const row = this.#list.children[this.#completion.chosen];
    this.input.setAttribute("aria-activedescendant", row.id);
    row.scrollIntoView({ block: "nearest" });
  }

  /** What a key does while completions are shown; whether it does anything. */
  #choose(key) {
    const last = this.#list.childElementCount - 1;
    if (key === "ArrowDown") this.#completion.chosen = Math.min(last, this.#completion.chosen + 1);
    else if (key === "ArrowUp") this.#completion.chosen = Math.max(0, this.#completion.chosen - 1);
    else if (key === "Enter" || key === "Tab") return this.#take() ?? true;
    else if (key === "Escape") return this.#close() ?? true;
    else return false;
    this.#mark();
    return true;
  }

  #take() {
    const { matches, from, to, chosen } = this.#completion;
    this.input.setRangeText(matches[chosen], from, to, "end");
    this.#typed();
  }

  #close() {
    this.#completion = null;
    this.#list.hidden = true;
    this.input.removeAttribute("aria-activedescendant");
  }
}
