// Times that pass: how long a render has been running, how long ago something was.

const SECOND = 1000;

export function start() {
  setInterval(tick, SECOND);
}

function tick() {
  if (document.hidden) return;
  for (const time of document.querySelectorAll("time[data-since]")) {
    put(time, duration((Date.now() - Date.parse(time.dateTime)) / SECOND));
  }
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const past = (Date.now() - Date.parse(time.dateTime)) / SECOND;
    if (past < 86400) put(time, ago(past));
  }
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// In the words of web/words.py.

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${two(whole % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

function ago(seconds) {
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return `${Math.floor(seconds / 3600)} h ago`;
}
