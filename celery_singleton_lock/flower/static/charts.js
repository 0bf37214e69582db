// Charts, drawn as SVG to the width that there is.

import { clock, day, el, moment, span, svg } from "./elements.js";
import { toRun, words } from "./run.js";

const LEFT = 52;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;

// Draws again whenever the place gets another width, or other data.
export class Chart {
  constructor(place, draw, height) {
    this.place = place;
    this.draw = draw;
    this.height = height;
    this.data = null;
    this.drawn = "";
    new ResizeObserver(() => this.render()).observe(place);
  }

  show(data) {
    this.data = data;
    this.render();
  }

  render() {
    const width = Math.floor(this.place.clientWidth);
    const key = `${width}:${JSON.stringify(this.data)}`;
    if (this.data === null || width < 60 || key === this.drawn) return;
    this.drawn = key;
    const content = this.draw(this.data, width, this.height);
    this.place.replaceChildren(content);
  }
}

export function nothing(text) {
  return el("p", { class: "singleton-empty-chart" }, text);
}

function canvas(width, height, label, ...children) {
  return svg(
    "svg",
    { class: "singleton-chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    children,
  );
}

// Steps of an axis: a few round numbers, from zero to beyond the largest.
export function steps(largest, count = 4) {
  const rough = (largest || 1) / count;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * size).find((each) => each >= rough * 0.999);
  const last = Math.max(1, Math.ceil((largest / step) * 0.999));
  return Array.from({ length: last + 1 }, (_, at) => at * step);
}

