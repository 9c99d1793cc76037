// The checkpoints of the session as a line of time: return to one, or begin another session from it.
import { call } from "../admin/api.js";
import { confirmed } from "../admin/dialog.js";
import { button, chip, form, h, labelled, named } from "../admin/dom.js";
import { bytes, moment } from "../admin/format.js";
import { Comparison } from "./comparison.js";
import { Panel } from "./panel.js";

const NAME = "[A-Za-z0-9][A-Za-z0-9._\\-]*";

export class Checkpoints extends Panel {
  #path;
  #comparison;
  #line = h("ol", { class: "timeline" });

  constructor(path) {
    super("Checkpoints");
    this.#path = path;
    const name = h("input", { placeholder: "name", maxlength: "64", pattern: NAME, spellcheck: "false" });
    const take = h("button", {}, "Take checkpoint");
    const work = async () => {
      if (!name.checkValidity()) return name.focus();
      const body = name.value ? { name: name.value } : {};
      if (await this.attempt(() => call("POST", `${path}/checkpoints`, body, { patience: 120 }))) {
        name.value = "";
        await this.refresh();
      }
    };
    this.#comparison = new Comparison(path, this);
    this.content.append(
      form({ class: "line" }, take, work, labelled("Name", name), take),
      this.#line,
      this.#comparison.element,
    );
  }

  async load() {
    const { checkpoints } = await call("GET", `${this.#path}/checkpoints`);
    const made = checkpoints.map((checkpoint) => this.#moment(checkpoint));
    if (!made.length) made.push(h("li", { class: "hint" }, "There are none. A checkpoint keeps variables and files."));
    else made.push(h("li", { class: "now" }, "now"));
    this.#line.replaceChildren(...made);
    this.#comparison.offer(checkpoints);
  }

  #moment(checkpoint) {
    const { name, created_at: at, bytes: size, automatic, after_cell: cell } = checkpoint;
    const target = h("input", { placeholder: "new session", maxlength: "64", pattern: NAME, spellcheck: "false" });
    const branch = h("button", { class: "small" }, "Branch");
    return h(
      "li",
      {},
      h("p", {}, named(name), " ", automatic ? chip("automatic") : null),
      h("p", { class: "hint" }, moment(at), ` · ${bytes(size)}${cell === null ? "" : ` · after cell ${cell}`}`),
      h(
        "div",
        { class: "line" },
        button("Roll back", () => this.#rollBack(name), { kind: "small" }),
        button("Delete", () => this.#delete(name), { kind: "danger small" }),
      ),
      form({ class: "line" }, branch, () => this.#branch(name, target), labelled("As", target), branch),
    );
  }

  async #rollBack(name) {
    const lost = h("p", {}, "Variables and files become those of ", named(name), ". Later cells are undone.");
    if (!(await confirmed("Return to this checkpoint?", "Roll back", lost))) return;
    const body = { to: name };
    if (await this.attempt(() => call("POST", `${this.#path}/rollback`, body, { patience: 120 }))) await this.refresh();
  }

  async #delete(name) {
    if (!(await confirmed("Delete this checkpoint?", "Delete", h("p", {}, named(name), " cannot be brought back.")))) return;
    await this.attempt(() => call("DELETE", `${this.#path}/checkpoints/${encodeURIComponent(name)}`));
    await this.refresh();
  }

  async #branch(name, target) {
    if (!target.value || !target.checkValidity()) return target.focus();
    const body = { as: target.value, from: name };
    const done = await this.attempt(() => call("POST", `${this.#path}/branch`, body, { patience: 120 }));
    if (done) location.hash = encodeURIComponent(target.value);
  }
}
