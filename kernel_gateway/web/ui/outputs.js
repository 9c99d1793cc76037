// The outputs of one cell. What a cell shows may be hostile: text becomes text, pictures are <img>, in which no script
// runs, and HTML is shown in a frame that has an origin of its own and may load nothing (frame.html).
import { h } from "../admin/dom.js";
import { bytes } from "../admin/format.js";
import { Terminal } from "./terminal.js";

/** characters of a text, and of HTML or a picture, that are shown */
const TEXT = 100_000;
const RICH = 8_000_000;
/** outputs that are shown of one cell; the last ones */
const MOST = 500;
/** pixels that a frame takes at most; the rest is scrolled */
const HEIGHT = 640;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const TEXTS = ["text/markdown", "text/latex", "text/plain"];

/** frames that are shown, by their window */
const frames = new Map();

addEventListener("message", ({ source, data }) => {
  const frame = frames.get(source);
  if (!frame || typeof data !== "object" || data === null) return;
  if (typeof data.height !== "number") return;
  frame.element.style.height = `${Math.min(HEIGHT, Math.max(16, Math.ceil(data.height)))}px`;
  if (data.visible === false) frame.instead();
});

export class Outputs {
  element = h("div", { class: "outputs" });
  #last = null;
  #left = 0;
  #note = h("p", { class: "hint", hidden: true });

  constructor() {
    this.element.append(this.#note);
  }

  add(outputs) {
    for (const output of outputs) this.#add(output);
    while (this.element.childElementCount > MOST + 1) {
      this.#left += 1;
      release(this.element.children[1]);
    }
    this.#note.hidden = !this.#left;
    this.#note.textContent = `${this.#left} earlier outputs are not shown. The notebook has them.`;
  }

  clear() {
    this.#left = 0;
    this.#last = null;
    for (const child of [...this.element.children].slice(1)) release(child);
    this.#note.hidden = true;
  }

  #add(output) {
    if (output.output_type === "stream") {
      if (this.#last?.name !== output.name) {
        this.#last = { name: output.name, terminal: new Terminal() };
        this.#last.terminal.element.classList.add(output.name);
        this.element.append(this.#last.terminal.element);
      }
      this.#last.terminal.write(output.text);
      return;
    }
    this.#last = null;
    this.element.append(output.output_type === "error" ? failure(output) : display(output.data ?? {}));
  }
}

/** Take an output away; its frames, too. */
function release(element) {
  for (const [source, frame] of frames) if (element.contains(frame.element)) frames.delete(source);
  element.remove();
}

function failure({ ename, evalue, traceback }) {
  const terminal = new Terminal();
  terminal.element.classList.add("failure");
  terminal.write(traceback?.length ? traceback.join("\n") : `${ename}: ${evalue}`);
  return terminal.element;
}

/** The richest form of a display that can be shown inertly. */
function display(data) {
  const picture = PICTURES.find((type) => typeof data[type] === "string" && data[type].length <= RICH);
  if (picture) return image(`data:${picture};base64,${data[picture].replaceAll(/\s/g, "")}`, data);
  const svg = data["image/svg+xml"];
  if (typeof svg === "string" && svg.length <= RICH) {
    return image(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`, data);
  }
  const html = data["text/html"];
  if (typeof html === "string" && html.length <= RICH) return framed(html, data);
  return textOf(data);
}

function image(source, data) {
  const described = typeof data["text/plain"] === "string" ? data["text/plain"].slice(0, 200) : "";
  return h("div", { class: "picture" }, h("img", { src: source, alt: described || "picture without a description" }));
}

function framed(html, data) {
  const element = h("iframe", {
    src: "frame.html",
    sandbox: "allow-scripts",
    title: "HTML output",
    referrerpolicy: "no-referrer",
  });
  const box = h("div", { class: "framed" }, element);
  element.addEventListener("load", () => {
    if (element.contentWindow) frames.set(element.contentWindow, shown);
    element.contentWindow?.postMessage({ html }, "*");
  });
  const shown = {
    element,
    instead() {
      const size = bytes(html.length);
      const told = `A display that needs scripts (${size}), which this page does not run.`;
      box.replaceChildren(h("p", { class: "hint" }, told), textOf(data));
    },
  };
  return box;
}

function textOf(data) {
  const type = TEXTS.find((name) => typeof data[name] === "string");
  const json = Object.keys(data).find((name) => /^application\/(.*\+)?json$/.test(name));
  const text = type ? data[type] : json ? JSON.stringify(data[json], null, 2) : `(${Object.keys(data).join(", ")})`;
  const terminal = new Terminal();
  terminal.write(text.length > TEXT ? `${text.slice(0, TEXT)}\n… ${text.length - TEXT} characters more` : text);
  return terminal.element;
}
