// The state of the whole gateway: what needs somebody, and how much is left of what it may run out of.
import { call } from "./api.js";
import { chip, h, named } from "./dom.js";
import { bytes, count, seconds } from "./format.js";
import { LiveSection } from "./section.js";

/** seconds between two looks */
const INTERVAL = 10;

export class Overview extends LiveSection {
  #alerts = h("div", {});
  #facts = h("dl", { class: "card facts" });

  constructor() {
    super(INTERVAL, "Overview", `The state of the gateway, brought up to date every ${INTERVAL} seconds.`);
    this.content.append(h("h2", {}, "Alerts"), this.#alerts, h("h2", {}, "State"), this.#facts);
  }

  async load() {
    const told = await call("GET", "v1/admin/overview");
    const alerts = told.alerts.map(shown);
    replace(this.#alerts, alerts.length ? alerts : [h("p", { class: "notice good" }, "No alert is due.")]);
    replace(this.#facts, [
      ...fact("Starts of kernels", ready(told)),
      ...fact("Golden images", ability(told.golden_images)),
      ...fact("Sleep", ability(told.sleep)),
      ...fact("Disk of the state directory", room(told.state_disk)),
      ...fact("Sleeping sessions and checkpoints", room(told.sleep_disk)),
      ...fact("Memory promised to kernels", room(told.memory)),
      ...fact("Sessions", sessions(told.sessions)),
      ...fact("Sandboxes", count(told.sandboxes)),
      ...fact("Warm kernels", count(told.warm_kernels)),
    ]);
  }
}

/** Show other nodes only if they differ, so that text stays selected. */
function replace(element, nodes) {
  const wanted = element.cloneNode(false);
  wanted.append(...nodes);
  if (!element.isEqualNode(wanted)) element.replaceChildren(...wanted.childNodes);
}

function shown({ name, severity, summary, action, seconds: since }) {
  return h(
    "div",
    { class: `notice ${severity === "critical" ? "bad" : "warn"}` },
    h("p", {}, h("strong", {}, h("bdi", {}, summary)), chip(severity)),
    h("p", {}, h("bdi", {}, action)),
    h("p", {}, named(name, "code"), ` for ${seconds(since)}`),
  );
}

function fact(term, ...content) {
  return [h("dt", {}, term), h("dd", {}, ...content)];
}

function ready({ ready: on, trouble }) {
  if (on) return chip("ready", "good");
  return [chip("not ready", "bad"), " ", h("bdi", {}, `${trouble?.message} ${trouble?.resolution}`), chip(trouble?.code)];
}

function ability({ on, detail }) {
  return [chip(on ? "on" : "off", on ? "good" : "plain"), " ", h("bdi", {}, detail)];
}

function room({ used, max }) {
  if (max == null) return `${bytes(used)}, no limit`;
  return `${bytes(used)} of ${bytes(max)}${max ? ` (${Math.round((100 * used) / max)} %)` : ""}`;
}

function sessions(states) {
  const there = Object.entries(states).filter(([, number]) => number);
  return there.length ? there.map(([state, number]) => `${count(number)} ${state}`).join(", ") : "none";
}
