// Signing in and out, which section is shown, and what happens while the gateway is away.
import { answers, call, Failure, news, useKey } from "./api.js";
import { Audit } from "./audit.js";
import { closeAll } from "./dialog.js";
import { form, h, labelled, Notice } from "./dom.js";
import { Overview } from "./overview.js";
import { Providers } from "./providers.js";
import { Sessions } from "./sessions.js";
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
const COMMAND = "kernel-gateway keys add NAME --role admin";
const REFUSED = "The key opens nothing any more. Sign in with another one.";

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const leave = document.getElementById("leave");
const offline = document.getElementById("offline");
/** the sections of who is signed in, by name; null: nobody is */
let sections = null;
let current = null;

function signIn(why) {
  const notice = new Notice();
  const key = h("input", { type: "password", autocomplete: "current-password", required: true, autofocus: true });
  const enter = h("button", { class: "main" }, "Sign in");
  const entry = form(
    { class: "card entry", autocomplete: "on" },
    enter,
    () => tryKey(key, notice),
    ...[h("h1", {}, "Sign in"), labelled("Admin key", key), enter, notice.element],
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
      throw new Failure({ message: key ? "This is no key." : "Type an admin's key.", resolution });
    }
    useKey(key);
    await call("GET", "v1/admin/keys");
  } catch (failure) {
    useKey("");
    notice.fail(failure);
    input.select();
    return;
  }
  input.value = "";
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
  signIn(why);
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
signIn();
