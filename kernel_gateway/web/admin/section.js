// What the page's sections have in common: a heading, a place for news, and what they look like until data is there.
import { button, h, newId, Notice } from "./dom.js";

export class Section {
  notice = new Notice();
  #loading = h("p", { class: "loading" }, "Loading …");
  #loaded = false;

  constructor(title, lead, ...content) {
    const id = newId();
    this.heading = h("h1", { id, tabindex: "-1" }, title);
    this.content = h("div", { hidden: true }, ...content);
    this.element = h(
      "section",
      { "aria-labelledby": id, hidden: true },
      this.heading,
      h("p", { class: "lead" }, lead),
      this.notice.element,
      this.#loading,
      this.content,
    );
  }

  /** Called when it comes into view, and when the gateway is back. */
  async show() {
    this.element.hidden = false;
    await this.refresh();
  }

  /** Called when another one takes its place. */
  hide() {
    this.element.hidden = true;
  }

  /** Get what it shows, and say so if that fails; what was there before stays. */
  async refresh() {
    this.element.setAttribute("aria-busy", "true");
    try {
      await this.load();
      if (this.failed) this.notice.clear();
      this.failed = false;
      this.#loaded = true;
      this.content.hidden = false;
    } catch (failure) {
      this.failed = true;
      this.notice.fail(failure, button("Try again", () => this.refresh()));
    } finally {
      this.element.removeAttribute("aria-busy");
      this.#loading.hidden = this.#loaded || this.failed;
    }
  }
}

/** A section that is brought up to date again and again, as long as somebody can see it. */
export class LiveSection extends Section {
  #interval;
  #timer;

  /** @param interval seconds between two looks */
  constructor(interval, title, lead) {
    super(title, lead);
    this.#interval = interval;
    document.addEventListener("visibilitychange", () => this.#wait());
  }

  async show() {
    await super.show();
    this.#wait();
  }

  hide() {
    super.hide();
    clearTimeout(this.#timer);
  }

  #wait() {
    clearTimeout(this.#timer);
    const seen = () => !document.hidden && !this.element.hidden && this.element.isConnected;
    if (!seen()) return;
    this.#timer = setTimeout(async () => {
      if (seen()) await this.refresh();
      this.#wait();
    }, this.#interval * 1000);
  }
}
