// Signing in and out, which section is shown, and what happens while the gateway is away.
import { answers, call, news, useKey } from "./api.js";
import { Audit } from "./audit.js";
import { closeAll } from "./dialog.js";
import { h } from "./dom.js";
import { Overview } from "./overview.js";
import { Providers } from "./providers.js";
import { Sessions } from "./sessions.js";
import { askForKey } from "./sign_in.js";
import { Tenants } from "./tenants.js";
import { Usage } from "./usage.js";

const SECTIONS = {
  overview: Overview,
  providers: Providers,
  sessions: Sessions,
  tenants: Tenants,
  usage: Usage,
  audit: Audit,
};
/** seconds between two tries to reach a gateway that is gone */
const RETRY = 3;
const ENTRY = {
  label: "Admin key",
  missing: "Type an admin's key.",
  command: "kernel-gateway keys add NAME --role admin",
  check: () => call("GET", "v1/admin/keys"),
  enter,
};
const REFUSED = "The key opens nothing any more. Sign in with another one.";

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const leave = document.getElementById("leave");
const offline = document.getElementById("offline");
/** the sections of who is signed in, by name; null: nobody is */
let sections = null;
let current = null;

/** Show the sections to who has just signed in. */
function enter() {
  sections = Object.fromEntries(Object.entries(SECTIONS).map(([name, Kind]) => [name, new Kind()]));
  main.replaceChildren(...Object.values(sections).map((section) => section.element));
  nav.hidden = leave.hidden = false;
  show();
}

/** Forget the key and all that was shown with it. */
function signOut(why) {
  useKey("");
  current?.hide();
  sections = current = null;
  nav.hidden = leave.hidden = true;
  closeAll();
  askForKey(main, ENTRY, why);
}

/** Show the section that the address names. */
function show() {
  if (!sections) return;
  const name = location.hash.slice(1);
  const next = Object.hasOwn(sections, name) ? sections[name] : (current ?? sections.overview);
  if (next === current) return;
  current?.hide();
  current = next;
  for (const link of nav.children) {
    if (sections[link.hash.slice(1)] === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  current.show();
  current.heading.focus({ preventScroll: true });
  scrollTo(0, 0);
}

/** Say that the gateway is gone, and go on as soon as it is back. */
async function waitForGateway() {
  if (offline.hasChildNodes()) return;
  offline.append(h("p", {}, `The gateway does not answer. Trying again every ${RETRY} seconds …`));
  do await new Promise((resolve) => setTimeout(resolve, RETRY * 1000));
  while (!(await answers()));
  offline.replaceChildren();
  await current?.refresh();
}

addEventListener("hashchange", show);
addEventListener("pagehide", () => signOut()); // a page kept for the way back keeps no key
leave.addEventListener("click", () => signOut());
news.addEventListener("lost", waitForGateway);
news.addEventListener("refused", () => sections && signOut(REFUSED));
askForKey(main, ENTRY);
