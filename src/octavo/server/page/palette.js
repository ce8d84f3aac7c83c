// Gives each running request a colour and a letter, for as long as it is there.

const NUM_HUES = 10;

export class Palette {
  #slots = new Map(); // request id → number

  /** Lets go of the requests that are no longer among `ids`, and takes up the new ones. */
  keep(ids) {
    const wanted = new Set(ids);
    for (const id of this.#slots.keys()) if (!wanted.has(id)) this.#slots.delete(id);
    const taken = new Set(this.#slots.values());
    let next = 0;
    for (const id of wanted) {
      if (this.#slots.has(id)) continue;
      while (taken.has(next)) next += 1;
      taken.add(next);
      this.#slots.set(id, next);
    }
  }

  /** 0 to 9; the colours are in machine.css. */
  hue(id) {
    return (this.#slots.get(id) ?? 0) % NUM_HUES;
  }

  /** A, B, … Z, A2, … */
  letter(id) {
    const slot = this.#slots.get(id);
    if (slot === undefined) return "?";
    const round = Math.floor(slot / 26);
    return String.fromCharCode(65 + (slot % 26)) + (round ? round + 1 : "");
  }
}
