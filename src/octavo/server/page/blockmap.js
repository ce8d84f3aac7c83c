// Draws one group's blocks as a grid of cells on a canvas, and tells of the one that is pointed at.

import { $, make, setText } from "./dom.js";
import { count, plural, shortId } from "./format.js";

export const STATES = ["free", "live", "shared", "cached", "pinned"];
const [FREE, LIVE, SHARED, CACHED, PINNED] = STATES.keys();
const SIZES = [18, 16, 14, 12, 11, 10, 9, 8, 7, 6, 5];
const MAX_HEIGHT = 250;
const MEANINGS = ["nobody holds it", "one request holds it", "several requests hold it", "the prefix cache keeps it", "a parked sequence holds it"];

export class BlockMap {
  #group = null;
  #cells = [];
  #columns = 1;
  #size = SIZES[0];
  #focus = null; // index of the cell that is pointed at
  #bright = null; // request id whose cells stand out
  #palette;

  constructor(group, palette) {
    this.#palette = palette;
    const id = `map-${group.group}`;
    this.canvas = make("canvas", {
      tabIndex: 0,
      role: "application",
      "aria-roledescription": "block map",
      "aria-describedby": `${id}-summary`,
      className: "cells",
    });
    this.title = make("p", { className: "map-title" });
    this.summary = make("p", { className: "hidden-text", id: `${id}-summary` });
    this.readout = make("p", { className: "readout" });
    this.legend = make("ul", { className: "legend" });
    for (const [state, name] of STATES.entries()) {
      const sample = make("canvas", { className: "sample", "aria-hidden": "true" });
      const number = make("b");
      this.legend.append(make("li", { title: MEANINGS[state] }, sample, make("span", {}, name), number));
    }
    this.element = make("div", { className: "map", id }, this.title, this.canvas, this.readout, this.legend, this.summary);
    this.canvas.addEventListener("pointermove", (event) => this.#point(this.#at(event)));
    this.canvas.addEventListener("pointerleave", () => this.#point(null));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(this.#at(event)));
    this.canvas.addEventListener("focus", () => this.#move(this.#focus ?? 0));
    this.canvas.addEventListener("blur", () => this.#point(null));
    this.canvas.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    document.addEventListener("octavo:theme", () => this.draw());
  }

  /** Shows `group` as an event tells it. */
  update(group) {
    this.#group = group;
    this.#cells = group.runs.flatMap(([length, state, owners, used, tokens, references]) =>
      Array(length).fill({ state, owners: group.owners[owners] ?? [], used, tokens, references }),
    );
    if (this.#focus !== null && this.#focus >= this.#cells.length) this.#focus = null;
    this.#describe();
    this.draw();
  }

  /** Has the cells of one request stand out; null for none. */
  highlight(id) {
    if (this.#bright === id) return;
    this.#bright = id;
    this.draw();
  }

  /** Blocks by state, counted from the cells where each is one block. */
  get counts() {
    if (this.#group.blocks_per_cell > 1) return this.#group.counts;
    const counts = Object.fromEntries(STATES.map((name) => [name, 0]));
    for (const cell of this.#cells) counts[STATES[cell.state]] += 1;
    return counts;
  }

  #describe() {
    const { kind, layers, window: span, blocks, blocks_per_cell: perCell, block_size: size } = this.#group;
    const counts = this.counts;
    const what = span ? `${kind} attention, window of ${count(span)}` : `${kind} attention`;
    setText(this.title, `${plural(layers, "layer")}, ${what}: ${plural(blocks, "block")} of ${size} tokens${perCell > 1 ? `, ${perCell} to a cell` : ""}`);
    const told = STATES.map((name) => `${counts[name]} ${name}`).join(", ");
    setText(this.summary, `${plural(blocks, "block")}: ${told}. Move over them with the arrow keys.`);
    this.canvas.setAttribute("aria-label", `Blocks of group ${this.#group.group}, ${what}`);
    STATES.forEach((name, state) => {
      setText(this.legend.children[state].lastElementChild, count(counts[name]));
      this.element.dataset[name] = counts[name];
    });
    setText(this.readout, this.#focus === null ? this.#overall() : this.#tell(this.#focus));
    this.canvas.hidden = !blocks;
    if (!blocks) setText(this.readout, "No blocks: what these layers keep lies in rings, one for each sequence.");
  }

  #overall() {
    const used = this.#group.blocks - this.counts.free;
    return `${count(used)} of ${count(this.#group.blocks)} in use. Point at a cell, or use the arrow keys, to see who holds it.`;
  }

  #tell(index) {
    const cell = this.#cells[index];
    const { blocks, blocks_per_cell: perCell, block_size: size } = this.#group;
    const first = index * perCell;
    const last = Math.min(blocks, first + perCell) - 1;
    const parts = [perCell > 1 ? `Blocks ${first}–${last}` : `Block ${first}`];
    parts.push(cell.state === FREE ? "free" : perCell > 1 ? `mostly ${STATES[cell.state]}, ${cell.used} in use` : STATES[cell.state]);
    if (cell.owners.length) parts.push(cell.owners.map((id) => `${this.#palette.letter(id)} ${shortId(id)}`).join(", "));
    if (cell.state !== FREE) {
      parts.push(`${cell.tokens} of ${(last - first + 1) * size} tokens`, plural(cell.references, "reference"));
    }
    return parts.join(" · ");
  }

  #point(index) {
    if (index === this.#focus) return;
    this.#focus = index;
    setText(this.readout, index === null ? this.#overall() : this.#tell(index));
    this.draw();
  }

  #move(index) {
    if (!this.#cells.length) return;
    this.#point(Math.max(0, Math.min(this.#cells.length - 1, index)));
    setText($("map-voice"), this.#tell(this.#focus));
  }

  #onKey(event) {
    const at = this.#focus ?? 0;
    const row = this.#columns;
    const steps = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + row,
      ArrowUp: at - row,
      PageDown: at + 8 * row,
      PageUp: at - 8 * row,
      Home: 0,
      End: this.#cells.length - 1,
    };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#move(steps[event.key]);
  }

  #at(event) {
    const column = Math.floor(event.offsetX / this.#size);
    const index = Math.floor(event.offsetY / this.#size) * this.#columns + column;
    return column < this.#columns && index >= 0 && index < this.#cells.length ? index : null;
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.#group || !this.#cells.length) return;
    const total = this.#cells.length;
    const fits = (size) => Math.ceil(total / Math.floor(width / size)) * size <= MAX_HEIGHT;
    this.#size = SIZES.find(fits) ?? SIZES.at(-1);
    this.#columns = Math.floor(width / this.#size);
    const height = Math.ceil(total / this.#columns) * this.#size;
    const colours = readColours(this.element);
    const pen = prepared(this.canvas, this.#columns * this.#size, height);
    this.#cells.forEach((cell, i) => {
      const x = (i % this.#columns) * this.#size;
      const y = Math.floor(i / this.#columns) * this.#size;
      pen.globalAlpha = this.#bright && cell.state !== FREE && !cell.owners.includes(this.#bright) ? 0.25 : 1;
      drawCell(pen, x, y, this.#size, cell.state, this.#fill(cell), this.#hue(cell, colours), colours);
    });
    pen.globalAlpha = 1;
    if (this.#focus !== null) {
      const x = (this.#focus % this.#columns) * this.#size;
      const y = Math.floor(this.#focus / this.#columns) * this.#size;
      pen.lineWidth = 2;
      pen.strokeStyle = colours.ink;
      pen.strokeRect(x + 0.5, y + 0.5, this.#size - 1, this.#size - 1);
    }
    [...this.legend.children].forEach((item, state) => {
      const sample = prepared(item.firstElementChild, 14, 14);
      drawCell(sample, 0, 0, 14, state, 1, state === LIVE ? colours.hues[0] : colours.states[state], colours);
    });
  }

  #fill(cell) {
    const most = this.#group.blocks_per_cell * this.#group.block_size;
    return cell.state === FREE ? 0 : Math.max(0.2, Math.min(1, cell.tokens / most));
  }

  #hue(cell, colours) {
    return cell.state === LIVE && cell.owners.length ? colours.hues[this.#palette.hue(cell.owners[0])] : colours.states[cell.state];
  }
}

/** Besides its colour each state has a form: an outline, a block, stripes, a dot, a frame with a core. */
function drawCell(pen, x, y, size, state, fill, colour, colours) {
  const gap = size > 8 ? 2 : 1;
  const side = size - gap;
  const inset = gap / 2;
  const left = x + inset;
  const top = y + inset;
  pen.fillStyle = colours.empty;
  pen.fillRect(left, top, side, side);
  if (state === FREE) return;
  pen.fillStyle = colour;
  if (state === CACHED) {
    const dot = Math.max(2, Math.round(side * 0.45));
    const off = (side - dot) / 2;
    pen.fillRect(left + off, top + off, dot, dot);
    return;
  }
  if (state === PINNED) {
    const edge = Math.max(1, Math.round(side / 7));
    pen.fillRect(left, top, side, side);
    pen.fillStyle = colours.empty;
    pen.fillRect(left + edge, top + edge, side - 2 * edge, side - 2 * edge);
    pen.fillStyle = colour;
    pen.fillRect(left + 2 * edge, top + 2 * edge, side - 4 * edge, side - 4 * edge);
    return;
  }
  const tall = Math.max(1, side * fill);
  pen.fillRect(left, top + side - tall, side, tall);
  if (state === SHARED) {
    pen.save();
    pen.beginPath();
    pen.rect(left, top + side - tall, side, tall);
    pen.clip();
    pen.strokeStyle = colours.empty;
    pen.lineWidth = Math.max(1, side / 9);
    pen.beginPath();
    for (let d = -side; d < side; d += Math.max(3, side / 3)) {
      pen.moveTo(left + d, top + side);
      pen.lineTo(left + d + side, top);
    }
    pen.stroke();
    pen.restore();
  }
}

/** A context whose unit is a CSS pixel; the canvas is cleared. */
function prepared(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const [wide, tall] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== tall) {
    canvas.width = wide;
    canvas.height = tall;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function readColours(element) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    empty: read("--cell-empty"),
    hues: Array.from({ length: 10 }, (_, i) => read(`--hue-${i}`)),
    states: STATES.map((name) => read(`--cell-${name}`)),
  };
}
