// The conversation: sends it, shows the answer as it streams, stops it, asks again.

import { ServerError, stream } from "./api.js";
import { $, make, setText } from "./dom.js";
import { count, ms, plural, rate } from "./format.js";
import { render } from "./markdown.js";

const NEAR_END = 48; // pixels from the end of the log at which it still follows the answer

/** `onCall(id)` is told the id of the answer that is being made, and null when there is none. */
export class Chat {
  #turns = [];
  #running = null;
  #model = null;
  #onCall;

  constructor(onCall) {
    this.#onCall = onCall;
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) this.stop();
      else this.#submit();
    });
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.#running) this.#submit();
    });
    $("prompt").addEventListener("input", grow);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#running && !document.querySelector("dialog[open]")) this.stop();
    });
    $("clear").addEventListener("click", () => this.clear());
    $("settings").addEventListener("submit", (event) => event.preventDefault());
    $("settings-toggle").addEventListener("click", () => {
      const shown = $("settings").hidden;
      $("settings").hidden = !shown;
      $("settings-toggle").setAttribute("aria-expanded", String(shown));
    });
  }

  /** What is served, null while nothing is. */
  setModel(model) {
    if (!model) return;
    this.#model = model;
    $("no-template").hidden = model.chat_template;
    $("system").disabled = !model.chat_template;
    $("system").placeholder = model.chat_template ? "None" : "Needs a chat template";
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#turns = [];
    $("messages").replaceChildren();
    $("empty").hidden = false;
    showError("");
    $("prompt").focus();
  }

  #submit() {
    const text = $("prompt").value;
    const wrong = [...$("settings").elements].find((field) => !field.checkValidity());
    if (wrong) {
      $("settings").hidden = false;
      $("settings-toggle").setAttribute("aria-expanded", "true");
      showError(`${wrong.closest("label").firstChild.textContent.trim()}: ${wrong.validationMessage}`);
      wrong.focus();
      return;
    }
    if (!text.trim()) return;
    $("prompt").value = "";
    grow();
    this.#add(userTurn(text));
    this.#answer();
  }

  #add(turn) {
    this.#turns.push(turn);
    $("messages").append(turn.element);
    $("empty").hidden = true;
    $("log").scrollTop = $("log").scrollHeight;
  }

  #regenerate(turn) {
    if (this.#running) return;
    this.#turns.pop();
    turn.element.remove();
    this.#answer();
    $("prompt").focus();
  }

  async #answer() {
    const aborting = new AbortController();
    const { path, body } = this.#request();
    const turn = new AnswerTurn();
    for (const each of this.#turns) each.settle?.();
    this.#add(turn);
    this.#run(aborting);
    showError("");
    let cut = null;
    try {
      for await (const data of stream(path, body, aborting.signal)) {
        if (data === "[DONE]") break;
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.message);
        this.#onCall(event.id);
        turn.take(event);
      }
      if (!turn.reason) throw new ServerError("the connection was lost before the answer was complete");
    } catch (error) {
      cut = aborting.signal.aborted ? "stopped" : "cut off";
      if (!aborting.signal.aborted) showError(oneLine(error));
    }
    this.#run(null);
    this.#onCall(null);
    if (!this.#turns.includes(turn)) return; // it was cleared meanwhile
    turn.end(cut, () => this.#regenerate(turn));
    setText($("chat-status"), cut ? `Answer ${cut}.` : `Answer complete, ${plural(turn.tokens, "token")}.`);
  }

  #run(aborting) {
    this.#running = aborting;
    setText($("send"), aborting ? "Stop" : "Send");
    $("send").classList.toggle("stops", Boolean(aborting));
    if (aborting) setText($("chat-status"), "The model answers.");
  }

  #request() {
    const sampling = {};
    for (const field of $("settings").querySelectorAll("input")) {
      if (field.value !== "") sampling[field.name] = Number(field.value);
    }
    const common = { ...sampling, stream: true, stream_options: { include_usage: true } };
    if (this.#model && !this.#model.chat_template) {
      return { path: "v1/completions", body: { max_tokens: 256, ...common, prompt: this.#turns.at(-1).text } };
    }
    const system = $("system").value.trim();
    // What was never answered is left out: templates want turns to alternate.
    const answered = this.#turns.filter((turn, i) => turn.text && this.#turns[i + 1]?.text !== "");
    const messages = answered.map(({ role, text }) => ({ role, content: text }));
    if (system) messages.unshift({ role: "system", content: system });
    return { path: "v1/chat/completions", body: { ...common, messages } };
  }
}

