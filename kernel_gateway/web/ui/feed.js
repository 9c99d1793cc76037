// What the gateway tells live: one WebSocket for the whole page. It is opened again when it breaks off, and everything
// that the page shows begins anew then, because the gateway remembers nothing of an earlier socket.
import { socket } from "../admin/api.js";

/** seconds between two tries to connect */
const RETRY = 2;
/** close code of a key that opens nothing any more */
const REVOKED = 4401;

/** Events have the types of the feed's frames, and the frame as `detail`; `connected`, `lost` and `refused` are ours. */
export class Feed extends EventTarget {
  #socket = null;
  #opened = null;
  #over = false;
  #timer;
  sessions = [];
  /** the tenant at whose sessions an admin looks; null: they are the user's own */
  tenant = new URLSearchParams(location.search).get("tenant");

  /** The feed's path, which says why if it is refused: a socket does not. */
  get path() {
    return this.tenant === null ? "ui/feed" : `ui/feed?tenant=${encodeURIComponent(this.tenant)}`;
  }

  connect() {
    const opened = socket(this.path);
    this.#socket = opened;
    opened.addEventListener("open", () => {
      this.dispatchEvent(new Event("connected"));
      if (this.#opened !== null) this.#send({ open: this.#opened });
    });
    opened.addEventListener("message", ({ data }) => {
      const frame = JSON.parse(data);
      if (frame.type === "sessions") this.sessions = frame.sessions;
      this.dispatchEvent(new CustomEvent(frame.type, { detail: frame }));
    });
    opened.addEventListener("close", ({ code }) => {
      if (this.#over) return;
      this.dispatchEvent(new Event(code === REVOKED ? "refused" : "lost"));
      if (code !== REVOKED) this.#timer = setTimeout(() => this.connect(), RETRY * 1000);
    });
  }

  /** Follow the cells of a session; null: of none. */
  open(name) {
    this.#opened = name;
    this.#send({ open: name });
  }

  /** Tell which cells are in view. */
  see(numbers, session) {
    this.#send({ see: numbers, session });
  }

  close() {
    this.#over = true;
    clearTimeout(this.#timer);
    this.#socket?.close();
  }

  #send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }
}
