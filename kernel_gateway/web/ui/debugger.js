// The debugger: runs the editor's code until a breakpoint, steps, and shows frames and variables, also those of the
// exception that has ended the last cell (post mortem). The commands are those of `POST …/debug`.
import { call } from "../admin/api.js";
import { button, form, h, labelled, named } from "../admin/dom.js";
import { Table } from "../admin/table.js";
import { Panel } from "./panel.js";

/** seconds that an answer may take; the gateway answers after ten that the cell still runs */
const PATIENCE = 60;
/** seconds between two signs that somebody looks at a cell that stands, which the gateway would end otherwise */
const RENEWAL = 60;
const MOVES = { continue: "Continue", next: "Step over", stepIn: "Step in", stepOut: "Step out" };
const SAID = {
  none: "No cell is debugged, and none has failed. Set breakpoints beside the code (F9), and press Debug.",
  running: "The cell runs.",
  ended: "The debugged cell has ended.",
};
/** what is asked when the cell runs, and when it stands */
const LOOKS = { running: "wait", stopped: "variables" };

export class Debugger extends Panel {
  #path;
  #mark;
  #seen = { state: "none", frames: [] };
  #frame = 0;
  #timer;
  #asking = 0;
  /** whether the end of a cell is awaited that this page has asked for */
  #terminated = false;
  #said = h("p", { role: "status" });
  #log = h("pre", { class: "text", hidden: true });
  #frames = h("ol", { class: "frames", "aria-label": "Frames, the innermost first" });
  #value = h("pre", { class: "text", role: "status", hidden: true });
  #buttons = {};
  #evaluate;
  #variables = new Table({
    label: "Variables of the frame",
    key: (variable) => variable.name,
    columns: [
      { label: "Name", cell: (it) => named(it.name, "code") },
      { label: "Type", cell: (it) => named(it.type) },
      { label: "Value", cell: (it) => named(it.value, "code") },
    ],
  });

  /**
   * @param path the session's
   * @param mark shows in the editor in which line the cell stands; null: in none
   */
  constructor(path, mark) {
    super("Debugger");
    this.#path = `${path}/debug`;
    this.#mark = mark;
    for (const [command, label] of Object.entries(MOVES)) this.#button(command, label);
    this.#button("pause", "Pause");
    this.#button("terminate", "End cell", "danger small");
    this.#evaluate = this.#evaluation();
    this.content.append(
      this.#said,
      h("div", { class: "line", role: "group", "aria-label": "Steps" }, ...Object.values(this.#buttons)),
      ...[this.#log, this.#frames, this.#variables.element, this.#evaluate, this.#value],
    );
    this.#show(this.#seen);
  }

  get active() {
    return this.#seen.state === "running" || this.#seen.state === "stopped";
  }

  /** Run code until a breakpoint; whether that began. */
  async launch(code, breakpoints, exceptions) {
    this.#log.textContent = "";
    const began = this.#command("launch", { code, breakpoints, exceptions });
    this.element.open = true;
    return await began;
  }

  /** Nobody looks any more; the gateway ends a cell that stands for too long. */
  close() {
    this.#asking += 1;
    clearTimeout(this.#timer);
  }

  /** After a failed cell, its frames, unless this page has ended it. A look would wake a session that sleeps. */
  cellsEnded(heads) {
    const terminated = this.#terminated;
    this.#terminated = false;
    if (terminated || !heads.some(({ state }) => state === "failed")) return;
    if (this.element.open && !this.active && this.session?.state !== "asleep") this.refresh();
  }

  async load() {
    if (this.active) return;
    this.#frame = 0;
    this.#show(await call("GET", this.#path, undefined, { patience: PATIENCE }));
  }

  #button(command, label, kind = "small") {
    this.#buttons[command] = button(label, () => this.#command(command), { kind });
  }

  #evaluation() {
    const expression = h("input", { class: "code", spellcheck: "false", autocapitalize: "off" });
    const send = h("button", { class: "small" }, "Evaluate");
    const work = async () => {
      if (!expression.value.trim()) return expression.focus();
      await this.#command("evaluate", { expression: expression.value, frameId: this.#frame });
    };
    return form({ class: "line" }, send, work, labelled("Expression", expression), send);
  }

  /** Send a command and show what there is to see then; whether it was obeyed. */
  async #command(command, fields = {}) {
    const asking = (this.#asking += 1); // an answer to an earlier command is old news
    clearTimeout(this.#timer);
    if (command === "terminate") this.#terminated = true;
    if (command === "launch" || command in MOVES) {
      this.#frame = 0;
      this.#show({ state: "running", frames: [] });
    }
    const done = await this.attempt(async () => {
      const seen = await call("POST", this.#path, { command, ...fields }, { patience: PATIENCE });
      if (asking !== this.#asking) return;
      if (command === "evaluate") this.#tellValue(seen.value);
      else this.#show(seen);
    });
    if (asking !== this.#asking) return done;
    if (!done && command !== "evaluate") await this.#findOut();
    this.#watch();
    return done;
  }

  /** What there is after a command that was refused. */
  async #findOut() {
    try {
      this.#show(await call("GET", this.#path, undefined, { patience: PATIENCE }));
    } catch {
      this.#show({ state: "none", frames: [] });
    }
  }

  /** Ask again: at once while the cell runs, and now and then while it stands. */
  #watch() {
    const look = LOOKS[this.#seen.state];
    if (!look || !this.element.isConnected) return;
    const again = () => this.#command(look, look === "variables" ? { frameId: this.#frame } : {});
    this.#timer = setTimeout(again, look === "wait" ? 100 : RENEWAL * 1000);
  }

  #show(seen) {
    this.#seen = seen;
    const { state, frames, variables, log = [], error } = seen;
    this.#said.textContent = said(seen);
    if (error) this.#said.textContent += ` ${error.message}`;
    for (const [command, node] of Object.entries(this.#buttons)) {
      node.hidden = command === "pause" ? state !== "running" : command === "terminate" ? !this.active : state !== "stopped";
    }
    if (log.length) this.#log.textContent += log.join("");
    this.#log.hidden = !this.#log.textContent;
    this.#frames.replaceChildren(...frames.map((frame) => this.#place(frame)));
    this.#variables.show(variables ?? [], "");
    this.#variables.element.hidden = this.#evaluate.hidden = !frames.length;
    this.#value.hidden = true;
    const stands = state === "stopped" && frames[0]?.source === "this cell";
    this.#mark(stands ? frames[0].line : null);
  }

  #tellValue(value) {
    this.#value.hidden = false;
    this.#value.textContent = value ? `${value.value}${value.type ? `   (${value.type})` : ""}` : "It has no value.";
  }

  #place({ frameId, name, line, source, text }) {
    const shown = button([named(name, "code"), ` line ${line}, `, named(source)], () => this.#look(frameId), { kind: "quiet small" });
    if (frameId === this.#frame) shown.setAttribute("aria-current", "true");
    return h("li", {}, shown, text ? h("pre", { class: "code" }, text) : null);
  }

  async #look(frame) {
    this.#frame = frame;
    await this.#command("variables", { frameId: frame });
    this.#frames.querySelector("[aria-current]")?.focus();
  }
}

function said({ state, reason, description, frames, breakpoints = [] }) {
  const lost = breakpoints.filter(({ verified }) => !verified).map(({ line }) => line);
  const unset = lost.length ? ` The debugger could not set breakpoints in: ${lost.join(", ")}.` : "";
  if (state === "post_mortem") return `An exception has ended a cell: ${description}. These were its frames.`;
  if (state !== "stopped") return SAID[state] + unset;
  const where = frames.length ? ` in line ${frames[0].line}` : "";
  return `The cell stands${where} (${reason}${description ? `: ${description}` : ""}).${unset}`;
}
