// What each tenant has used within a period, as for its bill.
import { call } from "./api.js";
import { form, h, labelled, named } from "./dom.js";
import { bytes, count, seconds } from "./format.js";
import { Section } from "./section.js";
import { Table } from "./table.js";

const COMMAND = "kernel-gateway usage --csv";

export class Usage extends Section {
  #since = h("input", { type: "date" });
  #until = h("input", { type: "date" });
  #table = new Table({
    label: "Usage",
    key: (row) => row.tenant,
    sort: [0, true],
    columns: [
      { label: "Tenant", cell: (it) => named(it.tenant), by: (it) => it.tenant },
      number("Cells", "cells", count),
      number("Time of cells", "cell_seconds", seconds),
      number("Output", "output_bytes", bytes),
      number("Memory (GiB hours)", "memory_gib_hours", hours),
      number("Disk (GiB hours)", "disk_gib_hours", hours),
    ],
  });

  constructor() {
    super("Usage", "What each tenant has used within a period. Days are those of UTC.");
    const [now, show] = [new Date(), h("button", {}, "Show")];
    this.#since.value = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth())).toISOString().slice(0, 10);
    const fields = [labelled("From", this.#since), labelled("Until, and not with", this.#until)];
    this.content.append(
      form({ class: "line", role: "search" }, show, () => this.refresh(), ...fields, show),
      h("p", { class: "hint" }, "As a file: ", h("code", {}, COMMAND)),
      this.#table.element,
    );
  }

  async load() {
    const query = new URLSearchParams();
    if (this.#since.value) query.set("since", this.#since.value);
    if (this.#until.value) query.set("until", this.#until.value);
    const { tenants } = await call("GET", `v1/admin/usage?${query}`);
    this.#table.show(tenants, h("p", {}, "Nothing was used in this period."));
  }
}

function number(label, name, format) {
  return { label, number: true, cell: (it) => format(it[name]), by: (it) => it[name] };
}

function hours(number) {
  return number.toLocaleString("en", { maximumFractionDigits: 3 });
}
