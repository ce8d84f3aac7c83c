// Watches the server's stream and draws each event. Comes back by itself when the connection is lost.

import { ServerError, stream } from "./api.js";
import { BlockMap } from "./blockmap.js";
import { Chart } from "./charts.js";
import { $, keyed, setText } from "./dom.js";
import { count, ms, rate } from "./format.js";
import { Palette } from "./palette.js";
import { showFacts, showMemory, showPrefix, showRequests, showRoutes } from "./panels.js";

const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [400, 4000];
const SILENCE_MS = 15000; // after which a connection counts as lost; events come every few seconds at the latest
const NOTICE_MS = 8000;

export class Machine {
  #palette = new Palette();
  #maps = new Map();
  #instance = null;
  #mine = null;
  #lost = false;
  #restarted = false; // and it was not told yet that it is ready again
  #wait = FIRST_WAIT_MS;
  #watching = null;
  #onModel;
  #recent = []; // tokens per second of the last events
  #latency = { first: null, inter: null };
  #noticeTimer = 0;

  /** `onModel(model)` is told what is served with each event. */
  constructor(onModel) {
    this.#onModel = onModel;
    this.rates = new Chart($("rate-chart"), [{ name: "generated", kind: "area" }], "tokens/s", count);
    this.latencies = new Chart($("latency-chart"), [{ name: "between tokens", kind: "line" }, { name: "first token", kind: "dots" }], "ms", count, [0, 4]);
    // A page that nobody sees does not watch.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#watching?.abort() : this.watch()));
  }

  /** The id of the call that the chat makes, whose requests are told from others'. */
  set mine(id) {
    this.#mine = id;
  }

  /** Watches until the page is hidden. */
  async watch() {
    if (this.#watching && !this.#watching.signal.aborted) return;
    const watching = new AbortController();
    this.#watching = watching;
    while (!watching.signal.aborted) {
      const why = await this.#follow(watching.signal);
      if (watching.signal.aborted) return;
      this.#showLost(why);
      await new Promise((resolve) => setTimeout(resolve, this.#wait));
      this.#wait = Math.min(LONGEST_WAIT_MS, this.#wait * 1.6);
    }
  }

  /** Reads one connection to its end; returns why it ended. */
  async #follow(signal) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE_MS);
    try {
      for await (const data of stream("v1/internal/events", null, AbortSignal.any([signal, silent.signal]))) {
        clearTimeout(timer);
        timer = setTimeout(() => silent.abort(), SILENCE_MS);
        this.#show(JSON.parse(data));
      }
      return "The connection to the server was lost";
    } catch (error) {
      if (error instanceof ServerError) return error.message;
      if (error instanceof TypeError || error.name === "AbortError") return "The connection to the server was lost";
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  #showLost(why) {
    this.#lost = true;
    this.#setState("lost", "not connected");
    this.#notice(`${why}; trying again.`);
    $("machine").classList.add("stale");
    this.#showFigures(null, null);
  }

  #show(event) {
    const { server, engine, model, machine } = event;
    if (this.#instance !== null && this.#instance !== server.instance) this.#restarted = true;
    this.#instance = server.instance;
    this.#wait = FIRST_WAIT_MS;
    $("machine").classList.remove("stale");
    this.#setState(engine.state, engine.busy ? "in a long step" : engine.state);
    if (engine.state === "loading" || engine.state === "failed") {
      this.#notice(`${this.#restarted ? "The server was restarted. " : ""}${sentence(engine)}`);
    } else {
      if (this.#restarted) this.#notice("The server was restarted; connected again.", NOTICE_MS);
      else if (this.#lost) this.#notice("Connected again.", NOTICE_MS / 2);
      else if (!$("notice").dataset.passing) this.#notice("");
      this.#restarted = false;
    }
    this.#lost = false;
    this.#onModel(model);
    showFacts(model);
    if (machine) this.#draw(machine);
    else if (!engine.busy) this.#showFigures(null, null);
  }

  #draw(machine) {
    this.#palette.keep(machine.requests.filter((each) => each.stage === "running").map((each) => each.id));
    this.#drawMaps(machine.groups);
    showRequests(machine, this.#palette, this.#mine, (id) => this.#maps.forEach((map) => map.highlight(id)));
    showPrefix(machine);
    showMemory(machine);
    showRoutes(machine);
    const { generated_tokens_per_s: generated, first_token_s: first, inter_token_s: inter } = machine.rates;
    const idle = !machine.running && !machine.waiting;
    if (idle && !generated) this.#recent = [];
    const rateNow = this.#smooth(generated);
    this.rates.add(machine.at_s, [rateNow]);
    const inMs = (seconds) => (seconds == null ? null : seconds * 1000);
    this.latencies.add(machine.at_s, [inMs(inter), inMs(first)]);
    // While something runs the latest hold between events that bring none; when nothing does, there are none.
    this.#latency.first = first ?? (idle ? null : this.#latency.first);
    this.#latency.inter = inter ?? (idle ? null : this.#latency.inter);
    this.#showFigures(rateNow, machine);
  }

  /** Without a `machine` nothing is known, and nothing old is left standing. */
  #showFigures(rateNow, machine) {
    if (!machine) {
      this.#recent = [];
      this.#latency = { first: null, inter: null };
    }
    setText($("fig-rate"), rate(rateNow));
    setText($("fig-running"), machine ? count(machine.running) : "–");
    setText($("fig-waiting"), machine?.waiting ? `and ${count(machine.waiting)} waiting` : machine?.running === 1 ? "request" : "requests");
    setText($("fig-first"), ms(this.#latency.first));
    setText($("fig-inter"), ms(this.#latency.inter));
  }

  /** The mean of the last second: from one event to the next a step more or less makes much. */
  #smooth(generated) {
    if (generated == null) return null;
    this.#recent = [...this.#recent, generated].slice(-4);
    return this.#recent.reduce((sum, each) => sum + each, 0) / this.#recent.length;
  }

  #drawMaps(groups) {
    const make = (group) => {
      const map = new BlockMap(group, this.#palette);
      this.#maps.set(String(group.group), map);
      return map.element;
    };
    if (!this.#maps.size) $("maps").replaceChildren();
    keyed($("maps"), groups, ({ group }) => group, make, (_, group) => this.#maps.get(String(group.group)).update(group));
  }

  #setState(state, text) {
    $("engine-state").dataset.state = state;
    setText($("engine-state-text"), text);
  }

  /** One line above all, for a while if `passing` milliseconds are given. */
  #notice(text, passing = 0) {
    clearTimeout(this.#noticeTimer);
    const line = $("notice");
    line.hidden = !text;
    setText(line, text);
    if (passing) {
      line.dataset.passing = "yes";
      this.#noticeTimer = setTimeout(() => this.#notice(""), passing);
    } else delete line.dataset.passing;
  }
}

function sentence({ state, reason }) {
  const text = reason || (state === "loading" ? "the model is loading" : "the engine has failed");
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
