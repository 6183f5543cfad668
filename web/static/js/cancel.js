// Cancelling without leaving the page; a running job is asked about first.

import { ask, failure, toast } from "./page.js";

export function start() {
  document.addEventListener("submit", (event) => intercept(event));
  document.addEventListener("click", (event) => intercept(event));
}

function intercept(event) {
  const hook = event.target.closest?.("a[data-cancel], form[data-cancel]");
  if (!hook || event.ctrlKey || event.metaKey) return;
  if ((event.type === "submit") !== (hook.tagName === "FORM")) return;
  event.preventDefault();
  cancel(hook.dataset.cancel, "ask" in hook.dataset);
}

async function cancel(job, running) {
  if (running && !(await sure())) return;
  try {
    const response = await ask(`/api/jobs/${encodeURIComponent(job)}/cancel`, { method: "POST" });
    if (!response.ok) toast(await failure(response));
  } catch (error) {
    toast(error.message);
  }
  document.dispatchEvent(new Event("farm:changed"));
}

function sure() {
  const dialog = document.getElementById("ask");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
