// What is said of an entry, and what can be done with it, wherever it is shown.

import { el, icon, missing, span, ticking } from "./elements.js";
import { change, mayChange } from "./server.js";

export function next(row) {
  if (row.is_paused) {
    const who = [row.paused_by && `by ${row.paused_by}`, row.paused_why].filter(Boolean).join(": ");
    return [badge("paused", "paused"), el("div", { class: "singleton-sub" }, who)];
  }
  if (row.late !== null) {
    return badge("failed", `late by ${span(row.late)}`, "A slot is due that was not published");
  }
  return row.next === null ? missing() : ticking(row.next);
}

function badge(status, text, title) {
  return el("span", { class: `singleton-badge singleton-${status}`, title }, text);
}

export function buttons(row, onDone) {
  const pauseOrResume = row.is_paused
    ? button(row, onDone, "play", "Resume", "resume", {
        text: "Its slots are published again, from now on. Those that were passed over stay so.",
      })
    : button(row, onDone, "pause", "Pause", "pause", {
        text: "No slot of it is published until it is resumed. A run that is going on is not touched.",
      });
  return [
    pauseOrResume,
    button(row, onDone, "bolt", "Run now", "trigger", {
      text: "One run is published now, apart from the schedule.",
    }),
  ];
}

function button(row, onDone, picture, label, verb, question) {
  return el(
    "button",
    {
      type: "button",
      class: "btn btn-sm btn-outline-secondary singleton-button",
      disabled: !mayChange,
      "aria-label": `${label} ${row.name}`,
      title: label,
      click: async () => {
        const asked = { title: `${label}: ${row.name}`, action: label, reason: "optional", ...question };
        if (await change(`/singleton/schedule/${verb}`, { entry: row.name }, asked)) onDone();
      },
    },
    icon(picture),
    el("span", { class: "singleton-button-text" }, label),
  );
}
