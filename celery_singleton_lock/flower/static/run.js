// A run, wherever it is shown: as a cell of a strip, as a badge, as words.

import { el, moment, span } from "./elements.js";
import { urlOf } from "./server.js";

export const STATUSES = {
  waiting: "waiting",
  running: "running",
  succeeded: "succeeded",
  failed: "failed",
  dead: "dead letter",
  retrying: "retrying",
  skipped: "skipped",
  lost: "lease lost",
  missed: "missed",
  revoked: "revoked",
};

export function badge(status) {
  return el("span", { class: `singleton-badge singleton-${status}` }, STATUSES[status] || status);
}

export function toRun(run) {
  return urlOf("/singleton/runs", { search: run.id, window: 604800 });
}

export function toTask(id) {
  return urlOf(`/task/${encodeURIComponent(id)}`);
}

export function toEntry(name) {
  return urlOf("/singleton/entry", { name });
}

export function words(run) {
  const said = [STATUSES[run.status] || run.status];
  if (run.reason) said.push(`(${run.reason})`);
  const at = run.slot ?? run.started ?? run.seen;
  said.push(`· ${moment(at)}`);
  if (run.lag !== null) said.push(`· lag ${span(run.lag)}`);
  if (run.took !== null && run.status !== "skipped") said.push(`· took ${span(run.took)}`);
  if (run.error) said.push(`· ${run.error}`);
  return said.join(" ");
}

export function strip(runs) {
  return el(
    "div",
    { class: "singleton-strip", role: "list", "aria-label": "Last runs, oldest first" },
    runs.length
      ? runs.map((run) =>
          el("a", {
            class: `singleton-cell singleton-${run.status}`,
            href: toRun(run),
            role: "listitem",
            title: words(run),
            "aria-label": words(run),
          }),
        )
      : el("span", { class: "value-missing" }, "no runs seen"),
  );
}
