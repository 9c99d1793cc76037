// The limits of one tenant, and the dialog in which they are changed.
import { call } from "./api.js";
import { form, h, named, newId, Notice } from "./dom.js";
import { Field } from "./fields.js";
import { NONE } from "./format.js";

const MIB = 1024 ** 2;
/** in place of the names of images: none but the usual one */
const NO_IMAGES = "-";

const same = (text) => text;
const size = (number) => (number % MIB ? String(number) : `${number / MIB}m`);
/** What is no number is sent as it is, and the gateway says what is wrong with it. */
const number = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);
const names = (text) => (text === NO_IMAGES ? [] : text.split(",").map((name) => name.trim()).filter(Boolean));

/** Each limit: how it is called, how its value is written for people, and how it is read from what they write. */
const LIMITS = new Map(Object.entries({
  sessions: { label: "Sessions and sandboxes", help: "At a time.", written: String, read: number },
  memory: { label: "Memory", help: "Of each kernel, for example 256m.", written: size, read: same },
  cpus: { label: "Processors", help: "Of each kernel.", written: String, read: number },
  disk: { label: "Disk", help: "Of each workspace, for example 64m.", written: size, read: same },
  timeout: { label: "Timeout", help: "Seconds that a cell may run.", written: String, read: number },
  images: {
    label: "Images",
    help: `Beside the usual one, with commas; ${NO_IMAGES} for no others.`,
    written: (list) => list.join(", ") || NO_IMAGES,
    read: names,
  },
  egress: {
    label: "Network allowlist",
    help: "Whether a session may have it.",
    options: ["yes", "no"],
    written: (may) => (may ? "yes" : "no"),
    read: (text) => text === "yes",
  },
}));

/** The limits of its own that a tenant has, in one text. */
export function ownLimits(limits) {
  const own = [...LIMITS].filter(([name]) => limits?.[name] && limits[name].source !== "gateway");
  return own.map(([name, { written }]) => `${name} ${written(limits[name].value)}`).join(", ") || NONE;
}

/** Ask for new limits of a tenant and save them; whether they were saved. */
export function changedLimits(tenant, limits) {
  const fields = new Map();
  const shown = [...LIMITS].map(([name, kind]) => {
    const { value, most, source } = limits[name];
    if (source === "settings") return fixed(kind, value);
    const described = { ...kind, type: "string", description: `${kind.help} The gateway's: ${kind.written(most)}.` };
    const field = new Field(name, described, source === "admin" ? kind.written(value) : undefined);
    fields.set(name, field);
    return field.element;
  });
  const changes = () => {
    const texts = [...fields].map(([name, field]) => [name, (field.value ?? "").trim()]);
    return Object.fromEntries(texts.map(([name, text]) => [name, text ? LIMITS.get(name).read(text) : null]));
  };
  return asked(tenant, shown, async (notice) => {
    for (const field of fields.values()) field.problem = "";
    try {
      await call("PATCH", `v1/admin/tenants/${encodeURIComponent(tenant)}/limits`, changes());
      return true;
    } catch (failure) {
      notice.fail(failure);
      for (const { field, problem } of failure.fields) if (fields.has(field)) fields.get(field).problem = problem;
      return false;
    }
  });
}

/** A limit that only the gateway's settings change. */
function fixed({ label, written }, value) {
  const told = "The gateway's settings fix it: an admin cannot change it here.";
  return h("div", { class: "field" }, h("strong", {}, label), h("p", {}, written(value)), h("p", { class: "hint" }, told));
}

/** Show the dialog until `save` succeeds or it is left; whether it was saved. */
function asked(tenant, fields, save) {
  const [id, notice] = [newId(), new Notice()];
  const submit = h("button", { class: "main" }, "Save limits");
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const saving = async () => (await save(notice)) && dialog.close("saved");
  const hint = "They count from the next session or cell on; what runs keeps what it has. Empty: the gateway's limit.";
  const dialog = h(
    "dialog",
    { "aria-labelledby": id },
    h("h2", { id }, "Limits of ", named(tenant)),
    h("p", { class: "hint" }, hint),
    form(
      { "aria-label": "Limits" },
      submit,
      saving,
      ...[h("div", { class: "fields" }, ...fields), notice.element, h("div", { class: "actions" }, cancel, submit)],
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "saved");
    });
  });
}
