// A table that can be sorted and is brought up to date in place: rows stay the elements they were, so the keyboard's
// focus stays. On a narrow screen each row is a card (admin.css), which is why the roles are spelled out.
import { h } from "./dom.js";

export class Table {
  #items = [];
  #rows = new Map();
  #columns;
  #key;
  #sort;
  #heads = [];
  #body = h("tbody", { role: "rowgroup" });
  #empty = h("div", { class: "empty", hidden: true });
  #table;

  /**
   * @param label what it lists
   * @param key what tells an item from all others
   * @param columns each `{label, cell(item), by(item), number, fixed}`: `by` makes it sortable, a `fixed` cell is
   *   made once per row and gets a function that gives the present item
   * @param sort `[column, ascending]` to begin with; null: as they come
   */
  constructor({ label, key, columns, sort = null }) {
    this.#columns = columns;
    this.#key = key;
    this.#sort = sort;
    const heads = columns.map((column, index) => this.#head(column, index));
    this.#table = h(
      "table",
      { role: "table", "aria-label": label, hidden: true },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)),
      this.#body,
    );
    this.element = h("div", { class: "table" }, this.#table, this.#empty);
  }

  /** Show these; when there are none, `empty` (text and nodes) says what to do. */
  show(items, ...empty) {
    this.#items = items;
    this.#table.hidden = !items.length;
    this.#empty.hidden = !!items.length;
    this.#empty.replaceChildren(...empty);
    this.#draw();
  }

  #head(column, index) {
    const attributes = { role: "columnheader", scope: "col", class: column.number ? "number" : false };
    if (!column.label) return h("th", attributes, h("span", { class: "unseen" }, "Actions"));
    if (!column.by) return h("th", attributes, column.label);
    const head = h("th", attributes, h("button", { type: "button", onclick: () => this.#sortBy(index) }, column.label));
    this.#heads.push([head, index]);
    return head;
  }

  #sortBy(index) {
    const [present, ascending] = this.#sort ?? [];
    this.#sort = [index, present === index ? !ascending : true];
    this.#draw();
  }

  #draw() {
    const [column, ascending] = this.#sort ?? [];
    for (const [head, index] of this.#heads) {
      if (index === column) head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const ordered = [...this.#items];
    if (column !== undefined) {
      const by = this.#columns[column].by;
      ordered.sort((a, b) => compared(by(a), by(b), ascending ? 1 : -1));
    }
    const focused = document.activeElement;
    const known = this.#rows;
    this.#rows = new Map();
    ordered.forEach((item, place) => {
      const key = this.#key(item);
      const row = known.get(key) ?? this.#row();
      known.delete(key);
      this.#rows.set(key, row);
      row.fill(item);
      const there = this.#body.children[place];
      if (there !== row.element) this.#body.insertBefore(row.element, there ?? null);
    });
    for (const row of known.values()) row.element.remove();
    if (focused !== document.activeElement && this.#body.contains(focused)) focused.focus({ preventScroll: true });
  }

  #row() {
    let present;
    const cells = this.#columns.map((column) => {
      const attributes = { role: "cell", "data-label": column.label, class: column.number ? "number" : false };
      return h("td", attributes, column.fixed ? column.fixed(() => present) : null);
    });
    return {
      element: h("tr", { role: "row" }, ...cells),
      fill: (item) => {
        present = item;
        this.#columns.forEach((column, index) => column.cell && update(cells[index], column.cell(item)));
      },
    };
  }
}

/** Change a cell only if it shows something else, so that text stays selected. */
function update(cell, content) {
  const same = typeof content === "string" ? cell.textContent === content : content.isEqualNode(cell.firstChild);
  if (!same) cell.replaceChildren(content);
}

/** What is not known comes last in either direction; text is compared by its code points, the same everywhere. */
function compared(a, b, direction) {
  if (a == null || b == null) return (a == null) - (b == null);
  return a < b ? -direction : a > b ? direction : 0;
}
