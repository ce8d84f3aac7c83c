// Makes and changes elements. Text is only ever set as text.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; strings become text. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element && key !== "role") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  setAll(element, attributes);
  element.append(...children);
  return element;
}

export function setAll(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
}

/** Sets text only where it differs, so that nothing is laid out, or read out, anew. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Has `parent` hold one child for each item, in order, keeping those that are there; `make` and `update` are given the item. */
export function keyed(parent, items, keyOf, makeOne, update) {
  const held = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = held.get(key);
    if (child) held.delete(key);
    else {
      child = makeOne(item);
      child.dataset.key = key;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  for (const child of held.values()) child.remove();
}
