// Who ran what, the newest first, a page at a time.
import { call } from "./api.js";
import { button, chip, form, h, labelled, named } from "./dom.js";
import { bytes, moment, NONE, seconds } from "./format.js";
import { Section } from "./section.js";
import { Table } from "./table.js";

const PAGE = 50;
const KINDS = new Map([
  ...[["ok", "good"], ["error", "bad"], ["died", "bad"]],
  ...[["timeout", "warn"], ["interrupted", "warn"], ["unknown", "warn"]],
]);

export class Audit extends Section {
  /** `before` of the pages from the newest to this one */
  #pages = [null];
  #next = null;
  #tenant = h("input", { spellcheck: "false", maxlength: 64 });
  #where = h("span", { class: "total", role: "status" });
  #newer = button("Newer", () => this.#turn(() => this.#pages.pop()));
  #older = button("Older", () => this.#turn(() => this.#pages.push(this.#next)));
  #table = new Table({
    label: "Executions",
    key: (execution) => execution.seq,
    columns: [
      { label: "Began", cell: (it) => moment(it.began_at) },
      { label: "Tenant", cell: (it) => named(it.tenant) },
      { label: "Session", cell: (it) => named(it.session) },
      { label: "Language", cell: (it) => named(it.language) },
      { label: "Outcome", cell: (it) => outcome(it) },
      { label: "Took", cell: (it) => seconds(it.duration_ms == null ? null : it.duration_ms / 1000), number: true },
      { label: "Output", cell: (it) => bytes(it.output_bytes), number: true },
      { label: "Memory", cell: (it) => bytes(it.memory), number: true },
      { label: "Code (SHA-256)", cell: (it) => (it.code_sha256 ? named(it.code_sha256, "code short") : NONE) },
    ],
  });

  constructor() {
    super("Audit", "Every cell and command, as digests: never code, outputs or keys.");
    const show = h("button", {}, "Show");
    const filter = form(
      { class: "line", role: "search" },
      show,
      () => this.#turn(() => (this.#pages = [null])),
      ...[labelled("Tenant", this.#tenant), show],
    );
    this.content.append(
      h("div", { class: "line apart" }, filter, h("div", { class: "line" }, this.#where, this.#newer, this.#older)),
      this.#table.element,
    );
  }

  async load() {
    const query = new URLSearchParams({ limit: PAGE });
    const [before, tenant] = [this.#pages.at(-1), this.#tenant.value.trim()];
    if (before !== null) query.set("before", before);
    if (tenant) query.set("tenant", tenant);
    const { executions, next } = await call("GET", `v1/admin/audit?${query}`);
    this.#next = next;
    this.#newer.hidden = before === null;
    this.#older.hidden = next === null;
    this.#where.textContent = executions.length ? `Page ${this.#pages.length}` : "";
    const other = "Nothing of this tenant. Look at how it is written, or clear the filter.";
    this.#table.show(executions, h("p", {}, tenant ? other : "Nothing was run yet."));
  }

  /** Go to another page; where that fails everything stays as it is. */
  async #turn(there) {
    const before = [...this.#pages];
    there();
    await this.refresh();
    if (this.failed) this.#pages = before;
    else if (document.activeElement === document.body) this.heading.focus();
  }
}

function outcome({ outcome, error, ended_at }) {
  if (!ended_at) return chip("running", "plain");
  const why = error ? h("bdi", { class: "hint" }, ` ${error}`) : null;
  return h("span", {}, chip(outcome ?? "unknown", KINDS.get(outcome)), why);
}
