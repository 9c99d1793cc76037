// The cells of a session, oldest first. The window shows a few of thousands, so cells stand in stretches: one that is
// far from the window is an empty box of its height, and of the cells in the others only those in view have content.
import { h } from "../admin/dom.js";
import { Cell } from "./cell.js";

/** cells that the page shows, cells of a stretch, and cells whose outputs are held, which is what the feed allows */
const CELLS = 10_000;
const STRETCH = 32;
const SEEN = 64;
/** pixels around the window in which stretches have their cells, and in which cells have their content */
const NEAR = 2000;
const MARGIN = 400;
/** characters of outputs that are shown in one frame of the screen; more only of one large output */
const ROOM = 50_000;
/** what readers do to see something else */
const MOVES = ["wheel", "touchmove", "pointerdown", "keydown"];
/** pixels of a cell above and below its content (ui.css), and of the line below it */
const PADDING = 16;
const LINE = 1;

/** Cells in a row. */
class Stretch {
  cells = [];
  /** whether its cells have elements */
  drawn = false;

  constructor() {
    this.element = h("div", { class: "stretch" });
    this.element.stretch = this;
  }

  draw() {
    this.drawn = true;
    this.element.replaceChildren(...this.cells.map((cell) => cell.element));
  }

  /** Be an empty box. The height is that of a child, because a browser stops to hold the place that the reader looks at
   * when the height of an element around that place is set. */
  empty() {
    this.drawn = false;
    const filler = h("div", {});
    filler.style.height = `${this.cells.reduce((sum, cell) => sum + cell.height + PADDING + LINE, 0)}px`;
    this.element.replaceChildren(filler);
  }

  get focused() {
    return this.element.contains(document.activeElement);
  }
}

export class Cells {
  /** a feed for screen readers: articles that are loaded when the reader comes near */
  element = h("div", { class: "cells", role: "feed", "aria-label": "Cells" });
  #session;
  #see;
  #changing;
  #cells = new Map();
  #stretches = new Set();
  #last = null;
  /** stretches that wait for the rest of what is told at once */
  #added = new DocumentFragment();
  /** stretches near the window, cells in view, and cells whose outputs are held */
  #near = new Set();
  #seen = new Set();
  #held = new Set();
  #asked = false;
  /** the cell that a link has led to, until the reader moves */
  #target = null;
  /** outputs that are not shown yet */
  #waiting = [];
  #stretchWatch = new IntersectionObserver((entries) => this.#look(entries), { rootMargin: `${NEAR}px 0px` });
  #cellWatch = new IntersectionObserver((entries) => this.#look(entries), { rootMargin: `${MARGIN}px 0px` });

  /**
   * @param session returns the session as it is now
   * @param see called with the numbers of the cells whose outputs are to be sent
   * @param changing called before further outputs are shown
   */
  constructor(session, see, changing) {
    this.#changing = changing;
    this.#session = session;
    this.#see = see;
  }

  get size() {
    return this.#cells.size;
  }

  get(number) {
    return this.#cells.get(number);
  }

