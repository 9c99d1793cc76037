// The files of the session: up, down, view.
import { call, transfer } from "../admin/api.js";
import { confirmed } from "../admin/dialog.js";
import { button, h, labelled, named } from "../admin/dom.js";
import { bytes } from "../admin/format.js";
import { Table } from "../admin/table.js";
import { Panel } from "./panel.js";
import { saved } from "./saved.js";

/** bytes of a file that can be viewed here, and of text that is shown of it */
const VIEWED = 4_000_000;
const TEXT = 100_000;
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };

export class Files extends Panel {
  #path;
  #folder = "";
  #where = h("p", { class: "total" });
  #up = button("Up", () => this.#go(this.#folder.split("/").slice(0, -1).join("/")), { kind: "small" });
  #view = h("div", { class: "detail", tabindex: "-1" });
  #table = new Table({
    label: "Files",
    key: (entry) => `${entry.type} ${entry.name}`,
    columns: [
      { label: "Name", cell: (it) => named(it.type === "directory" ? `${it.name}/` : it.name, "code") },
      { label: "Size", cell: (it) => size(it), number: true },
      { label: "", fixed: (present) => this.#actions(present) },
    ],
  });

  constructor(path) {
    super("Files");
    this.#path = path;
    const input = h("input", { type: "file", multiple: true });
    input.addEventListener("change", () => this.#upload(input));
    this.content.append(
      h("div", { class: "line" }, this.#up, this.#where, button("Refresh", () => this.refresh(), { kind: "small" })),
      h("div", { class: "line" }, labelled("Upload", input)),
      this.#table.element,
      this.#view,
    );
  }

  #address(name) {
    const parts = [...this.#folder.split("/"), ...name.split("/")].filter(Boolean);
    return `${this.#path}/files/${parts.map(encodeURIComponent).join("/")}`;
  }

  async load() {
    const { entries, truncated } = await call("GET", `${this.#address("")}?list`);
    this.#where.textContent = `/${this.#folder}${truncated ? " (cut: there are more)" : ""}`;
    this.#up.hidden = !this.#folder;
    this.#table.show(entries, h("p", {}, "There are no files here."));
  }

  async #go(folder) {
    const before = this.#folder;
    this.#folder = folder;
    if (!(await this.attempt(() => this.load()))) this.#folder = before;
  }

  async #upload(input) {
    for (const file of input.files) {
      const done = await this.attempt(() => transfer("PUT", this.#address(file.name), file));
      if (!done) return;
    }
    input.value = "";
    await this.refresh();
  }

  #actions(present) {
    const enter = () => this.#go([this.#folder, present().name].filter(Boolean).join("/"));
    const open = () => (present().type === "directory" ? enter() : this.attempt(() => this.#show(present())));
    const download = () => this.attempt(async () => saved(await this.#blob(present().name), present().name));
    return h(
      "span",
      { class: "line" },
      button("Open", open, { kind: "small" }),
      button("Download", download, { kind: "small" }),
      button("Delete", () => this.#delete(present()), { kind: "danger small" }),
    );
  }

  async #blob(name) {
    return await (await transfer("GET", this.#address(name))).blob();
  }

  async #delete({ name }) {
    if (!(await confirmed("Delete this file?", "Delete", h("p", {}, named(name), " cannot be brought back.")))) return;
    await this.attempt(() => call("DELETE", this.#address(name)));
    await this.refresh();
  }

  /** Show a file: a picture in an <img>, in which no script runs, and anything else as text. */
  async #show({ name, size }) {
    let shown;
    if (size > VIEWED) {
      shown = h("p", { class: "hint" }, `It is larger than ${bytes(VIEWED)}: download it.`);
    } else {
      const blob = await this.#blob(name);
      const type = PICTURES[name.split(".").at(-1).toLowerCase()];
      shown = type ? h("img", { src: await dataOf(blob, type), alt: name }) : h("pre", { class: "text" }, await textOf(blob));
    }
    const close = button("Close", () => this.#view.replaceChildren(), { kind: "small" });
    this.#view.replaceChildren(h("h3", {}, named(name, "code")), shown, close);
    this.#view.focus({ preventScroll: true });
  }
}

function size({ type, size, modified }) {
  const changed = `changed ${new Date(modified * 1000).toLocaleString("en-GB")}`;
  return h("span", { title: changed }, type === "file" ? bytes(size) : type);
}

function dataOf(blob, type) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.readAsDataURL(new Blob([blob], { type }));
  });
}

async function textOf(blob) {
  const text = await blob.slice(0, TEXT * 4).text();
  return text.length > TEXT ? `${text.slice(0, TEXT)}\n… (cut: download it to see the rest)` : text;
}
