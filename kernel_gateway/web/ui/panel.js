// What the panels beside the notebook have in common: they load when somebody opens them, and say what went wrong.
import { h, Notice } from "../admin/dom.js";

export class Panel {
  notice = new Notice();
  content = h("div", {});

  constructor(title) {
    this.element = h(
      "details",
      { class: "card panel" },
      h("summary", {}, h("h2", {}, title)),
      this.notice.element,
      this.content,
    );
    this.element.addEventListener("toggle", () => this.element.open && this.refresh());
  }

  /** The session has changed. */
  told(session) {
    this.session = session;
  }

  /** Cells of the session have ended. */
  cellsEnded(_heads) {}

  async refresh() {
    await this.attempt(() => this.load());
  }

  /** Do something, and say so if it fails; whether it went well. */
  async attempt(work) {
    try {
      await work();
      this.notice.clear();
      return true;
    } catch (failure) {
      this.notice.fail(failure);
      return false;
    }
  }
}
