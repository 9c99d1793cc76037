// One cell of the notebook. Out of view it is an empty box of its last height, so that thousands of them cost little;
// its content is made when the feed sends its outputs, which it does for cells in view.
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

export class Cell {
  #session;
  #head = null;
  #code = "";
  #outputs = null;
  #asked = "";
  #fresh = false;
  seen = false;

  /** @param session name of its session */
  constructor(session, number) {
    this.#session = session;
    this.number = number;
    this.element = h("article", { class: "cell", id: `cell-${number}`, tabindex: "-1", "aria-label": `Cell ${number}` });
    this.element.cell = this;
  }

  /** What a heading shows has changed. */
  tell(head) {
    const estimate = 70 + 21 * Math.min(12, head.code.split("\n").length) + (head.bytes > 400 ? 60 : 0);
    if (this.#head === null) this.#fill(estimate);
    this.#head = head;
    this.element.setAttribute("aria-label", `Cell ${head.number}, ${head.state}`);
    if (this.#outputs) this.#draw();
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
  leave(height = 0) {
    this.seen = false;
    if (!this.#outputs) return;
    this.#outputs.clear();
    this.#outputs = null;
    this.#asked = "";
    this.#fill(height);
  }

  /** Take room without content. The height is that of a child, because a browser stops to hold the place that the
   * reader looks at when the height of an element around that place is set. */
  #fill(height) {
    const filler = h("div", {});
    filler.style.height = `${height}px`;
    this.element.replaceChildren(filler);
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
    this.element.classList.add("gone");
    this.element.replaceChildren(h("p", { class: "hint" }, `Cell ${this.number} is no longer kept.`));
  }

  #make(code) {
    this.#code = code.length <= CODE ? code : "";
    this.#outputs = new Outputs();
    const shown = code.length > CODE ? `${code.slice(0, CODE)}\n… ${code.length - CODE} characters more` : code;
    this.parts = {
      before: h("p", { class: "notice warn", hidden: true }),
      count: h("a", { class: "count", href: `#${this.#session}/cell-${this.number}`, "aria-label": `Link to cell ${this.number}` }),
      state: h("span", {}),
      problem: h("p", { class: "notice bad", hidden: true }),
      question: h("div", { class: "question" }),
      more: h("p", { class: "hint", hidden: true }),
    };
    const { before, count, state, problem, question, more } = this.parts;
    const source = h("pre", { class: "code", "aria-label": "Code" }, shown);
    this.element.replaceChildren(
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
    this.element.classList.toggle("undone", head.undone);
    problem.hidden = !head.error;
    if (head.error) problem.textContent = `${head.error.message} (${head.error.code})`;
    more.hidden = !head.omitted;
    more.textContent = `${bytes(head.omitted)} of output were left out, because a limit was reached.`;
    this.#ask(question, head.question);
  }

  #ask(place, question) {
    const asked = question ? `${question.execution} ${question.number}` : "";
    if (asked === this.#asked) return;
    this.#asked = asked;
    place.replaceChildren();
    if (!question) return;
    const notice = new Notice();
    const input = h("input", { type: question.password ? "password" : "text", spellcheck: "false", autocomplete: "off" });
    const send = h("button", { class: "main" }, "Send");
    const answer = async (text) => {
      const path = `v1/sessions/${encodeURIComponent(this.#session)}/executions/${question.execution}/input`;
      try {
        await call("POST", path, { input: text, question: question.number });
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
