// All tenants' sessions as they are now.
import { call } from "./api.js";
import { confirmed } from "./dialog.js";
import { button, chip, h, labelled, named } from "./dom.js";
import { NONE, bytes, count, moment, seconds, since } from "./format.js";
import { LiveSection } from "./section.js";
import { Table } from "./table.js";

/** seconds between two looks */
const INTERVAL = 4;
const KINDS = new Map([["idle", "good"], ["busy", "warn"], ["dead", "bad"]]);

export class Sessions extends LiveSection {
  #all = [];
  #filter;
  #total = h("p", { class: "total" });
  #table = new Table({
    label: "Sessions",
    key: (session) => `${session.tenant}:${session.name}`,
    sort: [0, true],
    columns: [
      { label: "Tenant", cell: (it) => named(it.tenant), by: (it) => it.tenant },
      { label: "Session", cell: (it) => named(it.name), by: (it) => it.name },
      { label: "Language", cell: (it) => named(it.language), by: (it) => it.language },
      { label: "State", cell: (it) => chip(it.state, KINDS.get(it.state)), by: (it) => it.state },
      { label: "Age", cell: (it) => age(it), by: (it) => since(it.created_at), number: true },
      { label: "Unused for", cell: (it) => seconds(it.idle_seconds), by: (it) => it.idle_seconds, number: true },
      { label: "Memory", cell: (it) => bytes(it.memory_bytes), by: (it) => it.memory_bytes, number: true },
      { label: "Cells", cell: (it) => count(it.executions), by: (it) => it.executions, number: true },
      { label: "Container", cell: (it) => shortened(it.container), by: (it) => it.container },
      { label: "", fixed: (present) => button("End", () => this.#end(present()), { kind: "danger small" }) },
    ],
  });

  constructor() {
    const filter = h("input", { type: "search", placeholder: "tenant, container …", spellcheck: "false" });
    filter.addEventListener("input", () => this.#draw());
    super(INTERVAL, "Sessions", `Live kernels of all tenants, brought up to date every ${INTERVAL} seconds.`);
    this.#filter = filter;
    this.content.append(h("div", { class: "line" }, labelled("Filter", filter), this.#total), this.#table.element);
  }

  async load() {
    this.#all = (await call("GET", "v1/admin/sessions")).sessions;
    this.#draw();
  }

  #draw() {
    const wanted = this.#filter.value.trim().toLowerCase();
    const words = (it) => [it.tenant, it.name, it.language, it.state, it.container ?? ""];
    const found = this.#all.filter((it) => words(it).some((word) => word.toLowerCase().includes(wanted)));
    const total = this.#all.length;
    this.#total.textContent = found.length === total ? `${total} in all` : `${found.length} of ${total}`;
    if (total) this.#table.show(found, h("p", {}, "No session fits the filter. Clear it to see all of them."));
    else this.#table.show([], h("p", {}, "There are no sessions. One is made when a tenant first runs something."));
  }

  async #end(session) {
    const sure = await confirmed(
      "End this session?",
      "End session",
      h("p", {}, named(session.name), " of ", named(session.tenant), ": its variables and files are lost."),
    );
    if (!sure) return;
    const path = [session.tenant, session.name].map(encodeURIComponent).join("/");
    try {
      await call("DELETE", `v1/admin/sessions/${path}`);
    } catch (failure) {
      return this.notice.fail(failure);
    }
    await this.refresh();
    this.notice.tell(`Session ${session.name} of ${session.tenant} was ended.`);
    this.heading.focus();
  }
}

/** A container's id as `docker ps` shows it; all of it on hover. */
function shortened(id) {
  return id == null ? NONE : h("code", { title: id }, id.slice(0, 12));
}

function age(session) {
  const when = moment(session.created_at);
  when.textContent = seconds(since(session.created_at));
  return when;
}
