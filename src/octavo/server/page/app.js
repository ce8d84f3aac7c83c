// Puts the page together: the chat, the machine beside it, and the question for the key.

import { onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { $, setText } from "./dom.js";
import { Machine } from "./machine.js";

onKeyNeeded((refused) => {
  const dialog = $("key-dialog");
  const why = refused ? "The server does not know that key. Try another one." : "This server asks for a key. It is kept until this tab is closed.";
  setText($("key-why"), why);
  $("key").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    $("key-form").onsubmit = () => resolve($("key").value.trim());
  });
});
$("key-dialog").addEventListener("cancel", (event) => event.preventDefault()); // nothing works without a key

for (const button of document.querySelectorAll("[data-shows]")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.shows;
    for (const each of document.querySelectorAll("[data-shows]")) each.setAttribute("aria-pressed", String(each === button));
  });
}

const chat = new Chat((id) => (machine.mine = id));
const machine = new Machine((model) => chat.setModel(model));
machine.watch();
if (matchMedia("(min-width: 900px)").matches) $("prompt").focus();
