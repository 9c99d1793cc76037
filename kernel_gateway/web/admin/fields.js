// One field of a provider's configuration, made from its schema, with its label, its help and what is wrong with it.
import { h, newId } from "./dom.js";

export class Field {
  #input;
  #schema;
  #kept;
  #remove;
  #problem = h("p", { class: "problem", id: newId() });

  /** @param kept what the gateway has: of a secret only its last four characters, as it masks them */
  constructor(name, schema, kept) {
    this.#schema = schema;
    this.#kept = kept ?? "";
    if (schema.type === "boolean") this.#input = h("input", { type: "checkbox", checked: kept === true });
    else this.#input = schema.options?.length ? select(schema, kept) : this.#line();
    const id = (this.#input.id = newId());
    const help = h("p", { class: "hint", id: newId() }, h("bdi", {}, helped(schema, schema.secret && this.#kept)));
    this.#input.setAttribute("aria-describedby", `${help.id} ${this.#problem.id}`);
    if (schema.required && schema.type !== "boolean") this.#input.setAttribute("aria-required", "true");
    const mark = schema.required ? h("span", { class: "mark" }, " required") : null;
    const label = h("label", { for: id }, h("bdi", {}, schema.label || name), mark);
    const both = schema.type === "boolean" ? [h("div", { class: "tick" }, this.#input, label)] : [label, this.#input];
    const more = schema.secret && this.#kept && !schema.required ? [this.#removal()] : [];
    this.element = h("div", { class: "field", "data-field": name }, ...both, ...more, help, this.#problem);
  }

  /** What is to be kept; undefined: the default. A secret that nobody touched goes back as it came, which keeps it. */
  get value() {
    if (this.#schema.type === "boolean") return this.#input.checked;
    const text = this.#input.value;
    if (this.#schema.secret) return text || (this.#remove?.checked ? undefined : this.#kept || undefined);
    if (this.#schema.type !== "integer") return this.#schema.options?.length ? text || undefined : text;
    if (this.#input.validity.badInput) return "no number"; // the browser tells no more, and the gateway refuses it
    if (text.trim() === "") return undefined;
    return Number.isSafeInteger(Number(text)) ? Number(text) : text;
  }

  /** Say what is wrong with it; nothing: it is right. */
  set problem(text) {
    this.#problem.replaceChildren(...(text ? [h("bdi", {}, text)] : []));
    if (text) this.#input.setAttribute("aria-invalid", "true");
    else this.#input.removeAttribute("aria-invalid");
  }

  focus() {
    this.#input.focus();
  }

  /** A secret that need not be there can be taken away. */
  #removal() {
    this.#remove = h("input", { type: "checkbox", id: newId() });
    return h("div", { class: "tick" }, this.#remove, h("label", { for: this.#remove.id }, "Remove what is there"));
  }

  #line() {
    const { type, secret, min, max, placeholder } = this.#schema;
    if (secret) {
      const hint = this.#kept ? `${this.#kept} (kept)` : placeholder;
      return h("input", { type: "password", autocomplete: "new-password", placeholder: hint });
    }
    const kind = type === "integer" ? { type: "number", inputmode: "numeric", step: 1, min, max } : { type: "text" };
    return h("input", { ...kind, value: this.#kept, placeholder, spellcheck: "false", autocapitalize: "none" });
  }
}

function select({ options, required }, kept) {
  const values = options.map(String);
  if (!required || kept == null) values.unshift("");
  const chosen = kept == null ? "" : String(kept);
  if (!values.includes(chosen)) values.unshift(chosen); // it is refused when it is saved, not changed unseen
  return h("select", {}, values.map((value) => h("option", { value, selected: value === chosen }, value || "not set")));
}

/** Its help text, with its bounds. */
function helped({ description, min, max }, kept) {
  const least = min == null ? "" : `from ${min} `;
  const most = max == null ? "" : `up to ${max}`;
  const bounds = (least + most).trim();
  const keep = kept ? "Leave it empty to keep what is there." : "";
  return [description, bounds && `${bounds[0].toUpperCase()}${bounds.slice(1)}.`, keep].filter(Boolean).join(" ");
}
