// Tenants, what they have of what they may, and the keys that open for them.
import { call } from "./api.js";
import { confirmed } from "./dialog.js";
import { button, chip, form, h, labelled, named, newId } from "./dom.js";
import { bytes, count, moment, NONE, seconds } from "./format.js";
import { changedLimits, ownLimits } from "./limits.js";
import { Section } from "./section.js";
import { Table } from "./table.js";

const share = (label, name, format) => ({
  label,
  number: true,
  cell: (tenant) => shown(tenant[name], format),
  by: (tenant) => tenant[name]?.used,
});

export class Tenants extends Section {
  #window = h("p", { class: "hint" });
  #names = h("datalist", { id: newId() });
  #made = h("div", {});
  #tenants = new Table({
    label: "Tenants",
    key: (tenant) => tenant.tenant,
    sort: [0, true],
    columns: [
      { label: "Tenant", cell: (it) => named(it.tenant), by: (it) => it.tenant },
      share("Sessions", "sessions", count),
      share("Running", "executions", count),
      share("Waiting", "queued", count),
      share("Time used", "execution_seconds", seconds),
      share("Output", "output_bytes", bytes),
      share("Uploads", "upload_bytes", bytes),
      { label: "Own limits", cell: (it) => named(ownLimits(it.limits)) },
      { label: "", fixed: (present) => button("Limits", () => this.#limit(present()), { kind: "small" }) },
    ],
  });
  #keys = new Table({
    label: "Keys",
    key: (key) => key.id,
    sort: [0, true],
    columns: [
      { label: "Tenant", cell: (it) => named(it.tenant), by: (it) => it.tenant },
      { label: "Role", cell: (it) => chip(it.role, it.role === "admin" ? "warn" : "plain"), by: (it) => it.role },
      { label: "Name", cell: (it) => (it.name ? named(it.name) : NONE), by: (it) => it.name || null },
      { label: "Made", cell: (it) => moment(it.created_at), by: (it) => it.created_at },
      { label: "Expires", cell: (it) => expiry(it), by: (it) => it.expires_at },
      { label: "Last used", cell: (it) => moment(it.last_used_at), by: (it) => it.last_used_at },
      { label: "Id", cell: (it) => named(it.id, "code") },
      { label: "", fixed: (present) => button("Revoke", () => this.#revoke(present()), { kind: "danger small" }) },
    ],
  });

  constructor() {
    super("Tenants and keys", "A key belongs to a tenant, and a tenant sees nothing of another's.");
    const [tenants, keys] = [h("h2", {}, "Tenants"), h("h2", {}, "Keys")];
    const hint = "Those that can be revoked; keys of the gateway's settings are not among them.";
    this.content.append(
      ...[tenants, this.#tenants.element, this.#window, keys, h("p", { class: "hint" }, hint)],
      ...[this.#form(), this.#made, this.#keys.element],
    );
  }

  async load() {
    const [{ tenants, window }, { keys }] = await Promise.all([
      call("GET", "v1/admin/tenants"),
      call("GET", "v1/admin/keys"),
    ]);
    const told = `Time, output and uploads: within the last ${seconds(window)}; a dash where there is no limit.`;
    this.#window.textContent = window ? told : "";
    this.#names.replaceChildren(...tenants.map((it) => h("option", { value: it.tenant })));
    this.#tenants.show(tenants, h("p", {}, "There are no tenants. Make a key for the first one below."));
    this.#keys.show(keys, h("p", {}, "There are no keys that can be revoked. Make one above."));
  }

  async #limit({ tenant, limits }) {
    if (!(await changedLimits(tenant, limits))) return;
    await this.refresh();
    this.notice.tell(`The limits of ${tenant} were changed.`);
  }

  #form() {
    const tenant = h("input", { list: this.#names.id, required: true, maxlength: 64, spellcheck: "false" });
    const role = h("select", {}, h("option", { value: "user" }, "user"), h("option", { value: "admin" }, "admin"),
      h("option", { value: "frontend" }, "frontend"));
    const name = h("input", { maxlength: 64, spellcheck: "false" });
    const expires = h("input", { type: "date" });
    const make = h("button", { class: "main" }, "Make key");
    return form(
      { class: "line", "aria-label": "New key" },
      make,
      async () => {
        try {
          const asked = { tenant: tenant.value.trim(), role: role.value, name: name.value.trim() };
          if (expires.value) asked.expires_at = expires.value;
          this.#show(await call("POST", "v1/admin/keys", asked));
        } catch (failure) {
          this.notice.fail(failure);
          return tenant.focus();
        }
        tenant.value = name.value = expires.value = "";
        await this.refresh();
      },
      ...[labelled("Tenant", tenant), this.#names, labelled("Role", role)],
      ...[labelled("Name", name), labelled("Expires (UTC)", expires), make],
    );
  }

  /** The key, this once: the gateway itself does not know it any more. */
  #show({ tenant, role, key }) {
    this.notice.clear();
    const told = h("span", { class: "hint", role: "status" });
    const value = h("input", { type: "text", readonly: true, class: "code", value: key, "aria-label": "The new key" });
    const copy = async () => {
      value.select();
      const copied = navigator.clipboard?.writeText(key); // there is none over plain http to another machine
      const can = (await copied?.then(() => true, () => false)) ?? false;
      told.textContent = can ? "Copied." : "It is selected: copy it with Ctrl+C.";
    };
    const done = button("Done", () => this.forget(), { kind: "quiet" });
    const title = h("h3", { tabindex: "-1" }, "New ", role, " key for ", named(tenant));
    this.#made.replaceChildren(
      h(
        "div",
        { class: "notice good" },
        title,
        h("p", {}, "Copy it now: it is shown this once and cannot be looked up later."),
        h("div", { class: "line" }, value, button("Copy", copy), done, told),
      ),
    );
    title.focus();
  }

  /** Show the new key no longer. */
  forget() {
    this.#made.replaceChildren();
    this.heading.focus();
  }

  async #revoke(key) {
    const warning = "It opens nothing from then on. If it is the key you signed in with, you are signed out.";
    const what = h("p", {}, `The ${key.role} key `, named(key.id, "code"), " of ", named(key.tenant), ".");
    if (!(await confirmed("Revoke this key?", "Revoke key", what, h("p", {}, warning)))) return;
    try {
      await call("DELETE", `v1/admin/keys/${encodeURIComponent(key.id)}`);
    } catch (failure) {
      return this.notice.fail(failure);
    }
    await this.refresh();
    this.notice.tell(`Key ${key.id} of ${key.tenant} was revoked.`);
    this.heading.focus();
  }
}

function expiry({ expires_at, expired }) {
  if (!expires_at) return "never";
  if (expired) return chip("expired", "bad");
  const when = moment(expires_at);
  when.textContent = new Date(expires_at).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return when;
}

/** How much of how much; without a limit only how much, and nothing where nobody counts. */
function shown(part, format) {
  if (part?.used == null) return NONE;
  if (part.max == null) return format(part.used);
  const text = `${format(part.used)} of ${format(part.max)}`;
  return part.used < part.max ? text : h("strong", {}, text);
}
