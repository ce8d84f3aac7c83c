// Draws the last two minutes of a few numbers as lines in an SVG. Keeps what it was given for that long.

import { makeSvg, setAll, setText } from "./dom.js";

const SPAN_S = 120;
const [WIDTH, HEIGHT] = [320, 110];
const [LEFT, RIGHT, TOP, BOTTOM] = [6, 46, 8, 94];

export class Chart {
  #series;
  #unit;
  #format;
  #decades;
  #points = [];

  /**
   * `series` are `{name, kind}`, of which kind is `area`, `line` or `dots`; `format` makes text of a value. With `decades`
   * the scale is logarithmic, between these two powers of ten.
   */
  constructor(parent, series, unit, format, decades = null) {
    this.#decades = decades;
    this.#unit = unit;
    this.#format = format;
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" });
    this.top = makeSvg("text", { x: WIDTH - RIGHT + 6, y: TOP + 8, class: "tick" });
    const bottom = makeSvg("text", { x: WIDTH - RIGHT + 6, y: BOTTOM, class: "tick" });
    bottom.textContent = decades ? format(10 ** decades[0]) : "0";
    const middle = makeSvg("text", { x: WIDTH - RIGHT + 6, y: (TOP + BOTTOM) / 2 + 4, class: "tick" });
    if (decades) middle.textContent = format(10 ** ((decades[0] + decades[1]) / 2));
    const ago = makeSvg("text", { x: LEFT, y: HEIGHT - 3, class: "tick" });
    ago.textContent = "2 min ago";
    const now = makeSvg("text", { x: WIDTH - RIGHT, y: HEIGHT - 3, class: "tick", "text-anchor": "end" });
    now.textContent = "now";
    for (const y of [TOP, (TOP + BOTTOM) / 2, BOTTOM]) {
      this.svg.append(makeSvg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "grid" }));
    }
    this.#series = series.map((each, i) => {
      const shapes = { line: makeSvg("path", { class: `${each.kind} series-${i}` }) };
      if (each.kind === "area") this.svg.append((shapes.fill = makeSvg("path", { class: `fill series-${i}` })));
      this.svg.append(shapes.line);
      return { ...each, ...shapes };
    });
    this.svg.append(this.top, middle, bottom, ago, now);
    const legend = document.createElement("p");
    legend.className = "chart-legend";
    if (series.length > 1) {
      series.forEach(({ name, kind }, i) => {
        const item = document.createElement("span");
        item.className = `mark ${kind} series-${i}`;
        item.textContent = name;
        legend.append(item);
      });
    }
    parent.replaceChildren(this.svg, ...(series.length > 1 ? [legend] : []));
  }

  /** Values of one moment, in the order of the series; null where there is none. */
  add(at, values) {
    const last = this.#points.at(-1);
    if (last && at <= last.at) this.#points = []; // another engine's clock
    this.#points.push({ at, values });
    while (this.#points.length && this.#points[0].at < at - SPAN_S) this.#points.shift();
    this.#draw(at);
  }

  #draw(now) {
    const most = Math.max(0, ...this.#points.flatMap(({ values }) => values.map((value) => value ?? 0)));
    const [least, top] = this.#decades ? this.#decades.map((power) => 10 ** power) : [0, niceAbove(most)];
    setText(this.top, `${this.#format(top)}`);
    const x = (at) => LEFT + (1 - (now - at) / SPAN_S) * (WIDTH - RIGHT - LEFT);
    const share = (value) => (this.#decades ? Math.log(Math.max(value, least) / least) / Math.log(top / least) : value / top);
    const y = (value) => BOTTOM - Math.min(1, share(value)) * (BOTTOM - TOP);
    this.#series.forEach((series, i) => {
      const seen = this.#points.filter(({ values }) => values[i] != null).map(({ at, values }) => [x(at), y(values[i])]);
      const text = ([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`;
      if (series.kind === "dots") {
        setAll(series.line, { d: seen.map((point) => `M${text(point)}h.01`).join("") });
        return;
      }
      const line = seen.length ? `M${seen.map(text).join("L")}` : "";
      setAll(series.line, { d: line });
      if (series.fill) setAll(series.fill, { d: line && `${line}L${seen.at(-1)[0].toFixed(1)} ${BOTTOM}L${seen[0][0].toFixed(1)} ${BOTTOM}Z` });
    });
    const said = this.#series.map(({ name }, i) => {
      const value = this.#points.findLast(({ values }) => values[i] != null)?.values[i];
      return `${name} ${value == null ? "none yet" : `${this.#format(value)} ${this.#unit}`}`;
    });
    this.svg.setAttribute("aria-label", `The last two minutes, at most ${this.#format(most)} ${this.#unit}. Latest: ${said.join(", ")}`);
  }
}

/** 1, 2 or 5 times a power of ten. */
function niceAbove(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