  /** Code of all cells, oldest first. */
  get codes() {
    return [...this.#cells.values()].map((cell) => cell.code).filter(Boolean);
  }

  clear() {
    for (const cell of this.#held) cell.leave();
    this.#stretchWatch.disconnect();
    this.#cellWatch.disconnect();
    for (const each of [this.#cells, this.#stretches, this.#near, this.#seen, this.#held]) each.clear();
    this.#last = this.#target = null;
    this.#waiting.length = 0;
    this.#added = new DocumentFragment();
    this.element.replaceChildren();
  }

  /** What headings show has changed, or cells are new. `more`: further ones follow at once, so nothing is drawn yet. */
  tell(heads, more) {
    const grown = new Set();
    for (const head of heads) {
      const cell = this.#cells.get(head.number) ?? this.#add(head.number);
      cell.tell(head);
      if (!cell.stretch.drawn) grown.add(cell.stretch);
    }
    for (const stretch of grown) stretch.empty();
    if (!more) this.element.append(this.#added);
    while (this.#cells.size > CELLS) this.remove(this.#cells.keys().next().value);
  }

  /** Bring a cell into view; whether there is such a one. */
  goTo(number) {
    const cell = this.#cells.get(number);
    if (!cell) return false;
    if (!cell.stretch.drawn) this.#draw(cell.stretch);
    cell.element.scrollIntoView({ block: "center" });
    cell.element.focus({ preventScroll: true });
    this.#target = cell;
    for (const kind of MOVES) addEventListener(kind, () => (this.#target = null), { once: true, passive: true });
    return true;
  }

  /** Outputs of a cell in view. They are shown by and by, so that the page answers its reader in between. */
  show(frame) {
    this.#waiting.push(frame);
    if (this.#waiting.length === 1) requestAnimationFrame(() => this.#showSome());
  }

  #showSome() {
    this.#changing();
    for (let room = ROOM; room > 0 && this.#waiting.length; ) {
      const frame = this.#waiting[0];
      room -= JSON.stringify(frame.outputs).length;
      this.#cells.get(frame.cell)?.show(frame);
      this.#waiting.shift();
    }
    if (this.#waiting.length) requestAnimationFrame(() => this.#showSome());
    this.#target?.element.scrollIntoView({ block: "center" }); // outputs of cells above have moved it
  }

  /** Keep a line in place of a cell. */
  forget(number) {
    const cell = this.#cells.get(number);
    if (!cell) return;
    this.#unsee(cell);
    cell.forget();
    if (!cell.stretch.drawn) cell.stretch.empty();
  }

  remove(number) {
    const cell = this.#cells.get(number);
    if (!cell) return;
    this.#unsee(cell);
    cell.leave();
    this.#cells.delete(number);
    const { stretch } = cell;
    stretch.cells.splice(stretch.cells.indexOf(cell), 1);
    if (stretch.drawn) cell.element.remove();
    else stretch.empty();
    if (!stretch.cells.length) this.#drop(stretch);
  }

  #add(number) {
    if (!this.#last || this.#last.cells.length >= STRETCH) this.#begin();
    const cell = new Cell(this.#session, number, this.#last);
    this.#cells.set(number, cell);
    this.#last.cells.push(cell);
    if (this.#last.drawn) {
      this.#last.element.append(cell.element);
      this.#cellWatch.observe(cell.element);
    }
    return cell;
  }

  /** Begin another stretch, which is near the window if the one before it is. */
  #begin() {
    const stretch = new Stretch();
    stretch.drawn = this.#near.has(this.#last);
    this.#stretches.add(stretch);
    this.#added.append(stretch.element);
    this.#stretchWatch.observe(stretch.element);
    this.#last = stretch;
  }

  #drop(stretch) {
    this.#stretchWatch.unobserve(stretch.element);
    stretch.element.remove();
    this.#stretches.delete(stretch);
    this.#near.delete(stretch);
    if (this.#last === stretch) this.#last = null;
  }

  #unsee(cell) {
    if (cell.stretch.drawn) this.#cellWatch.unobserve(cell.element);
    this.#seen.delete(cell);
    this.#held.delete(cell);
  }

  // -- what is in view ---------------------------------------------------------------------------------------

  #look(entries) {
    for (const { target, isIntersecting } of entries) {
      const [among, it] = target.stretch ? [this.#near, target.stretch] : [this.#seen, target.cell];
      if (isIntersecting && target.isConnected) among.add(it);
      else among.delete(it); // an entry may be older than what was taken away
    }
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => this.#settle());
  }

  /** Draw what has come near the window and empty what is far from it. */
  #settle() {
    this.#asked = false;
    const far = [...this.#stretches].filter((it) => it.drawn && !this.#near.has(it) && !it.focused);
    for (const stretch of far) {
      for (const cell of stretch.cells) {
        this.#cellWatch.unobserve(cell.element);
        this.#seen.delete(cell);
      }
    }
    const seen = new Set([...this.#seen].sort((a, b) => a.number - b.number).slice(-SEEN));
    const gone = [...this.#held].filter((cell) => !seen.has(cell));
    const heights = gone.map((cell) => cell.element.clientHeight - PADDING); // all before the first change, which costs a layout
    gone.forEach((cell, index) => cell.leave(heights[index]));
    for (const stretch of far) stretch.empty();
    for (const stretch of this.#near) if (!stretch.drawn) this.#draw(stretch);
    for (const cell of seen) if (!this.#held.has(cell)) cell.enter();
    this.#held = seen;
    this.#see([...seen].map((cell) => cell.number));
  }

  #draw(stretch) {
    stretch.draw();
    for (const cell of stretch.cells) this.#cellWatch.observe(cell.element);
  }
}
