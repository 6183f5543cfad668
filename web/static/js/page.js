// What the features share: requests with the farm's token, and replacing parts of a page.

const token = document.querySelector('meta[name="csrf-token"]').content;

/** fetch, with the token; throws an Error whose message a person can read. */
export async function ask(url, options = {}) {
  try {
    return await fetch(url, { ...options, headers: { "X-CSRF-Token": token, ...options.headers } });
  } catch {
    throw new Error("The dashboard does not answer: start the farm with `h3farm run`.");
  }
}

/** The sentence of a failed answer of the JSON API. */
export async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The dashboard answered ${response.status}.`;
  }
}

let hiding;

/** Say something for a few seconds, to eyes and screen readers. */
export function toast(sentence) {
  const place = document.getElementById("toast");
  place.textContent = sentence;
  place.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => (place.hidden = true), 8000);
}

/** Say something to screen readers only. */
export function announce(sentence) {
  const place = document.getElementById("announcer");
  if (place.textContent !== sentence) place.textContent = sentence;
}

export function parse(html) {
  return new DOMParser().parseFromString(html, "text/html");
}

const shown = new Map();

/** Put parts of `html` in place of those of the same id; what did not change is left alone. */
export function replaceParts(html) {
  for (const part of [...parse(html).body.children]) {
    const old = part.id && document.getElementById(part.id);
    if (!old || shown.get(part.id) === part.outerHTML) continue;
    shown.set(part.id, part.outerHTML);
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    const open = [...old.querySelectorAll("details")].map((details) => details.open);
    old.replaceWith(part);
    part.querySelectorAll("details").forEach((details, at) => (details.open = open[at] ?? details.open));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
}
