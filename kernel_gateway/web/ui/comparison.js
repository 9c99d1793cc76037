// How the variables differ between two moments of the session, each a checkpoint or now. A checkpoint is a memory on disk,
// so a session that begins from it is asked for its variables, and ended.
import { call } from "../admin/api.js";
import { chip, form, h, labelled, named } from "../admin/dom.js";
import { NONE, bytes, count } from "../admin/format.js";
import { Table } from "../admin/table.js";
import { shape } from "./variables.js";

const KINDS = { new: "good", changed: "warn", gone: "bad" };
/** seconds that the start of a session from a checkpoint may take */
const START = 120;

export class Comparison {
  #path;
  #from = h("select", {});
  #to = h("select", {});
  #told = h("p", { class: "hint", role: "status" });
  #table = new Table({
    label: "Differences of variables",
    key: (difference) => difference.name,
    columns: [
      { label: "Name", cell: (it) => named(it.name, "code") },
      { label: "", cell: (it) => chip(it.kind, KINDS[it.kind]) },
      { label: "Before", cell: (it) => value(it.before) },
      { label: "After", cell: (it) => value(it.after) },
    ],
  });

  /**
   * @param path the session's
   * @param panel tells what goes wrong
   */
  constructor(path, panel) {
    this.#path = path;
    const compare = h("button", {}, "Compare variables");
    const work = () => panel.attempt(() => this.#compare());
    const choice = [labelled("Before", this.#from), labelled("After", this.#to), compare];
    this.element = h(
      "section",
      { class: "comparison", "aria-label": "Compare variables", hidden: true },
      form({ class: "line" }, compare, work, ...choice),
      this.#told,
      this.#table.element,
    );
  }

  /** The checkpoints that there are now, oldest first. */
  offer(checkpoints) {
    this.element.hidden = !checkpoints.length;
    const places = checkpoints.map(({ name, after_cell: cell }) => [name, cell === null ? name : `${name}, after cell ${cell}`]);
    offered(this.#from, places);
    offered(this.#to, [["", "now"], ...places]);
  }

  async #compare() {
    this.#told.textContent = "Comparing …";
    this.#table.show([], "");
    try {
      const [before, after] = [await this.#variables(this.#from.value), await this.#variables(this.#to.value)];
      const found = differences(before, after);
      const same = [...after.keys()].length - found.filter(({ after: now }) => now).length;
      this.#told.textContent = `${count(found.length)} differ in type, size or the beginning of their value, ${count(same)} do not.`;
      this.#table.show(found, "");
    } catch (failure) {
      this.#told.textContent = "";
      throw failure;
    }
  }

  /** The variables at a checkpoint by name; "": now. */
  async #variables(checkpoint) {
    if (!checkpoint) return listed(await call("GET", `${this.#path}/variables`));
    const as = `compare-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
    await call("POST", `${this.#path}/branch`, { as, from: checkpoint }, { patience: START });
    try {
      return listed(await call("GET", `v1/sessions/${as}/variables`));
    } finally {
      await call("DELETE", `v1/sessions/${as}`);
    }
  }
}

function offered(select, places) {
  const chosen = select.value;
  select.replaceChildren(...places.map(([value, label]) => h("option", { value }, label)));
  if (places.some(([value]) => value === chosen)) select.value = chosen;
}

function listed({ variables }) {
  return new Map(variables.map((variable) => [variable.name, variable]));
}

function differences(before, after) {
  const found = [];
  for (const name of [...new Set([...before.keys(), ...after.keys()])].sort()) {
    const [old, now] = [before.get(name), after.get(name)];
    if (JSON.stringify(old) === JSON.stringify(now)) continue;
    found.push({ name, before: old, after: now, kind: !old ? "new" : now ? "changed" : "gone" });
  }
  return found;
}

function value(variable) {
  if (!variable) return NONE;
  const about = [variable.type, shape(variable), bytes(variable.bytes)].filter((it) => it !== NONE);
  return h("span", {}, named(variable.preview ?? "", "code"), h("span", { class: "hint" }, ` ${about.join(", ")}`));
}
