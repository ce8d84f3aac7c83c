// A little Markdown as elements: code, bold, lists, headings. Text goes into text nodes, so no text can be markup.

import { make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^\s*(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^ {0,3}#{1,6}\s+(.*?)\s*#*$/;
const INLINE = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?\S|\S)\*\*/gs;

/** `text` in blocks, each with its `source`: the same source always gives the same block. */
export function blocks(text) {
  const found = [];
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ) {
    const start = i;
    const fence = FENCE.exec(lines[i]);
    const item = ITEM.exec(lines[i]);
    let kind;
    if (fence) {
      kind = "code";
      i += 1;
      while (i < lines.length && !isEnd(lines[i], fence[1])) i += 1;
      i += 1;
    } else if (!lines[i].trim()) {
      i += 1;
      continue;
    } else if (HEADING.test(lines[i])) {
      kind = "heading";
      i += 1;
    } else if (item) {
      kind = item[1] ? "ordered" : "bullets";
      i += 1;
      while (i < lines.length && goesOn(lines[i], kind)) i += 1;
    } else {
      kind = "paragraph";
      i += 1;
      while (i < lines.length && lines[i].trim() && !FENCE.test(lines[i]) && !ITEM.test(lines[i]) && !HEADING.test(lines[i])) i += 1;
    }
    found.push({ kind, source: lines.slice(start, i).join("\n"), closed: i < lines.length });
  }
  return found;
}

const isEnd = (line, mark) => line.trim().startsWith(mark) && !line.trim().slice(mark.length).replaceAll(mark[0], "");

function goesOn(line, kind) {
  const item = ITEM.exec(line);
  if (item) return (item[1] ? "ordered" : "bullets") === kind;
  return /^\s{2,}\S/.test(line) && !FENCE.test(line);
}

/** Shows `text` in `parent`; blocks that are there already stay, so that a growing text is cheap and can be selected. */
export function render(parent, text) {
  const wanted = blocks(text);
  wanted.forEach((block, i) => {
    const old = parent.children[i];
    const mark = `${block.kind}:${block.source}`;
    if (old?.mark === mark) return;
    const fresh = element(block);
    fresh.mark = mark;
    if (old) old.replaceWith(fresh);
    else parent.append(fresh);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

function element({ kind, source }) {
  if (kind === "code") return code(source);
  if (kind === "heading") return make("p", { className: "heading" }, ...inline(HEADING.exec(source)[1]));
  if (kind === "paragraph") return make("p", {}, ...inline(source));
  const list = make(kind === "ordered" ? "ol" : "ul");
  for (const line of source.split("\n")) {
    const item = ITEM.exec(line);
    if (item) {
      if (item[1] && item[1] !== "1" && !list.children.length) list.start = Number(item[1]);
      list.append(make("li", {}, ...inline(item[2])));
    } else list.lastElementChild.append(" ", ...inline(line.trim()));
  }
  return list;
}

function code(source) {
  const [first, ...rest] = source.split("\n");
  const [, mark, language] = FENCE.exec(first);
  if (rest.length && isEnd(rest.at(-1), mark)) rest.pop();
  const label = language ? `Code, ${language}` : "Code";
  return make("pre", { tabIndex: 0, role: "region", "aria-label": label }, make("code", {}, rest.join("\n")));
}

function inline(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    parts.push(text.slice(at, match.index));
    at = match.index + match[0].length;
    parts.push(match[1] ? make("code", {}, match[2].trim() || match[2]) : make("strong", {}, ...inline(match[3])));
  }
  parts.push(text.slice(at));
  return parts;
}
