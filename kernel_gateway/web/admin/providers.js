// Where programs run: each provider with a form made from its schema.
import { call, Failure, refused } from "./api.js";
import { button, chip, form, h, Notice } from "./dom.js";
import { Field } from "./fields.js";
import { Section } from "./section.js";

const PATH = "api/admin/sandbox";
/** seconds for a trial, which sets a provider up and runs a program in it */
const TRIAL = 30;

export class Providers extends Section {
  #cards = h("div", { class: "cards" });
  #shown = [];

  constructor() {
    super("Providers", "Where one-shot programs run. One is active; a change counts from the next run on.");
    this.content.append(this.#cards);
  }

  async load() {
    if (this.#shown.some((provider) => provider.changed)) return; // what somebody is writing is not thrown away
    const asked = [call("GET", `${PATH}/providers`), call("GET", `${PATH}/config`)];
    const [{ data: all }, { data: config, errors = {} }] = await Promise.all(asked);
    const open = new Set(this.#shown.filter((provider) => provider.element.open).map((provider) => provider.id));
    this.#shown = all.map((told) => new Provider(told, config[told.id] ?? {}, (id) => this.#activated(id)));
    this.#activated(config.active);
    const none = h("p", { class: "empty" }, "This gateway has no providers.");
    this.#cards.replaceChildren(...(all.length ? this.#shown.map((provider) => provider.element) : [none]));
    for (const provider of this.#shown) provider.begin(errors[provider.id], open.has(provider.id));
  }

  #activated(id) {
    for (const provider of this.#shown) provider.active = provider.id === id;
  }
}

class Provider {
  changed = false;
  #fields = new Map();
  #schema;
  #state = h("span", { class: "chips" });
  #form = h("div", { class: "fields" });
  #notice = new Notice();
  #activate;
  #active = false;
  #unsafe;
  #tell;

  constructor({ id, name, description, tags = [], ...more }, config, tell) {
    const { config_schema: schema, supported_languages: languages = [] } = more;
    this.id = id;
    this.#schema = schema;
    this.#unsafe = tags.includes("no sandbox");
    this.#tell = tell;
    this.#fill(config);
    const save = h("button", { class: "main" }, "Save");
    this.#activate = button("Activate", () => this.#use());
    const test = button("Test connection", () => this.#test());
    const actions = h("div", { class: "actions" }, save, test, this.#activate);
    const written = form({ "aria-label": name }, save, () => this.#save(), this.#form, actions);
    written.addEventListener("input", () => this.#isChanged(true));
    const runs = languages.length ? h("p", { class: "hint" }, "Runs ", h("bdi", {}, languages.join(", ")), ".") : null;
    this.element = h(
      "details",
      { class: "card", "data-provider": id },
      h("summary", {}, h("h2", {}, h("bdi", {}, name)), this.#state),
      ...[description && h("p", {}, h("bdi", {}, description)), runs, written, this.#notice.element],
    );
  }

  get active() {
    return this.#active;
  }

  set active(is) {
    this.#active = is;
    this.#activate.hidden = is;
    this.#mark();
  }

  /** Open are the active one, those that were, and one whose settings cannot be read, which says so. */
  begin(error, open) {
    this.element.open = open || this.active || error !== undefined;
    if (error) this.#notice.fail(refused({ error }));
  }

  #fill(config) {
    const kept = new Map(Object.entries(config));
    const made = Object.entries(this.#schema).map(([name, told]) => [name, new Field(name, told, kept.get(name))]);
    this.#fields = new Map(made);
    const fields = made.map(([, field]) => field.element);
    this.#form.replaceChildren(...(fields.length ? fields : [h("p", { class: "hint" }, "There is nothing to set.")]));
    this.#isChanged(false);
  }

  #isChanged(is) {
    this.changed = is;
    this.#mark();
  }

  #mark() {
    const unsafe = this.#unsafe && chip("no sandbox", "bad");
    const chips = [unsafe, this.changed && chip("not saved", "warn"), this.active && chip("active", "good")];
    this.#state.replaceChildren(...chips.filter(Boolean));
  }

  async #test() {
    this.#notice.tell("The provider is set up, and a small program is run …", "plain");
    await this.#does(async () => {
      const told = await call("POST", `${PATH}/test`, this.#sent(), { patience: TRIAL });
      const took = told.latency_ms == null ? "" : ` (${Math.round(told.latency_ms)} ms)`;
      if (told.success) return this.#notice.tell(`It works${took}: ${told.message}`);
      const resolution = "Look at the fields, and at whether this gateway reaches the provider. Nothing was saved.";
      throw new Failure({ message: `It does not work${took}: ${told.message}`, resolution });
    });
  }

  async #save() {
    await this.#does(async () => {
      const told = await call("POST", `${PATH}/config`, { ...this.#sent(), set_active: false });
      const { data: config } = await call("GET", `${PATH}/config`);
      this.#fill(config[this.id] ?? {});
      this.#notice.tell(told?.message ?? "Saved.");
    });
  }

  async #use() {
    await this.#does(async () => {
      await call("PUT", `${PATH}/active`, { provider: this.id });
      this.#tell(this.id);
      const kept = this.changed ? " What is not saved does not count yet." : "";
      this.#notice.tell(`It is active from the next run on.${kept}`);
      this.element.querySelector("summary").focus();
    });
  }

  #sent() {
    const values = [...this.#fields].map(([name, field]) => [name, field.value]);
    return { provider_type: this.id, config: Object.fromEntries(values.filter(([, value]) => value !== undefined)) };
  }

  /** Do it, or say what is wrong, at the fields where it is wrong. */
  async #does(work) {
    for (const field of this.#fields.values()) field.problem = "";
    try {
      await work();
    } catch (failure) {
      this.#notice.fail(failure);
      const wrong = failure.fields.filter(({ field }) => this.#fields.has(field));
      for (const { field, problem } of wrong) this.#fields.get(field).problem = problem;
      if (wrong.length) this.#fields.get(wrong[0].field).focus();
    }
  }
}
