// Dead letters: read why, send again, remove.

import { el, icon, missing, moment, ticking } from "./elements.js";
import { LiveTable, cards, note } from "./live.js";
import { toEntry, toTask } from "./run.js";
import { change, get, mayChange, toast } from "./server.js";

const REASONS = {
  failed: "failed",
  rejected: "rejected",
  worker_died: "killed its workers",
  undecodable: "cannot be decoded",
  unknown_task: "unknown task",
  invalid: "invalid",
  out_of_memory: "out of memory",
  foreign: "not ours",
};

const chosen = new Set();

const table = new LiveTable({
  path: "/singleton/dead-letters/data",
  keyOf: (row) => row.id,
  empty: "There are no dead letters.",
  onData: (said) => {
    cards({
      letters: { value: `${said.letters.toLocaleString()}${said.are_all ? "" : "+"}`, isBad: said.letters > 0 },
      oldest: { value: said.oldest === null ? "—" : ticking(said.oldest, { bare: true }) },
      tasks: { value: String(said.tasks) },
    });
    note(said.are_all ? "" : `These are the oldest ${said.letters.toLocaleString()} letters of ${said.queue}; there are more.`);
    const here = new Set(said.rows.map((row) => row.id));
    for (const id of chosen) if (!here.has(id)) chosen.delete(id);
    showChosen();
  },
  columns: [
    { label: "", className: "singleton-check", cell: checkbox },
    { label: "Task", className: "singleton-wide", cell: task },
    { label: "Reason", cell: reason },
    { label: "Error", className: "singleton-wide singleton-error", cell: error },
    { label: "Attempts", className: "singleton-number", cell: (row) => row.attempts || missing() },
    { label: "Died", cell: (row) => ticking(row.dead) },
    { label: "", className: "singleton-actions", cell: actions },
  ],
});

document.getElementById("singleton-replay-chosen").addEventListener("click", () => replay([...chosen], `${chosen.size} letters`));
document.getElementById("singleton-delete-chosen").addEventListener("click", () => remove([...chosen], `${chosen.size} letters`));
document.getElementById("singleton-all").addEventListener("change", ({ target }) => {
  for (const box of document.querySelectorAll("#singleton-table input[type=checkbox][data-id]")) {
    box.checked = target.checked;
    choose(box.dataset.id, target.checked);
  }
});

function checkbox(row) {
  return el("input", {
    type: "checkbox",
    class: "form-check-input",
    "data-id": row.id,
    "aria-label": `Choose the letter of ${row.task ?? "a message"}`,
    disabled: !mayChange,
    checked: chosen.has(row.id),
    change: ({ target }) => choose(row.id, target.checked),
  });
}

function choose(id, isChosen) {
  if (isChosen) chosen.add(id);
  else chosen.delete(id);
  showChosen();
}

function showChosen() {
  const place = document.getElementById("singleton-chosen");
  place.hidden = chosen.size === 0;
  document.getElementById("singleton-chosen-count").textContent = `${chosen.size} chosen`;
  document.getElementById("singleton-all").checked = chosen.size > 0;
}

function task(row) {
  const about = [row.entry ? el("a", { href: toEntry(row.entry) }, row.entry) : null, row.entry && row.run ? " · " : null];
  if (row.run) about.push(el("a", { href: toTask(row.run), title: row.run }, row.run.slice(0, 8)));
  return [el("span", { class: "singleton-name fw-semibold" }, row.task ?? "a message"), el("div", { class: "singleton-sub" }, about)];
}

function reason(row) {
  const replays = row.generation ? el("div", { class: "singleton-sub" }, `replayed ${row.generation} times before`) : null;
  return [el("span", { class: "singleton-badge singleton-dead" }, REASONS[row.reason] ?? row.reason), replays];
}

function error(row) {
  return el("button", { type: "button", class: "singleton-read", title: "Read the letter", click: () => read(row) }, row.exception || "no error is known");
}

function actions(row) {
  const name = row.task ?? "the message";
  return [
    button("replay", "Replay", "btn-outline-secondary", `Replay ${name}`, () => replay([row.id], name)),
    button("trash", "Delete", "btn-outline-danger", `Delete ${name}`, () => remove([row.id], name)),
  ];
}

function button(picture, label, look, said, click) {
  return el(
    "button",
    { type: "button", class: `btn btn-sm ${look} singleton-button`, disabled: !mayChange, "aria-label": said, title: label, click },
    icon(picture),
    el("span", { class: "singleton-button-text" }, label),
  );
}

async function replay(ids, what) {
  const asked = {
    title: `Replay ${what}`,
    text: "The message is sent again to where it came from, for a fresh start under the same id, and its letter is removed. Doing so twice runs it once.",
    action: "Replay",
  };
  if (await change("/singleton/dead-letters/replay", { ids }, asked)) table.refresh();
}

async function remove(ids, what) {
  const asked = {
    title: `Delete ${what}`,
    text: "The letter is removed for ever, with its message.",
    action: "Delete",
    danger: true,
  };
  if (await change("/singleton/dead-letters/delete", { ids }, asked)) table.refresh();
}

async function read(row) {
  try {
    show(await get("/singleton/dead-letters/letter", { id: row.id }));
  } catch (problem) {
    toast(problem.message, true);
  }
}

function show(letter) {
  const facts = {
    Letter: letter.id,
    Run: letter.run,
    Entry: letter.entry,
    Slot: letter.slot,
    Queue: letter.queue,
    Worker: letter.worker,
    Attempts: letter.attempts,
    Started: letter.started && moment(letter.started),
    Died: moment(letter.dead),
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  const dialog = el(
    "dialog",
    { class: "singleton-dialog singleton-letter", "aria-labelledby": "singleton-dialog-title" },
    el(
      "form",
      { method: "dialog" },
      el("h2", { id: "singleton-dialog-title" }, letter.task ?? "A message"),
      el("p", { class: "singleton-bad" }, letter.exception),
      el("dl", { class: "singleton-facts" }, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])),
      letter.traceback ? [el("h3", {}, "Traceback"), el("pre", { class: "detail-code" }, letter.traceback)] : [],
      el("h3", {}, "Message"),
      el("pre", { class: "detail-code" }, letter.body),
      el("div", { class: "singleton-dialog-buttons" }, el("button", { class: "btn btn-primary" }, "Close")),
    ),
  );
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}
