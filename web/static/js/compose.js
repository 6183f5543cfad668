// The submit form: presets fill the size, the plan follows what is typed, sending keeps the page.

import { ask, parse, toast } from "./page.js";

let waiting;

export function start() {
  const form = document.querySelector("[data-compose]");
  if (form) enhance(form);
}

function enhance(form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) form.requestSubmit();
  });
  form.addEventListener("input", (event) => {
    if (event.target.name === "canvas") fillSize(form, event.target);
    withdrawFault(event.target);
    if (event.target.name !== "prompt") {
      clearTimeout(waiting);
      waiting = setTimeout(() => plan(form), 200);
    }
  });
}

function fillSize(form, preset) {
  if (preset.dataset.width) {
    form.elements.width.value = preset.dataset.width;
    form.elements.height.value = preset.dataset.height;
  } else {
    form.elements.width.focus();
  }
}

/** What is being changed is no longer what was refused. */
function withdrawFault(field) {
  field.removeAttribute("aria-invalid");
  document.getElementById(`${field.name}-fault`)?.remove();
}

/** What would be made of the settings, as the farm sees it. */
async function plan(form) {
  const settings = new URLSearchParams(new FormData(form));
  for (const name of ["prompt", "csrf_token"]) settings.delete(name);
  try {
    const response = await ask(`${form.dataset.plan}?${settings}`);
    if (response.ok) document.getElementById("plan").replaceWith(parse(await response.text()).getElementById("plan"));
  } catch {
    // The plan is a help; that the dashboard is away is said elsewhere.
  }
}

/** Send, and put the form that comes back in place: empty for the next, or with its faults. */
async function send(form) {
  const button = form.querySelector("[type=submit]");
  if (button.disabled) return;
  clearTimeout(waiting); // the form that comes back has its plan
  button.disabled = true;
  try {
    const response = await ask(form.action, {
      method: "POST",
      headers: { "X-Fragment": "1" },
      body: new URLSearchParams(new FormData(form)),
    });
    const fresh = parse(await response.text()).getElementById("compose");
    if (!fresh) throw new Error("The form was refused: reload the page and try again. Your prompt is still here.");
    form.replaceWith(fresh);
    enhance(fresh);
    (fresh.querySelector("[aria-invalid]") ?? fresh.elements.prompt).focus();
    document.dispatchEvent(new Event("farm:changed"));
  } catch (error) {
    button.disabled = false;
    toast(error.message);
  }
}
