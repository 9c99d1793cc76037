// Every request of the page. The admin's key is kept in this variable and nowhere else: a browser writes
// sessionStorage to the disk to bring tabs back, and this key opens everything. The price: a reload asks for it again.

let key = "";

/** `lost`: the gateway does not answer. `refused`: the key opens nothing any more. */
export const news = new EventTarget();

/** seconds that an answer may take */
const PATIENCE = 20;

/** A request that failed: what happened, and what to do about it. */
export class Failure extends Error {
  name = "Failure";

  /**
   * @param field what was sent, and is wrong
   * @param fields each `{field, problem}`, where that is more than one
   */
  constructor({ message, resolution = "", code = "", field = "", fields = [] }) {
    super(message);
    Object.assign(this, { resolution, code, field, fields });
  }
}

export function useKey(text) {
  key = text;
}

/** Ask the gateway; the answer's JSON, or null if it has none. Paths are relative, so a proxy may add a prefix. */
export async function call(method, path, body, { patience = PATIENCE } = {}) {
  const asked = key;
  const response = await send(method, path, body, patience);
  const type = response.headers.get("Content-Type") ?? "";
  const answer = type.startsWith("application/json") ? await whole(response) : null;
  if (response.ok && (answer !== null || response.status === 204)) return answer;
  if (!answer?.error) throw foreign(response.status);
  if (response.status === 401 && asked === key) news.dispatchEvent(new Event("refused"));
  throw refused(answer);
}

/** A refusal, in either of the two forms that the gateway's APIs have. */
export function refused({ error, error_code: code, resolution, details }) {
  if (typeof error === "object") return new Failure({ ...error, field: error.details?.field, fields: listed(error.details?.fields) });
  return new Failure({ message: error, code, resolution, fields: listed(details) });
}

function listed(fields) {
  return Array.isArray(fields) ? fields : [];
}

/** Ask for something that is no JSON, or send it; the response, which is no refusal. */
export async function transfer(method, path, body, { patience = 600 } = {}) {
  const response = await sendRaw(method, path, body, {}, patience);
  if (response.ok) return response;
  const type = response.headers.get("Content-Type") ?? "";
  const answer = type.startsWith("application/json") ? await whole(response) : null;
  throw answer?.error ? refused(answer) : foreign(response.status);
}

/** A WebSocket to the gateway. Browsers send no header with it, so a subprotocol carries the key. */
export function socket(path) {
  const address = new URL(`../${path}`, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const carrier = btoa(key).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return new WebSocket(address, ["kernel-gateway", `key.${carrier}`]);
}

/** Whether the gateway answers. */
export async function answers() {
  try {
    const response = await fetch("../healthz", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE * 1000) });
    return response.ok && (await response.json()).status === "ok";
  } catch {
    return false;
  }
}

async function send(method, path, body, patience) {
  if (body === undefined) return sendRaw(method, path, undefined, {}, patience);
  return sendRaw(method, path, JSON.stringify(body), { "Content-Type": "application/json" }, patience);
}

async function sendRaw(method, path, body, headers, patience) {
  try {
    return await fetch(`../${path}`, {
      method,
      headers: { Authorization: `Bearer ${key}`, ...headers },
      body,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(patience * 1000),
    });
  } catch (error) {
    if (error.name !== "TimeoutError") throw lost();
    throw new Failure({
      message: `There was no answer within ${patience} s.`,
      resolution: "It may have been done all the same: look before you try again.",
    });
  }
}

/** An answer's JSON; the connection may end before it does. */
async function whole(response) {
  try {
    return await response.json();
  } catch {
    throw lost();
  }
}

function lost() {
  news.dispatchEvent(new Event("lost"));
  return new Failure({
    message: "The gateway does not answer.",
    resolution: "See whether it runs and whether this machine reaches it. The page tries again by itself.",
  });
}

/** An answer that is not the gateway's own, so a proxy's. */
function foreign(status) {
  if ([502, 503, 504].includes(status)) return lost();
  return new Failure({
    message: `What answers here is not the gateway (status ${status}).`,
    resolution: "Look at the proxy in front of it, and open the page by the address that the gateway has there.",
  });
}