function grid(ticks, y, width, said) {
  return ticks.flatMap((tick) => [
    svg("line", { class: "singleton-grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
    svg("text", { class: "singleton-axis", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, said(tick)),
  ]);
}

// One bar a run, oldest first, as high as `what` ("lag" or "took") is long.
export function barsOfRuns(what, name) {
  return (runs, width, height) => {
    const shown = runs.filter((run) => run[what] !== null && run.status !== "skipped");
    if (!shown.length) return nothing(`No ${name} is known yet.`);
    const most = Math.max(8, Math.floor((width - LEFT - RIGHT) / 6));
    const last = shown.slice(-most);
    const values = last.map((run) => run[what]);
    const ticks = steps(Math.max(...values));
    const top = ticks[ticks.length - 1];
    const floor = height - BOTTOM;
    const y = (value) => floor - (value / top) * (floor - TOP);
    const pitch = Math.min(18, (width - LEFT - RIGHT) / last.length);
    const x = (at) => LEFT + at * pitch;
    const middle = median(values);
    return canvas(
      width,
      height,
      `${name} of the last ${last.length} runs, median ${span(middle)}`,
      grid(ticks, y, width, span),
      last.map((run, at) =>
        svg(
          "a",
          { href: toRun(run) },
          svg(
            "rect",
            {
              class: `singleton-bar singleton-${run.status}`,
              x: x(at) + pitch * 0.12,
              width: Math.max(2, pitch * 0.76),
              y: Math.min(y(run[what]), floor - 2),
              height: Math.max(2, floor - y(run[what])),
              rx: 1.5,
            },
            svg("title", {}, words(run)),
          ),
        ),
      ),
      svg("line", { class: "singleton-median", x1: LEFT, x2: width - RIGHT, y1: y(middle), y2: y(middle) }),
      svg("text", { class: "singleton-axis", x: LEFT, y: height - 6 }, timeOf(last[0])),
      svg("text", { class: "singleton-axis", x: width - RIGHT, y: height - 6, "text-anchor": "end" }, `median ${span(middle)}`),
    );
  };
}

function timeOf(run) {
  return moment(run.slot ?? run.started ?? run.seen);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

// How many started, and how many had to stand back, over time.
export function contention(buckets, width, height) {
  const skipped = (bucket) => Object.values(bucket.skipped).reduce((sum, each) => sum + each, 0);
  const totals = buckets.map((bucket) => bucket.started + skipped(bucket));
  if (!Math.max(0, ...totals)) return nothing("Nothing started in this time.");
  const ticks = steps(Math.max(...totals), 3).filter((tick) => Number.isInteger(tick));
  const top = ticks[ticks.length - 1] || 1;
  const floor = height - BOTTOM;
  const y = (value) => floor - (value / top) * (floor - TOP);
  const pitch = (width - LEFT - RIGHT) / buckets.length;
  const length = buckets.length > 1 ? buckets[1].at - buckets[0].at : 60;
  const all = buckets.reduce((sum, bucket) => sum + skipped(bucket), 0);
  return canvas(
    width,
    height,
    `${all} of ${totals.reduce((sum, each) => sum + each, 0)} runs were skipped`,
    grid(ticks, y, width, (tick) => tick.toLocaleString()),
    buckets.map((bucket, at) => {
      const reasons = Object.entries(bucket.skipped).map(([reason, count]) => `${count} skipped: ${reason}`);
      const title = [`${clock(bucket.at)} to ${clock(bucket.at + length)}`, `${bucket.started} started`, ...reasons].join("\n");
      const bar = (status, from, to) =>
        to > from
          ? svg("rect", {
              class: `singleton-bar singleton-${status}`,
              x: LEFT + at * pitch + pitch * 0.1,
              width: Math.max(1, pitch * 0.8),
              y: y(to),
              height: Math.max(1, y(from) - y(to)),
            })
          : null;
      return svg(
        "g",
        { class: "singleton-bucket" },
        svg("rect", { class: "singleton-hover", x: LEFT + at * pitch, width: pitch, y: TOP, height: floor - TOP }),
        bar("succeeded", 0, bucket.started),
        bar("skipped", bucket.started, totals[at]),
        svg("title", {}, title),
      );
    }),
    timeAxis(buckets[0].at, buckets[0].at + length * buckets.length, width, height),
  );
}

const LANE = 26;
const MOST_LANES = 14;

// A lane for each entry, or task, and a bar for each of its runs.
export function timeline({ runs, since, until }, width) {
  const lanes = new Map();
  for (const run of runs) {
    const name = run.entry ?? run.task;
    if (!lanes.has(name)) lanes.set(name, []);
    lanes.get(name).push(run);
  }
  if (!lanes.size) return nothing("No run in this time.");
  // What went well is drawn first, so that it hides nothing else.
  const rank = (run) => (run.status === "succeeded" ? 0 : 1);
  for (const lane of lanes.values()) lane.sort((a, b) => rank(a) - rank(b));
  const names = [...lanes.keys()].slice(0, MOST_LANES).sort((a, b) => a.localeCompare(b));
  const left = Math.min(190, Math.max(90, width * 0.22));
  const height = TOP + names.length * LANE + BOTTOM;
  const x = (at) => left + ((Math.max(since, Math.min(until, at)) - since) / (until - since)) * (width - left - RIGHT);
  const dropped = lanes.size - names.length;
  return canvas(
    width,
    height,
    `Runs of ${lanes.size} entries over time`,
    names.flatMap((name, lane) => {
      const y = TOP + lane * LANE;
      return [
        svg("line", { class: "singleton-grid", x1: 0, x2: width - RIGHT, y1: y + LANE, y2: y + LANE }),
        svg("text", { class: "singleton-lane", x: 0, y: y + LANE / 2 + 4 }, shortened(name, left / 7.2), svg("title", {}, name)),
        lanes.get(name).map((run) => {
          const from = run.started ?? run.seen;
          const to = run.ended ?? (run.status === "running" ? until : from);
          return svg(
            "a",
            { href: toRun(run) },
            svg(
              "rect",
              {
                class: `singleton-bar singleton-${run.status}`,
                x: x(from),
                width: Math.max(3, x(to) - x(from)),
                y: y + (run.status === "skipped" ? 12 : 5),
                height: run.status === "skipped" ? LANE - 17 : LANE - 10,
                rx: 2,
              },
              svg("title", {}, `${name}: ${words(run)}`),
            ),
          );
        }),
      ];
    }),
    timeAxis(since, until, width, height, left),
    dropped > 0
      ? svg("text", { class: "singleton-axis", x: 0, y: height - 6 }, `${dropped} more not shown`)
      : null,
  );
}

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY,
];
const LABEL = 90;

// At round times, as a clock on the wall shows them.
function timeAxis(since, until, width, height, left = LEFT) {
  const room = width - left - RIGHT;
  const most = Math.max(3, Math.floor(room / LABEL));
  const step = STEPS.find((each) => (until - since) / each <= most) ?? STEPS[STEPS.length - 1];
  const zone = new Date(since * 1000).getTimezoneOffset() * MINUTE;
  const first = Math.ceil((since - zone) / step) * step + zone;
  const count = Math.max(0, Math.floor((until - first) / step) + 1);
  return Array.from({ length: count }, (_, at) => first + at * step).map((seconds) => {
    const x = left + ((seconds - since) / (until - since)) * room;
    const anchor = x - left < LABEL / 3 ? "start" : width - RIGHT - x < LABEL / 3 ? "end" : "middle";
    const said = step >= DAY ? day(seconds) : clock(seconds, step < MINUTE);
    return svg("text", { class: "singleton-axis", x, y: height - 6, "text-anchor": anchor }, said);
  });
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text;
}

