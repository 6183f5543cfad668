// Live state: server-sent events say what changed, the page fetches its parts again.

import { announce, ask, replaceParts } from "./page.js";

const POLL_MS = 5000; // when there is no stream
const CALM_MS = 30000; // with a stream: what no event tells, such as a worker that died
const BOARD = "/live"; // on any page: of its parts those that the page has are replaced
const OVER = ["done", "failed", "cancelled"];

let url;
let watched; // the one job of a job's page, else undefined
let stream;
let timer;
let fetching = false;
let again = false;

export function start() {
  const main = document.querySelector("main");
  url = main.dataset.live ?? BOARD;
  watched = main.dataset.liveJob;
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("farm:changed", refresh);
  follow();
}

/** A hidden page gives its connection back: a browser has six for one address, over all tabs. */
function follow() {
  stream?.close();
  stream = undefined;
  clearTimeout(timer);
  if (document.hidden) return;
  stream = new EventSource("/api/events");
  stream.addEventListener("changed", (event) => changed(JSON.parse(event.data).jobs));
  stream.addEventListener("progress", (event) => progressed(JSON.parse(event.data)));
  // While the dashboard is away the browser tries again by itself; after a refusal it gives up.
  stream.addEventListener("error", () => schedule());
  schedule();
}

function schedule() {
  clearTimeout(timer);
  const streaming = stream?.readyState === EventSource.OPEN;
  timer = setTimeout(tick, streaming ? CALM_MS : POLL_MS);
}

function tick() {
  refresh();
  if (stream?.readyState === EventSource.CLOSED) follow();
  else schedule();
}

function changed(jobs) {
  if (!jobs || !watched || jobs.includes(watched)) refresh();
}

/** One request at a time; what happens meanwhile asks for one more. */
async function refresh() {
  // A finished job does not change any more, and its video must not start over.
  if (watched && OVER.includes(document.getElementById("job")?.dataset.state)) [url, watched] = [BOARD];
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  try {
    const response = await ask(url, { headers: { "X-Fragment": "1" } });
    if (response.ok) replaceParts(await response.text());
  } catch (error) {
    offline(error.message);
  } finally {
    fetching = false;
  }
  if (again) {
    again = false;
    refresh();
  }
}

function offline(sentence) {
  const status = document.getElementById("status");
  status.className = "pill bad";
  status.textContent = "Dashboard not running";
  status.title = sentence;
}

function progressed(news) {
  const place = document.querySelector(`[data-job="${CSS.escape(news.job)}"]`);
  if (!place) return;
  if (!place.querySelector(".phases")) return void refresh();
  place.querySelector("[data-fraction]").value = news.fraction;
  place.querySelector("[data-fraction]").setAttribute("aria-valuetext", news.doing);
  for (const name of ["doing", "inside", "remaining"]) {
    const part = place.querySelector(`[data-${name}]`);
    if (part.textContent !== news[name]) part.textContent = news[name];
  }
  for (const phase of place.querySelectorAll("[data-phase]")) {
    const current = phase.dataset.phase === news.phase;
    if (current && !phase.classList.contains("current")) announce(news.doing);
    phase.classList.toggle("current", current);
  }
}
