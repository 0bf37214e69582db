// Locks: who holds what; and who had to stand back.

import { Chart, contention } from "./charts.js";
import { el, icon, ticking } from "./elements.js";
import { Live, LiveTable, cards, note } from "./live.js";
import { toTask } from "./run.js";
import { change, get, mayChange } from "./server.js";

const STATES = {
  held: { status: "running", text: "held" },
  parked: { status: "retrying", text: "parked" },
  expired: { status: "failed", text: "ran out" },
};

const chart = new Chart(document.getElementById("singleton-contention"), contention, 170);

const table = new LiveTable({
  path: "/singleton/locks/data",
  keyOf: (row) => row.key,
  empty: "Nothing is locked.",
  onData: (said) =>
    cards({
      held: { value: said.held.toLocaleString() },
      parked: { value: said.parked.toLocaleString() },
      overdue: { value: said.overdue.toLocaleString(), isBad: said.overdue > 0 },
      expired: { value: said.expired.toLocaleString(), isBad: said.expired > 0 },
    }),
  columns: [
    { label: "Lock", className: "singleton-wide", cell: lock },
    { label: "State", cell: state },
    { label: "Holder", className: "singleton-wide", cell: holder },
    { label: "Held for", cell: (row) => ticking(row.since, { bare: true }) },
    { label: "Until", cell: (row) => ticking(row.until) },
    { label: "Fence", className: "singleton-number singleton-fence", cell: (row) => row.fence },
    { label: "", className: "singleton-actions", cell: unlock },
  ],
});

const contentionLive = new Live(
  () => get("/singleton/contention/data", { window: table.query.window || "3600" }),
  (said) => {
    chart.show(said.buckets);
    note(said.history);
  },
);

for (const button of document.querySelectorAll("[data-choice=window]")) {
  button.addEventListener("click", () => contentionLive.refresh());
}

function lock(row) {
  const about = [row.kind, row.task, row.entry].filter(Boolean).join(" · ");
  return [el("span", { class: "singleton-key" }, row.key), el("div", { class: "singleton-sub" }, about)];
}

function state(row) {
  const { status, text } = STATES[row.state];
  const badge = el("span", { class: `singleton-badge singleton-${status}` }, text);
  const remarks = [];
  if (row.is_overdue) remarks.push("overdue by ", ticking(row.expected, { bare: true }));
  if (row.takeovers) remarks.push(` ${row.takeovers} died with it`);
  if (row.heir) remarks.push(" for its next attempt");
  return [badge, el("div", { class: `singleton-sub${row.is_overdue ? " singleton-bad" : ""}` }, remarks)];
}

function holder(row) {
  return [
    row.holder,
    row.run ? el("div", { class: "singleton-sub" }, "run ", el("a", { href: toTask(row.run), title: row.run }, row.run.slice(0, 8))) : null,
  ];
}

function unlock(row) {
  return el(
    "button",
    {
      type: "button",
      class: "btn btn-sm btn-outline-danger singleton-button",
      disabled: !mayChange || row.why_not !== "",
      "aria-label": `Unlock ${row.key}`,
      title: row.why_not || "Unlock",
      click: async () => {
        const asked = {
          title: `Unlock ${row.key}`,
          text: "The lease is taken from its holder, which is told at its next renewal and cannot finish. Until then two may be at work: only the fence keeps them apart.",
          action: "Unlock",
          reason: "required",
          danger: true,
        };
        if (await change("/singleton/locks/unlock", { key: row.key }, asked)) table.refresh();
      },
    },
    icon("unlock"),
    el("span", { class: "singleton-button-text" }, "Unlock"),
  );
}
