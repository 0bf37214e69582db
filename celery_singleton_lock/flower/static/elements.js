// Elements of the page. Texts become text nodes and attributes, never markup: names come from anybody.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", class: "singleton-icon", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }),
  );
}

const ICONS = {
  pause: "M4 2h3v12H4zM9 2h3v12H9z",
  play: "M4 2l9 6-9 6z",
  bolt: "M9 1L3 9h4l-1 6 7-9H8.5z",
  unlock: "M5 7V4.5a3 3 0 0 1 5.8-1l1.4-.5A4.5 4.5 0 0 0 3.5 4.5V7H3v8h10V7z",
  replay: "M8 3V0L3.5 4 8 8V5a4.5 4.5 0 1 1-4.5 4.5H2A6 6 0 1 0 8 3z",
  trash: "M6 1h4l1 1h3v1.5H2V2h3zM3 5h10l-.8 10H3.800z",
};

export function missing() {
  return el("span", { class: "value-missing" }, "—");
}

// A number of seconds as people say it.
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 0.001) return "0 s";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return joined(Math.floor(s / 60), "m", Math.floor(s % 60), "s");
  if (s < 86400) return joined(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "m");
  return joined(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

function joined(many, big, few, small) {
  return few ? `${many} ${big} ${few} ${small}` : `${many} ${big}`;
}

// The store's clock decides what is late, not that of whoever looks.
let aheadBy = 0;

export function setNow(seconds) {
  aheadBy = seconds - Date.now() / 1000;
}

export function now() {
  return Date.now() / 1000 + aheadBy;
}

export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, {
    dateStyle: "medium",
    timeStyle: "medium",
  });
}

export function clock(seconds, withSeconds = false) {
  const style = { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined };
  return new Date(seconds * 1000).toLocaleTimeString(undefined, style);
}

export function day(seconds) {
  return new Date(seconds * 1000).toLocaleDateString(undefined, { month: "short", day: "numeric" });
}

// A time that goes on by itself: "in 12 s", "3 m 5 s ago"; with `bare` only "3 m 5 s".
export function ticking(seconds, { bare = false } = {}) {
  if (seconds === null || seconds === undefined) return missing();
  const time = el("time", {
    datetime: new Date(seconds * 1000).toISOString(),
    title: moment(seconds),
    "data-at": seconds,
    "data-bare": bare,
  });
  tell(time);
  return time;
}

function tell(time) {
  const away = Number(time.dataset.at) - now();
  const text = whole(Math.abs(away));
  const said = "bare" in time.dataset ? text : Math.abs(away) < 1 ? "now" : away > 0 ? `in ${text}` : `${text} ago`;
  if (time.textContent !== said) time.textContent = said;
}

function whole(seconds) {
  return seconds < 10 ? `${Math.floor(seconds)} s` : span(seconds);
}

setInterval(() => document.querySelectorAll("time[data-at]").forEach(tell), 1000);
