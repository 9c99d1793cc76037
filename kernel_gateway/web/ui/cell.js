// One cell of the notebook. Out of view it is an empty box of its last height; its content is made when the feed sends
// its outputs, which it does for cells in view.
import { call } from "../admin/api.js";
import { button, chip, form, h, labelled, Notice } from "../admin/dom.js";
import { bytes } from "../admin/format.js";
import { Outputs } from "./outputs.js";

const KINDS = { waiting: "plain", running: "warn", done: "good", failed: "bad" };
const CHANGES = {
  lost: "The variables of the cells above are gone",
  restarted: "The kernel was restarted, and the variables of the cells above are gone",
  rolled_back: "The cells above that are marked as undone have no effect any more",
};
/** characters of code that are shown at once */
const CODE = 20_000;
/** pixels of the line in place of a cell that is kept no longer */
const GONE = 20;

export class Cell {
  #session;
  #element = null;
  #gone = false;
  #head = null;
  #code = "";
  #outputs = null;
  /** number of the question that is shown */
  #asked;
  #fresh = false;
  seen = false;

  /** pixels that its content takes, or probably takes */
  height = 0;

  /**
   * @param session returns its session as it is now
   * @param stretch the stretch of cells where it stands
   */
  constructor(session, number, stretch) {
    this.#session = session;
    this.number = number;
    this.stretch = stretch;
  }

  /** Its element, which most of thousands of cells never need. */
  get element() {
    if (!this.#element) {
      const place = { id: `cell-${this.number}`, tabindex: "-1", "aria-posinset": this.number, "aria-setsize": "-1" };
      this.#element = h("article", { class: "cell", ...place });
      this.#element.cell = this;
      this.#name();
      if (this.#gone) this.#drawGone();
      else this.#fill();
    }
    return this.#element;
  }

  /** What a heading shows has changed. */
  tell(head) {
    if (this.#head === null) {
      this.height = 70 + 21 * Math.min(12, head.code.split("\n").length) + (head.bytes > 400 ? 60 : 0);
      if (this.#element) this.#fill();
    }
    this.#head = head;
    if (this.#element) this.#name();
    if (this.#outputs) this.#draw();
  }

  #name() {
    this.#element.setAttribute("aria-label", `Cell ${this.number}${this.#head ? `, ${this.#head.state}` : ""}`);
  }

  get state() {
    return this.#head?.state;
  }

  get code() {
    return this.#code || (this.#head && this.#head.chars <= this.#head.code.length ? this.#head.code : "");
  }

  get question() {
    return this.#head?.question ?? null;
  }

  /** It has come into view: the feed sends its outputs from their beginning. */
  enter() {
    this.seen = true;
    this.#fresh = false;
  }

  /** It is out of view: forget what it shows, and stay as high as it was. */
  leave(height = this.height) {
    this.seen = false;
    if (!this.#outputs) return;
    this.#outputs.clear();
    this.#outputs = null;
    this.#asked = undefined;
    this.height = height;
    this.#fill();
  }

  /** Take room without content. The height is that of a child, as a stretch's is. */
  #fill() {
    const filler = h("div", {});
    filler.style.height = `${this.height}px`;
    this.#element.replaceChildren(filler);
  }

  /** Further outputs; those before the first `fresh` ones belong to an earlier look at this cell. */
  show({ fresh, code, outputs }) {
    if (code !== undefined) this.#fresh = true;
    if (!this.seen || !this.#fresh || !this.#head) return;
    if (!this.#outputs) this.#make(code ?? "");
    if (fresh) this.#outputs.clear();
    this.#outputs.add(outputs);
  }

  /** The gateway does not keep it any more. */
  forget() {
    this.leave();
    this.#gone = true;
    this.height = GONE;
    if (this.#element) this.#drawGone();
  }

  #drawGone() {
    this.#element.classList.add("gone");
    this.#element.replaceChildren(h("p", { class: "hint" }, `Cell ${this.number} is no longer kept.`));
  }

  #make(code) {
    this.#code = code.length <= CODE ? code : "";
    this.#outputs = new Outputs();
    const shown = code.length > CODE ? `${code.slice(0, CODE)}\n… ${code.length - CODE} characters more` : code;
    this.parts = {
      before: h("p", { class: "notice warn", hidden: true }),
      count: h("a", { class: "count", href: `#${this.#session().name}/cell-${this.number}`, "aria-label": `Link to cell ${this.number}` }),
      state: h("span", {}),
      problem: h("p", { class: "notice bad", hidden: true }),
      question: h("div", { class: "question" }),
      more: h("p", { class: "hint", hidden: true }),
    };
    const { before, count, state, problem, question, more } = this.parts;
    const source = h("pre", { class: "code", "aria-label": "Code" }, shown);
    this.#element.replaceChildren(
      ...[before, h("div", { class: "head" }, count, source, state), this.#outputs.element, more, problem, question],
    );
    this.#draw();
  }

  #draw() {
    const head = this.#head;
    const { before, count, state, problem, question, more } = this.parts;
    before.hidden = !head.before;
    if (head.before) before.textContent = `${CHANGES[head.before.change] ?? head.before.change}: ${head.before.reason}`;
    count.textContent = `[${head.count ?? (head.state === "running" ? "*" : " ")}]`;
    state.replaceChildren(chip(head.state, KINDS[head.state]), ...(head.undone ? [chip("undone", "warn")] : []));
    this.#element.classList.toggle("undone", head.undone);
    problem.hidden = !head.error;
    if (head.error) problem.textContent = `${head.error.message} (${head.error.code})`;
    more.hidden = !head.omitted;
    more.textContent = `${bytes(head.omitted)} of output were left out, because a limit was reached.`;
    this.#ask(question, head.question);
  }

  #ask(place, question) {
    if (question?.number === this.#asked) return;
    this.#asked = question?.number;
    place.replaceChildren();
    if (!question) return;
    const notice = new Notice();
    const input = h("input", { type: question.password ? "password" : "text", spellcheck: "false", autocomplete: "off" });
    const send = h("button", { class: "main" }, "Send");
    const answer = async (text) => {
      const { name, id } = this.#session();
      const path = `ui/sessions/${encodeURIComponent(name)}/input`;
      try {
        await call("POST", path, { session: id, cell: this.number, question: question.number, input: text });
        place.replaceChildren();
      } catch (failure) {
        notice.fail(failure);
      }
    };
    place.append(
      form(
        { "aria-label": "The cell asks for input" },
        send,
        () => answer(input.value),
        labelled(h("bdi", {}, question.prompt || "Input"), input),
        send,
        button("End of input", () => answer(null)),
        notice.element,
      ),
    );
  }
}
