// Which view is shown, and what happens while the gateway is away.
import { call } from "../admin/api.js";
import { h, named } from "../admin/dom.js";
import { SignIn } from "../admin/signin.js";
import { Feed } from "./feed.js";
import { Notebook } from "./notebook.js";
import { Sessions } from "./sessions.js";

const LOOKS = "You look, without any change, at the sessions of the tenant ";

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const look = document.getElementById("look");
const offline = document.getElementById("offline");
/** the feed and the view of who is signed in; null: nobody is */
let feed = null;
let view = null;

/** Begin to follow the gateway, and show what the address names. */
function open() {
  feed = new Feed();
  look.replaceChildren(...(feed.tenant === null ? [] : [h("p", {}, LOOKS, named(feed.tenant), ". The tenant is told.")]));
  feed.addEventListener("lost", () => {
    if (!offline.hasChildNodes()) offline.append(h("p", {}, "The gateway does not answer. Trying again …"));
  });
  feed.addEventListener("connected", () => offline.replaceChildren());
  feed.addEventListener("refused", () => entry.refuse());
  feed.connect();
  show();
}

function close() {
  view?.close();
  feed.close();
  feed = view = null;
  offline.replaceChildren();
  look.replaceChildren();
}

/** Fail unless this key opens the page, and may look at the tenant that the address names. */
async function check() {
  await call("GET", "v1/limits");
  const asked = new Feed();
  if (asked.tenant === null) return;
  try {
    await call("GET", asked.path);
  } catch (failure) {
    // Who may look is told that the feed speaks WebSocket only.
    if (failure.code !== "SB002" || failure.field !== "Upgrade") throw failure;
  }
}

/** Show what the address names: `#`, `#SESSION` or `#SESSION/cell-NUMBER`. */
function show() {
  if (!feed) return;
  const [name, place] = decoded(location.hash.slice(1)).split("/");
  const number = /^cell-([0-9]{1,9})$/.exec(place ?? "");
  const cell = number ? Number(number[1]) : null;
  if (name && view?.name === name) {
    if (cell !== null) view.goTo(cell);
    return;
  }
  view?.close();
  view = name ? new Notebook(feed, name, cell) : new Sessions(feed);
  main.replaceChildren(view.element);
  document.title = name ? `${name} – Kernel gateway` : "Kernel gateway: sessions";
  const link = nav.firstElementChild;
  if (name) link.removeAttribute("aria-current");
  else link.setAttribute("aria-current", "page");
  view.heading.focus({ preventScroll: true });
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

addEventListener("hashchange", show);
const entry = new SignIn({ label: "Key", command: "kernel-gateway keys add NAME", check, open, close });
