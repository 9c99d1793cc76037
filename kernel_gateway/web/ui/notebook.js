// One session as a notebook that grows while cells of any client run.
import { call, transfer } from "../admin/api.js";
import { confirmed } from "../admin/dialog.js";
import { button, chip, h, named, newId, Notice } from "../admin/dom.js";
import { Cell } from "./cell.js";
import { Checkpoints } from "./checkpoints.js";
import { Editor } from "./editor.js";
import { Files } from "./files.js";
import { saved } from "./saved.js";
import { KINDS } from "./sessions.js";
import { Variables } from "./variables.js";

/** cells that the page shows, and cells whose outputs it holds, which is what the feed allows */
const CELLS = 10_000;
const SEEN = 64;
/** pixels around the window in which cells are made */
const MARGIN = 400;
/** pixels from the end within which the page follows new output */
const END = 120;
/** pixels of a cell above and below its content (ui.css) */
const PADDING = 16;

export class Notebook {
  #feed;
  #session = null;
  #cells = new Map();
  /** numbers of the cells in view, and of those whose outputs are held */
  #seen = new Set();
  #held = new Set();
  #following = false;
  /** whether no cells were told yet: those that come first have run before */
  #initial = true;
  #asked = false;
  #wanted;
  #stop = new AbortController();
  #watch;
  #list = h("div", { class: "cells" });
  /** the place behind the last cell */
  #end = h("div", { class: "end" });
  #state = h("span", { class: "states" });
  #empty = h("p", { class: "hint" }, "Connecting …");
  #looked = h("p", { class: "notice warn", role: "status", hidden: true }, "An admin looks at this session now.");
  #news = h("p", { class: "unseen", role: "status" });
  notice = new Notice();

