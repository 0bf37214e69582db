// The schedule: entries, their next slots, their last runs.

import { el, missing, span, ticking } from "./elements.js";
import { buttons, next } from "./entry_buttons.js";
import { LiveTable, cards, note } from "./live.js";
import { strip, toEntry } from "./run.js";

const table = new LiveTable({
  path: "/singleton/schedule/data",
  keyOf: (row) => row.name,
  empty: "There is no entry in the schedule.",
  onData: (said) => {
    const nobody = said.replicas.length === 0;
    cards({
      entries: { value: said.entries.toLocaleString() },
      next: { value: ticking(said.next) },
      late: { value: said.late.toLocaleString(), isBad: said.late > 0 },
      paused: { value: said.paused.toLocaleString() },
      replicas: { value: String(said.replicas.length), isBad: nobody, title: said.replicas.join("\n") },
    });
    note(nobody ? `No beat is running: nothing is published. ${said.history}` : said.history);
  },
  columns: [
    { label: "Entry", className: "singleton-wide", cell: entry },
    { label: "Schedule", cell: (row) => el("code", { class: "singleton-when" }, row.schedule) },
    { label: "Next", cell: next },
    { label: "Last runs", className: "singleton-wide", cell: (row) => strip(row.runs) },
    { label: "Lag", className: "singleton-number", cell: (row) => lastOf(row, "lag") },
    { label: "Took", className: "singleton-number", cell: (row) => lastOf(row, "took") },
    { label: "", className: "singleton-actions", cell: (row) => buttons(row, () => table.refresh()) },
  ],
});

function entry(row) {
  const tag = row.is_dynamic ? el("span", { class: "singleton-tag" }, "added at run time") : null;
  return [
    el("a", { href: toEntry(row.name), class: "singleton-name" }, row.name),
    el("div", { class: "singleton-sub" }, row.task, tag),
  ];
}

function lastOf(row, what) {
  const run = row.runs.findLast((each) => each[what] !== null && each.status !== "skipped");
  return run ? span(run[what]) : missing();
}
