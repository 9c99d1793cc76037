// One session as a notebook that grows while cells of any client run.
import { call, transfer } from "../admin/api.js";
import { confirmed } from "../admin/dialog.js";
import { button, chip, h, named, newId, Notice } from "../admin/dom.js";
import { Cells } from "./cells.js";
import { Checkpoints } from "./checkpoints.js";
import { Debugger } from "./debugger.js";
import { Editor } from "./editor.js";
import { Files } from "./files.js";
import { saved } from "./saved.js";
import { KINDS } from "./sessions.js";
import { Variables } from "./variables.js";

/** pixels from the end within which the page follows new output */
const END = 120;

export class Notebook {
  #feed;
  #session = null;
  #cells;
  #following = false;
  /** whether no cells were told yet: those that come first have run before */
  #initial = true;
  #wanted;
  #stop = new AbortController();
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
    this.#cells = new Cells(
      () => this.#session,
      (numbers) => this.#session && feed.see(numbers, this.#session.id),
      () => this.#followIfAtEnd(),
    );
    const id = newId();
    this.heading = h("h1", { id, tabindex: "-1" }, named(name));
    const path = `v1/sessions/${encodeURIComponent(name)}`;
    this.editor = new Editor(path, this.notice, () => this.#cells.codes, () => this.#follow(), (...what) => this.#debugger.launch(...what));
    this.#debugger = new Debugger(path, (line) => this.editor.mark(line));
    const panels = [this.#debugger, new Variables(path), new Files(path), new Checkpoints(path)];
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
        h("div", { class: "column" }, h("section", { "aria-label": "Notebook" }, this.#empty, this.#cells.element, this.#end), this.editor.element),
        h("aside", { "aria-label": "Debugger, variables, files and checkpoints" }, ...panels.map((panel) => panel.element)),
      ),
    );
    if (feed.tenant !== null) this.element.classList.add("looked");
    this.#listen();
  }

  #panels;
  #debugger;

  #listen() {
    const options = { signal: this.#stop.signal };
    this.#feed.addEventListener("opened", ({ detail }) => this.#open(detail.session), options);
    this.#feed.addEventListener("absent", () => this.#absent(), options);
    this.#feed.addEventListener("cells", ({ detail }) => this.#tell(detail), options);
    this.#feed.addEventListener("outputs", ({ detail }) => this.#cells.show(detail), options);
    this.#feed.addEventListener("session", ({ detail }) => this.#now(detail.session), options);
    this.#feed.open(this.name);
  }

  close() {
    this.#stop.abort();
    this.#feed.open(null);
    this.#debugger.close();
    this.#cells.clear();
  }

  /** Bring a cell into view. */
  goTo(number) {
    this.#wanted = this.#cells.goTo(number) ? null : number;
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
    this.#cells.clear();
    this.#initial = true;
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

  #tell({ cells, gone, oldest, more }) {
    this.#followIfAtEnd();
    if (!this.#initial) this.#announce(cells);
    this.#cells.tell(cells, more);
    // The oldest cells are not kept for ever; others are gone because their client wanted no trace of them.
    for (const number of gone) this.#cells[number < oldest ? "forget" : "remove"](number);
    this.#empty.hidden = this.#cells.size > 0;
    if (more) return;
    this.#initial = false;
    if (this.#wanted !== null) this.goTo(this.#wanted);
    const ended = cells.filter(({ state }) => state === "done" || state === "failed");
    if (ended.length) for (const panel of this.#panels) panel.cellsEnded(ended);
  }

  /** Say what has happened to cells since they were told last. */
  #announce(heads) {
    for (const { number, state, question } of heads) {
      const known = this.#cells.get(number);
      if (known?.state !== state && state !== "running") this.#say(`Cell ${number}: ${state}`);
      if (question && !known?.question) this.#say(`Cell ${number} asks: ${question.prompt}`);
    }
  }

  #say(text) {
    this.#news.textContent = text;
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
}
