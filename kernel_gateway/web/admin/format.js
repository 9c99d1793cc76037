// Numbers and times as people read them. What is not known is a dash.
import { h } from "./dom.js";

export const NONE = "–";

export function count(number) {
  return number == null ? NONE : Math.round(number).toLocaleString("en");
}

export function bytes(number) {
  if (number == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; number >= 1024 && unit < units.length - 1; unit++) number /= 1024;
  return `${number >= 100 || unit === 0 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

export function seconds(number) {
  if (number == null) return NONE;
  if (number < 1) return number > 0 ? `${Math.round(number * 1000)} ms` : "0 s";
  if (number < 10) return `${number.toFixed(1)} s`;
  if (number < 60) return `${Math.round(number)} s`;
  const minutes = Math.floor(number / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  const days = [`${Math.floor(hours / 24)} d`, `${hours % 24} h`];
  const [most, rest] = hours < 48 ? [`${hours} h`, `${minutes % 60} min`] : days;
  return rest.startsWith("0 ") ? most : `${most} ${rest}`;
}

/** A moment in the reader's own time; all of it on hover. */
export function moment(iso) {
  if (!iso) return NONE;
  const when = new Date(iso);
  const short = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  return h("time", { datetime: iso, title: when.toString() }, when.toLocaleString("en-GB", short));
}

/** seconds since a moment */
export function since(iso) {
  return Math.max(0, (Date.now() - new Date(iso)) / 1000);
}
