// Signing in and out, which view is shown, and what happens while the gateway is away.
import { call, Failure, news, useKey } from "../admin/api.js";
import { closeAll } from "../admin/dialog.js";
import { form, h, labelled, named, Notice } from "../admin/dom.js";
import { Feed } from "./feed.js";
import { Notebook } from "./notebook.js";
import { Sessions } from "./sessions.js";

const REFUSED = "The key opens nothing any more. Sign in with another one.";
const LOOKS = "You look, without any change, at the sessions of the tenant ";
const COMMAND = "kernel-gateway keys add NAME";

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const leave = document.getElementById("leave");
const look = document.getElementById("look");
const offline = document.getElementById("offline");
/** the feed and the view of who is signed in; null: nobody is */
let feed = null;
let view = null;

function signIn(why) {
  const notice = new Notice();
  const key = h("input", { type: "password", autocomplete: "current-password", required: true });
  const enter = h("button", { class: "main" }, "Sign in");
  const entry = form(
    { class: "card entry", autocomplete: "on" },
    enter,
    () => tryKey(key, notice),
    ...[h("h1", {}, "Sign in"), labelled("Key", key), enter, notice.element],
    h("p", { class: "hint" }, "No key yet? On the gateway's machine: ", h("code", {}, COMMAND)),
    h("p", { class: "hint" }, "The key stays in this tab's memory. A reload asks for it again."),
  );
  main.replaceChildren(entry);
  if (why) notice.tell(why, "bad");
  key.focus();
}

async function tryKey(input, notice) {
  const key = input.value.trim();
  try {
    if (!/^[!-~]+$/.test(key)) {
      const resolution = "It has only letters, digits and signs of ASCII, and no spaces.";
      throw new Failure({ message: key ? "This is no key." : "Type a key.", resolution });
    }
    useKey(key);
    await call("GET", "v1/limits");
    await mayLook();
  } catch (failure) {
    useKey("");
    notice.fail(failure);
    input.select();
    return;
  }
  input.value = "";
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
  signIn(why);
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
signIn();
