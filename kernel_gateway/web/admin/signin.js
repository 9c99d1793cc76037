// Signing in and out, for both pages: a key opens the page, and nothing of it stays when its user leaves.
import { call, Failure, news, useKey } from "./api.js";
import { closeAll } from "./dialog.js";
import { form, h, labelled, Notice } from "./dom.js";

const REFUSED = "The key opens nothing any more. Sign in with another one.";
const CHARACTERS = "It has only letters, digits and signs of ASCII, and no spaces.";

const main = document.getElementById("main");
const nav = document.querySelector("nav");
const leave = document.getElementById("leave");

export class SignIn {
  #page;
  #signedIn = false;

  /**
   * @param page `label`: what key it asks for; `command`: makes such a key; `check()` asks the gateway for something that
   *   only such a key opens; `open()` shows the page, and `close()` forgets all that it has shown
   */
  constructor(page) {
    this.#page = page;
    addEventListener("pagehide", () => this.leave()); // a page kept for the way back keeps no key
    leave.addEventListener("click", () => this.leave());
    news.addEventListener("refused", () => this.refuse());
    this.#ask();
  }

  /** The key opens nothing any more. */
  refuse() {
    this.leave(REFUSED);
  }

  /** Forget the key and all that was shown with it. */
  leave(why) {
    if (!this.#signedIn) return;
    this.#signedIn = false;
    useKey("");
    this.#page.close();
    nav.hidden = leave.hidden = true;
    closeAll();
    this.#ask(why);
  }

  #ask(why) {
    const notice = new Notice();
    const key = h("input", { type: "password", autocomplete: "current-password", required: true });
    const enter = h("button", { class: "main" }, "Sign in");
    const entry = form(
      { class: "card entry", autocomplete: "on" },
      enter,
      () => this.#try(key, notice),
      ...[h("h1", {}, "Sign in"), labelled(this.#page.label, key), enter, notice.element],
      h("p", { class: "hint" }, "No key yet? On the gateway's machine: ", h("code", {}, this.#page.command)),
      h("p", { class: "hint" }, "The key stays in this tab's memory. A reload asks for it again."),
    );
    main.replaceChildren(entry);
    if (why) notice.tell(why, "bad");
    key.focus();
  }

  async #try(input, notice) {
    const key = input.value.trim();
    try {
      if (!/^[!-~]+$/.test(key)) {
        throw new Failure({ message: key ? "This is no key." : "Type a key.", resolution: CHARACTERS });
      }
      useKey(key);
      await this.#page.check();
    } catch (failure) {
      useKey("");
      notice.fail(failure);
      input.select();
      return;
    }
    input.value = "";
    this.#signedIn = true;
    nav.hidden = leave.hidden = false;
    this.#page.open();
  }
}
