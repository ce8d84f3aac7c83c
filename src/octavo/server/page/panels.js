// Shows what an event tells beside the blocks: requests, the prefix cache, memory and routes.

import { $, keyed, make, setText } from "./dom.js";
import { bytes, count, duration, percent, plural, shortId } from "./format.js";

/** `mine` is the id of the chat's own call; `onPoint(id)` is told the request that is pointed at, null for none. */
export function showRequests(machine, palette, mine, onPoint) {
  const { requests, waiting, running, requests_left_out: leftOut } = machine;
  const parts = [];
  if (running) parts.push(`${running} running`);
  if (waiting) parts.push(`${waiting} waiting`);
  setText($("requests-count"), parts.join(", "));
  $("requests-none").hidden = requests.length > 0;
  const shown = requests.slice(0, 24);
  keyed($("requests"), shown, (each) => each.id, (each) => requestRow(each, onPoint), (row, each) => {
    const isMine = mine !== null && each.id.startsWith(`${mine}-`);
    updateRow(row, each, palette, isMine);
  });
  const more = requests.length - shown.length + leftOut;
  if (more > 0) setText($("requests-count"), `${parts.join(", ")}; ${count(more)} not shown`);
}

function requestRow(each, onPoint) {
  const row = make("li", { className: "request" });
  const name = make("span", { className: "name", title: each.id });
  const tag = make("span", { className: "tag" });
  const head = make("div", { className: "request-head" }, tag, name, make("span", { className: "stage" }));
  row.append(head, bar("Prompt"), bar("Answer"));
  row.addEventListener("pointerenter", () => onPoint(each.id));
  row.addEventListener("pointerleave", () => onPoint(null));
  return row;
}

function bar(name) {
  const track = make("div", { className: "track", role: "progressbar", "aria-label": name, "aria-valuemin": "0" }, make("div", { className: "done" }));
  return make("div", { className: "progress" }, make("span", { className: "what" }, name), track, make("span", { className: "amount" }));
}

function updateRow(row, each, palette, isMine) {
  const [head, prompt, answer] = row.children;
  const [tag, name, stage] = head.children;
  const runs = each.stage === "running";
  row.dataset.stage = each.stage;
  tag.dataset.hue = runs ? palette.hue(each.id) : "";
  setText(tag, runs ? palette.letter(each.id) : "·");
  setText(name, isMine ? `${shortId(each.id)} (this chat)` : shortId(each.id));
  setText(stage, `${stageOf(each)} · ${duration(each.age_s)}`);
  const computed = Math.min(each.computed_tokens, each.prompt_tokens);
  setBar(prompt, computed, each.prompt_tokens, each.cached_tokens ?? 0);
  setBar(answer, each.generated_tokens, each.max_generated_tokens, 0);
}

function stageOf(each) {
  if (each.stage === "waiting") return each.generated_tokens ? "preempted, waits again" : "waiting";
  return each.computed_tokens < each.prompt_tokens ? "reading the prompt" : "generating";
}

function setBar(row, value, most, cached) {
  const [, track, amount] = row.children;
  const share = most ? Math.min(1, value / most) : 0;
  track.firstElementChild.style.width = `${100 * share}%`;
  track.setAttribute("aria-valuemax", String(most || value || 1));
  track.setAttribute("aria-valuenow", String(value));
  const of = most == null ? count(value) : `${count(value)} / ${count(most)}`;
  setText(amount, cached ? `${of}, ${count(cached)} cached` : of);
}

export function showPrefix({ cache }) {
  const { hits, misses, hit_tokens: saved, evictions, rejects } = cache.prefix_cache;
  facts($("prefix"), [
    ["Beginnings found", `${count(hits)} of ${count(hits + misses)} (${percent(hits, hits + misses)})`],
    ["Prompt tokens not computed", `${count(cache.cached_prompt_tokens)} of ${count(cache.prompt_tokens)}`],
    ["Tokens found", count(saved)],
    ["Blocks given up for room", count(evictions)],
    ["Blocks not taken", count(rejects)],
    ["Preemptions", count(cache.preemptions)],
  ]);
}

const LEDGER = [
  ["kv_bytes", "K/V cache"],
  ["weight_bytes", "Weights"],
  ["workspace_bytes", "Workspace"],
  ["activation_bytes", "Activations"],
  ["graph_bytes", "Graphs"],
  ["runtime_bytes", "Runtime"],
];

export function showMemory({ memory }) {
  const parts = LEDGER.map(([key, name]) => ({ key, name, value: memory[key] ?? 0 })).filter(({ value }) => value > 0);
  const total = parts.reduce((sum, { value }) => sum + value, 0);
  const panel = $("memory");
  if (!panel.children.length) panel.append(make("div", { className: "stack", "aria-hidden": "true" }), make("dl", { className: "facts-list" }));
  const [stack, list] = panel.children;
  keyed(stack, parts, ({ key }) => key, ({ key }) => make("span", { className: `part ${key}` }), (part, { value }) => {
    part.style.flexGrow = String(value / total);
  });
  const lines = parts.map(({ key, name, value }) => ({ key, name, text: bytes(value) }));
  lines.push({ key: "total", name: "In all", text: `${bytes(memory.total_bytes ?? total)} of ${bytes(memory.available_bytes ?? 0)}` });
  keyed(list, lines, ({ key }) => key, ({ key, name }) => make("div", {}, make("dt", { className: `swatch ${key}` }, name), make("dd")), (line, { text }) => {
    setText(line.lastElementChild, text);
  });
}

export function showRoutes({ routes }) {
  const panel = $("routes");
  const total = routes.reduce((sum, { count: times }) => sum + times, 0);
  if (!total) {
    if (panel.dataset.drawn !== "none") panel.replaceChildren(make("p", { className: "faint" }, "Nothing was attended to yet."));
    panel.dataset.drawn = "none";
    return;
  }
  if (panel.dataset.drawn !== "table") {
    const head = make("tr", {}, ...["Route", "Because", "Times", "Share"].map((name) => make("th", { scope: "col" }, name)));
    panel.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody")));
    panel.dataset.drawn = "table";
  }
  const row = ({ route, reason }) => make("tr", {}, make("td", {}, make("code", {}, route)), make("td", {}, reason), make("td"), make("td"));
  keyed(panel.querySelector("tbody"), routes, ({ route, reason }) => `${route} ${reason}`, row, (line, { count: times }) => {
    setText(line.children[2], count(times));
    setText(line.children[3], percent(times, total));
  });
}

/** What is served, in one line. */
export function showFacts(model) {
  if (!model) return;
  const facts = [model.family, `${model.storage} storage`, `${model.kv_dtype} K/V`, `${model.weights} weights`, `${plural(model.max_context, "token")} of context`];
  setText($("facts"), facts.join(" · "));
  setText($("model-name"), model.name);
}

function facts(panel, lines) {
  if (!panel.children.length) panel.append(make("dl", { className: "facts-list" }));
  const items = lines.map(([name, text]) => ({ name, text }));
  keyed(panel.firstElementChild, items, ({ name }) => name, ({ name }) => make("div", {}, make("dt", {}, name), make("dd")), (line, { text }) => {
    setText(line.lastElementChild, text);
  });
}
