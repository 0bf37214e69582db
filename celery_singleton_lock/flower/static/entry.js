// One entry: its state, its lag and how long it takes, its runs.

import { Chart, barsOfRuns } from "./charts.js";
import { el, missing, now, span, ticking } from "./elements.js";
import { buttons, next } from "./entry_buttons.js";
import { Live, note } from "./live.js";
import { badge, strip, toTask } from "./run.js";
import { get } from "./server.js";

const name = new URLSearchParams(location.search).get("name") || "";
const lag = new Chart(document.getElementById("singleton-lag"), barsOfRuns("lag", "lag"), 190);
const took = new Chart(document.getElementById("singleton-took"), barsOfRuns("took", "duration"), 190);
const facts = document.getElementById("singleton-facts");
const actions = document.getElementById("singleton-entry-actions");
const rows = document.querySelector("#singleton-runs tbody");

document.getElementById("singleton-entry-name").textContent = name;

const live = new Live(
  () => get("/singleton/entry/data", { name }),
  (said) => {
    const runs = [...said.runs].reverse();
    lag.show(runs);
    took.show(runs);
    showEntry(said.entry, said.jobs);
    rows.replaceChildren(...(said.runs.length ? said.runs.slice(0, 25).map(rowOf) : [nothing()]));
    note(said.history);
  },
);

let shown = "";

function showEntry(entry, jobs) {
  const text = JSON.stringify([entry, jobs]);
  if (text === shown) return;
  shown = text;
  if (entry === null) {
    actions.replaceChildren();
    facts.replaceChildren(fact("State", "There is no entry of this name in the schedule."));
    return;
  }
  actions.replaceChildren(...buttons(entry, () => live.refresh()));
  facts.replaceChildren(
    fact("Task", entry.task),
    fact("Schedule", el("code", { class: "singleton-when" }, entry.schedule)),
    fact("Next slot", next(entry)),
    fact("Published up to", ticking(entry.last)),
    fact("Last runs", strip(entry.runs)),
    ...jobs.map((job) => fact(`Waiting ${job.kind}`, [`by ${job.by}, `, ticking(job.at)])),
  );
}

function fact(label, value) {
  return el("div", { class: "detail-row" }, el("dt", {}, label), el("dd", {}, value));
}

function rowOf(run) {
  const cells = [
    ["Run", el("a", { href: toTask(run.id), title: run.id }, run.id.slice(0, 8)), ""],
    ["Status", badge(run.status), ""],
    ["Slot", ticking(run.slot), ""],
    ["Lag", run.lag === null ? missing() : span(run.lag), "singleton-number"],
    ["Took", duration(run), "singleton-number"],
    ["Worker", run.worker ?? missing(), "singleton-worker"],
    ["What happened", run.error ?? run.reason ?? missing(), "singleton-wide singleton-error"],
  ];
  return el("tr", {}, cells.map(([label, value, className]) => el("td", { "data-label": label, class: className }, value)));
}

function duration(run) {
  if (run.status === "running" && run.started !== null) return span(now() - run.started);
  return run.took === null || run.status === "skipped" ? missing() : span(run.took);
}

function nothing() {
  return el("tr", {}, el("td", { class: "empty-table-message", colspan: 7 }, "No run of it was seen."));
}
