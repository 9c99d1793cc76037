// The form that asks for a key, on the admin page and on the session page.
import { Failure, useKey } from "./api.js";
import { form, h, labelled, Notice } from "./dom.js";

/**
 * Show the form in place of all else.
 *
 * @param {Element} main - where the form is shown
 * @param {{label: string, missing: string, command: string, check: () => Promise<void>, enter: () => void}} page -
 *   what the key is called; what is said without one; the command that makes one; what is asked of the gateway with
 *   the key, which fails if the key opens nothing; what happens when it opens
 * @param {string} [why] - why a key is asked for again
 */
export function askForKey(main, page, why) {
  const notice = new Notice();
  const key = h("input", { type: "password", autocomplete: "current-password", required: true, autofocus: true });
  const enter = h("button", { class: "main" }, "Sign in");
  const entry = form(
    { class: "card entry", autocomplete: "on" },
    enter,
    () => tryKey(key, page, notice),
    ...[h("h1", {}, "Sign in"), labelled(page.label, key), enter, notice.element],
    h("p", { class: "hint" }, "No key yet? On the gateway's machine: ", h("code", {}, page.command)),
    h("p", { class: "hint" }, "The key stays in this tab's memory. A reload asks for it again."),
  );
  main.replaceChildren(entry);
  if (why) notice.tell(why, "bad");
  key.focus();
}

async function tryKey(input, page, notice) {
  const key = input.value.trim();
  try {
    if (!/^[!-~]+$/.test(key)) {
      const resolution = "It has only letters, digits and signs of ASCII, and no spaces.";
      throw new Failure({ message: key ? "This is no key." : page.missing, resolution });
    }
    useKey(key);
    await page.check();
  } catch (failure) {
    useKey("");
    notice.fail(failure);
    input.select();
    return;
  }
  input.value = "";
  page.enter();
}
