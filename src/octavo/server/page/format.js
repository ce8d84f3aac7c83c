// Numbers as people read them.

const whole = new Intl.NumberFormat("en-US");

export const count = (value) => whole.format(Math.round(value));

/** `one` or `one`s. */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function rate(value) {
  if (value == null) return "–";
  return value >= 100 ? count(value) : value.toFixed(1);
}

/** Seconds as milliseconds. */
export function ms(seconds) {
  if (seconds == null) return "–";
  const value = seconds * 1000;
  return value >= 100 ? count(value) : value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function percent(part, total) {
  if (!total) return "–";
  const share = (100 * part) / total;
  return `${share > 0 && share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

/** The part of an id that tells it from others. */
export function shortId(id) {
  const [, body, choice] = /^(?:[a-z]+[-_])?([0-9a-zA-Z]{6})\w*-(\d+)$/.exec(id) ?? [];
  return body ? `${body}${choice === "0" ? "" : `·${choice}`}` : id.length > 14 ? `${id.slice(0, 13)}…` : id;
}
