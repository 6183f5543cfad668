// The player over the grid: arrows go on, space plays, escape closes.

import { ask, parse } from "./page.js";

let dialog;
let cards = [];
let at = 0;

export function start() {
  const grid = document.querySelector("[data-gallery]");
  dialog = document.getElementById("lightbox");
  if (!grid || !dialog) return;
  cards = [...grid.querySelectorAll("[data-open]")];
  grid.addEventListener("click", (event) => {
    const card = event.target.closest("[data-open]");
    if (!card || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(cards.indexOf(card));
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) cards[cards.indexOf(document.activeElement) + step]?.focus();
  });
  dialog.addEventListener("keydown", keys);
  dialog.addEventListener("close", closed);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    const button = event.target.closest("[data-step]");
    if (button) show(at + Number(button.dataset.step));
  });
}

async function show(index) {
  if (!cards[index]) return;
  at = index;
  let page;
  try {
    page = parse(await (await ask(cards[index].href)).text());
  } catch {
    location.href = cards[index].href; // the browser says what is wrong
    return;
  }
  if (at !== index) return; // already further on
  const render = page.getElementById("render") ?? page.querySelector(".panel");
  dialog.querySelector("[data-stage]").replaceChildren(render);
  for (const button of dialog.querySelectorAll("[data-step]")) {
    button.disabled = !cards[index + Number(button.dataset.step)];
  }
  if (!dialog.open) dialog.showModal();
  const video = dialog.querySelector("video");
  video?.focus();
  // Where the browser wants a gesture for sound, the controls are there.
  video?.play().catch(() => {});
}

function keys(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) {
    event.preventDefault();
    show(at + step);
  }
  // A player with the focus takes the space bar itself.
  if (event.key === " " && !event.target.closest("button, a, video")) {
    event.preventDefault();
    const video = dialog.querySelector("video");
    if (video) video.paused ? video.play() : video.pause();
  }
}

function closed() {
  dialog.querySelector("[data-stage]").replaceChildren(); // stops the sound and the download
  cards[at]?.focus();
}
