// Runs: a timeline, and a table of them.

import { Chart, timeline } from "./charts.js";
import { el, missing, span, ticking } from "./elements.js";
import { LiveTable, note } from "./live.js";
import { badge, toEntry, toTask } from "./run.js";

const chart = new Chart(document.getElementById("singleton-timeline"), timeline, 0);

new LiveTable({
  path: "/singleton/runs/data",
  keyOf: (row) => row.id,
  empty: "No run in this time.",
  onData: (said) => {
    const drawn = said.timeline.length;
    const isCut = said.count > drawn;
    // Of more runs than can be drawn, only the time is shown of which all are.
    const since = isCut ? Math.min(...said.timeline.map((each) => each.started ?? each.seen)) : said.since;
    chart.show({ runs: said.timeline, since: Math.floor(since), until: Math.floor(said.now) });
    document.getElementById("singleton-drawn").textContent = isCut
      ? `The newest ${drawn.toLocaleString()} runs`
      : "Runs of this time";
    note(said.history);
  },
  columns: [
    { label: "Run", className: "singleton-wide", cell: run },
    { label: "Status", cell: status },
    { label: "Started", cell: (row) => ticking(row.started ?? row.seen) },
    { label: "Lag", className: "singleton-number", cell: (row) => (row.lag === null ? missing() : span(row.lag)) },
    { label: "Took", className: "singleton-number", cell: took },
    { label: "Worker", className: "singleton-worker", cell: (row) => row.worker ?? missing() },
    { label: "What happened", className: "singleton-wide singleton-error", cell: (row) => row.error ?? row.reason ?? missing() },
  ],
});

function run(row) {
  const name = row.entry
    ? el("a", { href: toEntry(row.entry), class: "singleton-name" }, row.entry)
    : el("span", { class: "singleton-name" }, row.task);
  const id = el("a", { href: toTask(row.id), title: row.id }, row.id.slice(0, 8));
  return [name, el("div", { class: "singleton-sub" }, row.entry ? `${row.task} · ` : "", id)];
}

function status(row) {
  return [badge(row.status), row.attempt > 1 ? el("div", { class: "singleton-sub" }, `attempt ${row.attempt}`) : null];
}

function took(row) {
  if (row.status === "running" && row.started !== null) return ticking(row.started, { bare: true });
  return row.took === null || row.status === "skipped" ? missing() : span(row.took);
}
