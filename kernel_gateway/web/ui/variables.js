// The variables of the session: what they are, and the beginning of their content.
import { call } from "../admin/api.js";
import { button, h, named } from "../admin/dom.js";
import { NONE, bytes, count } from "../admin/format.js";
import { Table } from "../admin/table.js";
import { Panel } from "./panel.js";

/** seconds between the end of a cell and a new look, in which further cells may end */
const SETTLE = 0.5;

export class Variables extends Panel {
  #path;
  #timer;
  #total = h("p", { class: "total" });
  #detail = h("div", { class: "detail", tabindex: "-1" });
  #table = new Table({
    label: "Variables",
    key: (variable) => variable.name,
    columns: [
      { label: "Name", fixed: (present) => this.#shows(present) },
      { label: "Type", cell: (it) => named(it.type) },
      { label: "Shape", cell: (it) => shape(it) },
      { label: "Size", cell: (it) => bytes(it.bytes), number: true },
      { label: "Value", cell: (it) => named(it.preview, "code") },
    ],
  });

  constructor(path) {
    super("Variables");
    this.#path = `${path}/variables`;
    this.content.append(
      h("div", { class: "line apart" }, this.#total, button("Refresh", () => this.refresh(), { kind: "small" })),
      this.#table.element,
      this.#detail,
    );
  }

  cellsEnded() {
    clearTimeout(this.#timer);
    // A look would wake a session that sleeps.
    if (this.element.open && this.session?.state !== "asleep") {
      this.#timer = setTimeout(() => this.element.isConnected && this.refresh(), SETTLE * 1000);
    }
  }

  async load() {
    const { variables, total } = await call("GET", this.#path);
    this.#total.textContent = total > variables.length ? `${variables.length} of ${count(total)}` : `${total} in all`;
    this.#table.show(variables, h("p", {}, "No cell has set a variable."));
  }

  #shows(present) {
    const shown = button("", () => this.attempt(() => this.#describe(present().name)), { kind: "quiet small" });
    queueMicrotask(() => shown.replaceChildren(named(present()?.name ?? "", "code"))); // the row gets its item later
    return shown;
  }

  async #describe(name) {
    const found = await call("GET", `${this.#path}/${encodeURIComponent(name)}`);
    const shown = [h("h3", {}, named(found.name, "code")), h("p", { class: "hint" }, named(found.type))];
    if (found.rows) shown.push(grid(found.columns ?? [], found.rows));
    else if (found.entries) shown.push(entries(found.entries));
    else shown.push(h("pre", { class: "text" }, found.preview));
    this.#detail.replaceChildren(...shown, button("Close", () => this.#detail.replaceChildren(), { kind: "small" }));
    this.#detail.focus({ preventScroll: true });
  }
}

export function shape({ shape, length }) {
  if (shape) return shape.join(" × ");
  return length == null ? NONE : count(length);
}

function grid(columns, rows) {
  const head = h("tr", {}, ...columns.map(({ name, type }) => h("th", { scope: "col", title: type }, h("bdi", {}, name))));
  const body = rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, h("bdi", {}, cell)))));
  return h("div", { class: "table scrolled" }, h("table", {}, h("thead", {}, head), h("tbody", {}, ...body)));
}

function entries(found) {
  const pairs = found.flatMap(({ name, preview }) => [h("dt", {}, named(name, "code")), h("dd", {}, h("code", {}, preview))]);
  return h("dl", { class: "facts" }, ...pairs);
}