function userTurn(text) {
  const element = make("li", { className: "turn user" });
  element.append(make("p", { className: "who" }, "You"), make("div", { className: "said" }, text));
  return { role: "user", text, element };
}

/** An answer, from its request to its end. */
class AnswerTurn {
  role = "assistant";
  text = "";
  tokens = 0;
  reason = null;
  #begun = performance.now();
  #first = null;
  #last = null;
  #usage = null;
  #reasoning = "";
  #drawing = false;

  constructor() {
    this.said = make("div", { className: "said" });
    this.thinking = make("details", { className: "thinking", hidden: true }, make("summary", {}, "Thinking"), make("p"));
    this.meta = make("p", { className: "meta" }, "Waiting for the first token …");
    this.tools = make("div", { className: "tools" });
    const foot = make("div", { className: "foot" }, this.meta, this.tools);
    this.element = make("li", { className: "turn assistant writing" }, make("p", { className: "who" }, "Model"));
    this.element.append(this.thinking, this.said, foot);
  }

  /** One chunk of the stream. */
  take(event) {
    this.#usage = event.usage ?? this.#usage;
    for (const choice of event.choices) {
      this.reason = choice.finish_reason ?? this.reason;
      const text = choice.text ?? choice.delta?.content ?? "";
      const reasoning = choice.delta?.reasoning_content ?? "";
      if (!text && !reasoning) continue;
      this.#last = performance.now();
      if (this.#first === null) {
        this.#first = this.#last;
        setText(this.meta, "Writing …");
      }
      this.text += text;
      this.#reasoning += reasoning;
      this.#draw();
    }
  }

  /** `cut` says how it was broken off, if it was. */
  end(cut, again) {
    this.#show();
    this.element.classList.remove("writing");
    this.tokens = this.#usage?.completion_tokens ?? this.tokens;
    setText(this.meta, this.#summary(cut));
    const copy = make("button", { type: "button", className: "quiet" }, "Copy");
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.text);
      setText(copy, "Copied");
      setTimeout(() => setText(copy, "Copy"), 1500);
    });
    if (navigator.clipboard) this.tools.append(copy);
    this.again = make("button", { type: "button", className: "quiet" }, "Regenerate");
    this.again.addEventListener("click", again);
    this.tools.append(this.again);
  }

  /** Another turn follows: only the last answer is made again. */
  settle() {
    this.again?.remove();
  }

  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#show();
    });
  }

  #show() {
    const log = $("log");
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
    if (this.#reasoning) {
      this.thinking.hidden = false;
      setText(this.thinking.lastElementChild, this.#reasoning);
    }
    render(this.said, this.text);
    if (follows) log.scrollTop = log.scrollHeight;
  }

  #summary(cut) {
    const parts = [];
    const usage = this.#usage;
    if (cut) parts.push(cut);
    else if (this.reason === "length") parts.push("ended at its limit");
    if (usage) {
      parts.push(plural(usage.completion_tokens, "token"));
      const seconds = (this.#last - this.#first) / 1000;
      if (usage.completion_tokens > 1 && seconds > 0) parts.push(`${rate((usage.completion_tokens - 1) / seconds)} tokens/s`);
    }
    if (this.#first) parts.push(`first after ${ms((this.#first - this.#begun) / 1000)} ms`);
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    if (cached) parts.push(`${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens cached`);
    return parts.join(" · ") || "no text";
  }
}

function showError(text) {
  $("chat-error").hidden = !text;
  setText($("chat-error"), text);
}

function oneLine(error) {
  if (error instanceof ServerError) return error.message;
  return "The server cannot be reached; the answer is not complete. Regenerate when it is back.";
}

function grow() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 180)}px`;
}