  /** @param cell number of the cell that a link names, or null */
  constructor(feed, name, cell) {
    this.#feed = feed;
    this.name = name;
    this.#wanted = cell;
    const id = newId();
    this.heading = h("h1", { id, tabindex: "-1" }, named(name));
    const path = `v1/sessions/${encodeURIComponent(name)}`;
    this.editor = new Editor(path, this.notice, () => this.#codes(), () => this.#follow());
    const panels = [new Variables(path), new Files(path), new Checkpoints(path)];
    this.#panels = panels;
    this.element = h(
      "section",
      { class: "notebook", "aria-labelledby": id },
      h("div", { class: "line apart" }, h("div", { class: "line" }, this.heading, this.#state), this.#actions(path)),
      this.#looked,
      this.notice.element,
      this.#news,
      h(
        "div",
        { class: "columns" },
        h("div", { class: "column" }, h("section", { "aria-label": "Cells" }, this.#empty, this.#list, this.#end), this.editor.element),
        h("aside", { "aria-label": "Variables, files and checkpoints" }, ...panels.map((panel) => panel.element)),
      ),
    );
    this.#watch = new IntersectionObserver((entries) => this.#look(entries), { rootMargin: `${MARGIN}px 0px` });
    if (feed.tenant !== null) this.element.classList.add("looked");
    this.#listen();
  }

  #panels;

  #listen() {
    const options = { signal: this.#stop.signal };
    this.#feed.addEventListener("opened", ({ detail }) => this.#open(detail.session), options);
    this.#feed.addEventListener("absent", () => this.#absent(), options);
    this.#feed.addEventListener("cells", ({ detail }) => this.#tell(detail), options);
    this.#feed.addEventListener("outputs", ({ detail }) => this.#show(detail), options);
    this.#feed.addEventListener("session", ({ detail }) => this.#now(detail.session), options);
    this.#feed.open(this.name);
  }

  close() {
    this.#stop.abort();
    this.#watch.disconnect();
    this.#feed.open(null);
    for (const cell of this.#cells.values()) cell.leave();
  }

  /** Bring a cell into view. */
  goTo(number) {
    const cell = this.#cells.get(number);
    this.#wanted = cell ? null : number;
    cell?.element.scrollIntoView({ block: "center" });
    cell?.element.focus({ preventScroll: true });
  }

  #actions(path) {
    const act = (what, told) => async () => {
      this.notice.clear();
      try {
        await call("POST", `${path}/${what}`);
        this.notice.tell(told);
      } catch (failure) {
        this.notice.fail(failure);
      }
    };
    this.sleep = button("Sleep", act("sleep", "The session sleeps. Its next use wakes it."), { hidden: true });
    this.wake = button("Wake", act("wake", "The session is awake."), { hidden: true });
    return h(
      "div",
      { class: "line" },
      button("Interrupt", act("interrupt", "The running cell was interrupted.")),
      button("Restart", () => this.#restart(act("restart", "The session has a fresh kernel."))),
      this.sleep,
      this.wake,
      button("Download notebook", () => this.#download(`${path}/notebook`)),
      button("End", () => this.#endSession(path), { kind: "danger" }),
    );
  }

  async #restart(restart) {
    const lost = h("p", {}, "Its variables are lost. Its files stay.");
    if (await confirmed("Restart the kernel?", "Restart kernel", lost)) await restart();
  }

  async #endSession(path) {
    const lost = h("p", {}, named(this.name), ": its variables and files are lost.");
    if (!(await confirmed("End this session?", "End session", lost))) return;
    try {
      await call("DELETE", path);
      location.hash = "";
    } catch (failure) {
      this.notice.fail(failure);
    }
  }

  async #download(path) {
    try {
      saved(await (await transfer("GET", path)).blob(), `${this.name}.ipynb`);
    } catch (failure) {
      this.notice.fail(failure);
    }
  }

  // -- what the feed tells ---------------------------------------------------------------------------------

  #open(session) {
    this.#session = session;
    for (const cell of this.#cells.values()) cell.leave();
    this.#cells.clear();
    this.#seen.clear();
    this.#held.clear();
    this.#watch.disconnect(); // else the cells of before would be told as out of view, by numbers that are new cells' now
    this.#initial = true;
    this.#list.replaceChildren();
    this.#empty.textContent = "No cell has run yet. Type code below.";
    this.#empty.hidden = false;
    this.#now(session);
  }

  #absent() {
    this.#session = null;
    this.#state.replaceChildren(chip("no session"));
    this.#empty.hidden = false;
    this.#empty.textContent = "There is no session of this name. The first cell that you run makes it.";
  }

  #now(session) {
    this.#session = session;
    const { state, language } = session;
    const told = [chip(state, KINDS.get(state)), chip(language)];
    if (told.map((it) => it.textContent).join() !== [...this.#state.children].map((it) => it.textContent).join()) {
      this.#state.replaceChildren(...told);
    }
    this.#looked.hidden = !session.looked_at || this.#feed.tenant !== null;
    this.sleep.hidden = !session.can_sleep || state === "asleep" || state === "dead";
    this.wake.hidden = state !== "asleep" && state !== "dead";
    this.editor.told(session);
    for (const panel of this.#panels) panel.told(session);
  }

  #tell({ cells, gone, oldest }) {
    this.#followIfAtEnd();
    const added = new DocumentFragment();
    const initial = this.#initial;
    this.#initial = false;
    let ended = false;
    for (const head of cells) {
      const known = this.#cells.get(head.number);
      const cell = known ?? this.#add(head.number, added);
      const [before, asked] = [known?.state, cell.question];
      cell.tell(head);
      ended ||= head.state === "done" || head.state === "failed";
      if (!initial && before !== head.state && head.state !== "running") this.#say(`Cell ${head.number}: ${head.state}`);
      if (head.question && !asked) this.#say(`Cell ${head.number} asks: ${head.question.prompt}`);
    }
    this.#list.append(added);
    for (const number of gone) this.#lose(number, oldest);
    while (this.#cells.size > CELLS) this.#remove(this.#cells.keys().next().value);
    this.#empty.hidden = this.#cells.size > 0;
    if (this.#wanted !== null && this.#cells.has(this.#wanted)) this.goTo(this.#wanted);
    if (ended) for (const panel of this.#panels) panel.cellEnded();
  }

  #say(text) {
    this.#news.textContent = text;
  }

  #add(number, place) {
    const cell = new Cell(this.name, number);
    this.#cells.set(number, cell);
    place.append(cell.element);
    this.#watch.observe(cell.element);
    return cell;
  }

  /** The oldest cells are not kept for ever; others are gone because their client wanted no trace of them. */
  #lose(number, oldest) {
    const cell = this.#cells.get(number);
    if (!cell) return;
    if (number >= oldest) return this.#remove(number);
    this.#watch.unobserve(cell.element);
    this.#seen.delete(number);
    cell.forget();
  }

  #remove(number) {
    const cell = this.#cells.get(number);
    this.#watch.unobserve(cell.element);
    cell.leave();
    cell.element.remove();
    this.#cells.delete(number);
    this.#seen.delete(number);
  }

  #show(frame) {
    this.#followIfAtEnd();
    this.#cells.get(frame.cell)?.show(frame);
  }

  // -- what is in view ---------------------------------------------------------------------------------------

  #look(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.#seen.add(target.cell.number);
      else this.#seen.delete(target.cell.number);
    }
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => this.#see());
  }

  #see() {
    this.#asked = false;
    if (!this.#session) return;
    const seen = new Set([...this.#seen].sort((a, b) => a - b).slice(-SEEN));
    const gone = [...this.#held].filter((number) => !seen.has(number)).map((number) => this.#cells.get(number));
    const heights = gone.map((cell) => cell && cell.element.clientHeight - PADDING); // all before the first change, which costs a layout
    gone.forEach((cell, index) => cell?.leave(heights[index]));
    for (const number of seen) if (!this.#held.has(number)) this.#cells.get(number)?.enter();
    this.#held = seen;
    this.#feed.see([...seen], this.#session.id);
  }

  /** Stay at the end if the reader is there. It is looked at once for all changes until the next frame. */
  #followIfAtEnd() {
    if (this.#following || this.#wanted !== null) return;
    this.#following = true;
    const follows = this.#end.getBoundingClientRect().top < innerHeight + END;
    requestAnimationFrame(() => {
      this.#following = false;
      if (follows) this.#follow();
    });
  }

  #follow() {
    this.#end.scrollIntoView({ block: "end" });
  }

  #codes() {
    return [...this.#cells.values()].map((cell) => cell.code).filter(Boolean);
  }
}
