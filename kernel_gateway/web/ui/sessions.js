// The list of the tenant's sessions as they are now.
import { chip, h, named, newId, form, labelled } from "../admin/dom.js";
import { NONE, bytes, count, moment, seconds, since } from "../admin/format.js";
import { Table } from "../admin/table.js";

export const KINDS = new Map([["idle", "good"], ["busy", "warn"], ["dead", "bad"]]);

export class Sessions {
  #feed;
  #stop = new AbortController();
  #total = h("p", { class: "total" });
  #table = new Table({
    label: "Sessions",
    key: (session) => session.name,
    sort: [0, true],
    columns: [
      { label: "Session", cell: (it) => h("a", { href: `#${it.name}` }, named(it.name)), by: (it) => it.name },
      { label: "State", cell: (it) => state(it), by: (it) => it.state },
      { label: "Language", cell: (it) => named(it.language), by: (it) => it.language },
      { label: "Age", cell: (it) => age(it), by: (it) => since(it.created_at), number: true },
      { label: "Memory", cell: (it) => bytes(it.memory_bytes), by: (it) => it.memory_bytes, number: true },
      { label: "Cells", cell: (it) => count(it.cells), by: (it) => it.cells, number: true },
      { label: "Last cell", cell: (it) => last(it.last) },
    ],
  });

  constructor(feed) {
    this.#feed = feed;
    const id = newId();
    this.heading = h("h1", { id, tabindex: "-1" }, "Sessions");
    const name = h("input", { placeholder: "name", spellcheck: "false", maxlength: "64", pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*" });
    const open = h("button", {}, "Open or make");
    const go = () => {
      if (name.value.trim() && name.checkValidity()) location.hash = encodeURIComponent(name.value.trim());
      else name.focus();
    };
    this.element = h(
      "section",
      { "aria-labelledby": id },
      this.heading,
      h("p", { class: "lead" }, "Live: each is one kernel, whichever client uses it."),
      h("div", { class: "line apart" }, form({ class: "line" }, open, go, labelled("Session", name), open), this.#total),
      this.#table.element,
    );
    feed.addEventListener("sessions", () => this.#draw(), { signal: this.#stop.signal });
    this.#draw();
    this.timer = setInterval(() => this.#draw(), 10_000); // ages grow without news
  }

  close() {
    this.#stop.abort();
    clearInterval(this.timer);
  }

  #draw() {
    const all = this.#feed.sessions;
    this.#total.textContent = `${all.length} in all`;
    this.#table.show(all, h("p", {}, "There are no sessions. One is made when a client first runs something."));
  }
}

function state(session) {
  const shown = chip(session.state, KINDS.get(session.state));
  return session.looked_at ? h("span", {}, shown, chip("an admin looks", "warn")) : shown;
}

function last(cell) {
  if (!cell) return NONE;
  return h("span", { class: "last" }, h("code", { class: "name" }, cell.code), " ", chip(cell.state));
}

function age(session) {
  const when = moment(session.created_at);
  when.textContent = seconds(since(session.created_at));
  return when;
}
