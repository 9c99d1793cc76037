// Signing in and out, which view is shown, and what happens while the gateway is away.
import { call, news, useKey } from "../admin/api.js";
import { closeAll } from "../admin/dialog.js";
import { h, named } from "../admin/dom.js";
import { askForKey } from "../admin/sign_in.js";
import { Feed } from "./feed.js";
import { Notebook } from "./notebook.js";
import { Sessions } from "./sessions.js";

const REFUSED = "The key opens nothing any more. Sign in with another one.";
const LOOKS = "You look, without any change, at the sessions of the tenant ";
const ENTRY = { label: "Key", missing: "Type a key.", command: "kernel-gateway keys add NAME", check, enter };

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const leave = document.getElementById("leave");
const look = document.getElementById("look");
const offline = document.getElementById("offline");
/** the feed and the view of who is signed in; null: nobody is */
let feed = null;
let view = null;

/** Show the sessions to who has just signed in. */
function enter() {
  nav.hidden = leave.hidden = false;
  feed = new Feed();
  look.replaceChildren(...(feed.tenant === null ? [] : [h("p", {}, LOOKS, named(feed.tenant), ". The tenant is told.")]));
  feed.addEventListener("lost", () => {
    if (!offline.hasChildNodes()) offline.append(h("p", {}, "The gateway does not answer. Trying again …"));
  });
  feed.addEventListener("connected", () => offline.replaceChildren());
  feed.addEventListener("refused", () => signOut(REFUSED));
  feed.connect();
  show();
}

async function check() {
  await call("GET", "v1/limits");
  await mayLook();
}

/** Whether this key may look at the tenant that the address names. The feed refuses what is no WebSocket later. */
async function mayLook() {
  const asked = new Feed();
  if (asked.tenant === null) return;
  try {
    await call("GET", asked.path);
  } catch (failure) {
    if (failure.code !== "SB002" || !failure.message.includes("WebSocket")) throw failure;
  }
}

/** Forget the key and all that was shown with it. */
function signOut(why) {
  if (!feed) return;
  useKey("");
  view?.close();
  feed.close();
  feed = view = null;
  nav.hidden = leave.hidden = true;
  offline.replaceChildren();
  look.replaceChildren();
  closeAll();
  askForKey(main, ENTRY, why);
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
addEventListener("pagehide", () => signOut()); // a page kept for the way back keeps no key
leave.addEventListener("click", () => signOut());
news.addEventListener("refused", () => signOut(REFUSED));
askForKey(main, ENTRY);
