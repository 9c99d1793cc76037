// Who ran what, the newest first, a page at a time, and only what the filter lets through.
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

const text = (label) => [label, h("input", { spellcheck: "false", maxlength: 64 })];
const time = (label) => [label, h("input", { type: "datetime-local" })];
/** The filter's fields, by their names in the query: label and input. */
const fields = () => ({
  tenant: text("Tenant"),
  session: text("Session"),
  language: text("Language"),
  outcome: ["Outcome", outcomes()],
  key_id: text("Key"),
  address: text("Address"),
  dialect: text("Dialect"),
  request_id: text("Request"),
  since: time("From"),
  until: time("Until"),
});

export class Audit extends Section {
  /** `before` of the pages from the newest to this one */
  #pages = [null];
  #next = null;
  #fields = fields();
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
      { label: "Key", cell: (it) => (it.key_id ? named(it.key_id, "code") : NONE) },
      { label: "Address", cell: (it) => (it.address ? named(it.address) : NONE) },
      { label: "Dialect", cell: (it) => it.dialect ?? NONE },
      { label: "Request", cell: (it) => (it.request_id ? named(it.request_id, "code short") : NONE) },
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
      ...[...Object.values(this.#fields).map(([label, input]) => labelled(label, input)), show],
    );
    this.content.append(
      filter,
      h("div", { class: "line" }, this.#where, this.#newer, this.#older),
      this.#table.element,
    );
  }

  async load() {
    const query = new URLSearchParams({ limit: PAGE });
    const before = this.#pages.at(-1);
    const asked = Object.entries(this.#fields).filter(([, [, input]]) => input.value.trim());
    if (before !== null) query.set("before", before);
    for (const [name, [, input]] of asked) query.set(name, written(input));
    const { executions, next } = await call("GET", `v1/admin/audit?${query}`);
    this.#next = next;
    this.#newer.hidden = before === null;
    this.#older.hidden = next === null;
    this.#where.textContent = executions.length ? `Page ${this.#pages.length}` : "";
    const other = "Nothing fits the filter. Look at how its words are written, or clear it.";
    this.#table.show(executions, h("p", {}, asked.length ? other : "Nothing was run yet."));
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

function outcomes() {
  const all = ["", ...KINDS.keys(), "refused", "unsent"];
  return h("select", {}, ...all.map((outcome) => h("option", { value: outcome }, outcome || "any")));
}

/** What a field asks for; a moment in the reader's own time becomes one that the gateway understands. */
function written(input) {
  return input.type === "datetime-local" ? new Date(input.value).toISOString() : input.value.trim();
}

function outcome({ outcome, error, ended_at }) {
  if (!ended_at) return chip("running", "plain");
  const why = error ? h("bdi", { class: "hint" }, ` ${error}`) : null;
  return h("span", {}, chip(outcome ?? "unknown", KINDS.get(outcome)), why);
}
