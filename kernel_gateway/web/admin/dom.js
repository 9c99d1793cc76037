// How the page makes elements. What comes from the gateway becomes text or an attribute of ours, never markup:
// there is no innerHTML here, and the page's policy (trusted-types) would refuse it.

/** An element with attributes, listeners (`onclick`, ...) and children; a string becomes text, null is left out. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** A name that somebody else chose: its writing direction stays its own, and what is cut off shows on hover. */
export function named(text, kind = "") {
  return h("bdi", { class: `name ${kind}`, title: text }, text);
}

/** A word about a state; `kind` (good, bad, warn, plain) only adds colour to it. */
export function chip(text, kind = "plain") {
  return h("span", { class: `chip ${kind}` }, text);
}

let ids = 0;

/** An id for `aria-describedby` and the like. */
export function newId() {
  return `i${++ids}`;
}

/** A place where results are told, read out as they come. */
export class Notice {
  element = h("div", { class: "notices", role: "status" });

  clear() {
    this.element.replaceChildren();
  }

  tell(text, kind = "good") {
    this.element.replaceChildren(h("p", { class: `notice ${kind}` }, h("bdi", {}, text)));
  }

  /** What happened and what to do, of a `Failure`; anything else is a mistake of ours and goes on. */
  fail(failure, ...more) {
    if (failure?.name !== "Failure") throw failure;
    const { message, code, resolution } = failure;
    const told = h(
      "div",
      { class: "notice bad" },
      h("p", {}, h("strong", {}, h("bdi", {}, message)), code ? chip(code) : null),
      resolution ? h("p", {}, h("bdi", {}, resolution)) : null,
      ...more,
    );
    if (told.textContent !== this.element.textContent) this.element.replaceChildren(told); // said once
  }
}

/** A button with a label (text or nodes) that does one thing at a time. It keeps the keyboard's focus meanwhile, which `disabled` would take. */
export function button(label, work, { kind = "", ...attributes } = {}) {
  const node = h("button", { type: "button", class: kind, ...attributes, onclick: () => once(node, work) }, ...[label].flat());
  return node;
}

/** Do the work of a button unless it is being done. */
export async function once(node, work) {
  if (node.getAttribute("aria-disabled") === "true") return;
  node.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    node.removeAttribute("aria-disabled");
  }
}

/** A form whose button does one thing at a time; the browser itself never sends it. */
export function form(attributes, submit, work, ...children) {
  const onsubmit = (event) => {
    event.preventDefault();
    once(submit, work);
  };
  return h("form", { novalidate: true, autocomplete: "off", ...attributes, onsubmit }, ...children);
}

/** A labelled input in a line with others. */
export function labelled(label, input) {
  input.id ||= newId();
  return h("div", { class: "labelled" }, h("label", { for: input.id }, label), input);
}
