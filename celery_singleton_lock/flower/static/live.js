// What is on the page is asked for again and again, and says so when there is no answer.

import { el, setNow } from "./elements.js";
import { get, isLive } from "./server.js";

const EVERY_MS = 2000;
const USUAL = { page: "1", size: "25" };

export class Live {
  constructor(ask, show) {
    this.ask = ask;
    this.show = show;
    this.turn = 0;
    this.lastError = "";
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
    this.refresh();
  }

  // Only the answer to the last question counts: others may come late.
  async refresh() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    try {
      const said = await this.ask();
      if (turn !== this.turn) return;
      if (said.now) setNow(said.now);
      this.show(said);
      status("live", isLive ? "Live" : "Loaded");
    } catch (error) {
      if (turn !== this.turn) return;
      status("error", error.message);
    }
    if (isLive) this.timer = setTimeout(() => document.hidden || this.refresh(), EVERY_MS);
  }
}

function status(kind, text) {
  document.getElementById("singleton-dot").className = `status-dot status-dot-${kind}`;
  document.getElementById("singleton-status").textContent = kind === "error" ? "No answer" : text;
  const trouble = document.getElementById("singleton-trouble");
  trouble.hidden = kind !== "error";
  trouble.textContent = kind === "error" ? `What you see may be old. ${text}` : "";
  document.getElementById("singleton-page").classList.toggle("singleton-stale", kind === "error");
}

// Put these numbers onto the cards at the top.
export function cards(values) {
  for (const [name, { value, isBad = false, title = "" }] of Object.entries(values)) {
    const place = document.getElementById(`singleton-card-${name}`);
    place.replaceChildren(value);
    const card = place.closest(".metric-card");
    card.classList.toggle("metric-card-danger", isBad);
    card.title = title;
  }
}

export function note(text) {
  const place = document.getElementById("singleton-note");
  place.hidden = !text;
  place.textContent = text;
}

// A table of many rows, of which the server sends a page. Search, filter and page are in the address, so
// that it can be sent to somebody. A row that has not changed is left alone, with the focus in it.
export class LiveTable {
  constructor({ path, columns, keyOf, empty, onData = () => {} }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.empty = empty;
    this.onData = onData;
    this.rows = new Map();
    this.body = document.querySelector("#singleton-table tbody");
    this.query = { ...USUAL, ...Object.fromEntries(new URLSearchParams(location.search)) };
    this.bindSearch();
    this.bindChoices();
    this.bindPages();
    this.live = new Live(
      () => get(path, this.query),
      (said) => this.show(said),
    );
  }

  set(changes) {
    Object.assign(this.query, { page: "1" }, changes);
    const shown = Object.entries(this.query).filter(([name, value]) => value && value !== USUAL[name]);
    history.replaceState(null, "", `?${new URLSearchParams(shown)}`);
    this.mark();
    return this.live.refresh();
  }

  refresh() {
    return this.live.refresh();
  }

  bindSearch() {
    const field = document.getElementById("singleton-search");
    field.value = this.query.search || "";
    let timer;
    field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.set({ search: field.value }), 250);
    });
  }

  // Buttons with data-choice and data-value: one of several. data-default: what it is when nothing is said.
  bindChoices() {
    this.choices = document.querySelectorAll("[data-choice]");
    for (const button of this.choices) {
      button.addEventListener("click", () => this.set({ [button.dataset.choice]: button.dataset.value }));
    }
    this.mark();
  }

  mark() {
    for (const button of this.choices) {
      const given = this.query[button.dataset.choice] ?? button.dataset.default ?? "";
      const isChosen = given === button.dataset.value;
      button.classList.toggle("active", isChosen);
      button.setAttribute("aria-pressed", isChosen);
    }
  }

  bindPages() {
    this.info = document.getElementById("singleton-info");
    this.pages = document.getElementById("singleton-pages");
    this.sizes = document.getElementById("singleton-size");
    this.sizes.value = this.query.size;
    this.sizes.addEventListener("change", () => this.set({ size: this.sizes.value }));
  }

  show(said) {
    this.onData(said);
    const old = this.rows;
    this.rows = new Map();
    const shown = said.rows.map((row) => {
      const key = this.keyOf(row);
      const text = JSON.stringify(row);
      const before = old.get(key);
      const kept = before && before.text === text ? before : { text, row: this.rowOf(row) };
      this.rows.set(key, kept);
      return kept.row;
    });
    if (!shown.length) shown.push(this.emptyRow());
    // Moving a row takes the focus from it: only what is out of place is moved.
    shown.forEach((row, at) => {
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] || null);
    });
    while (this.body.children.length > shown.length) this.body.lastChild.remove();
    this.showPages(said);
  }

  rowOf(row) {
    return el(
      "tr",
      {},
      this.columns.map(({ label, className, cell }) =>
        el("td", { "data-label": label, class: className }, cell(row)),
      ),
    );
  }

  emptyRow() {
    const text = this.query.search || this.query.show ? "Nothing matches." : this.empty;
    return el("tr", {}, el("td", { class: "empty-table-message", colspan: this.columns.length }, text));
  }

  showPages({ page, size, count }) {
    const last = Math.max(1, Math.ceil(count / size));
    const first = count ? (page - 1) * size + 1 : 0;
    const info = `Showing ${first.toLocaleString()} to ${Math.min(page * size, count).toLocaleString()} of ${count.toLocaleString()}`;
    if (this.info.textContent !== info) this.info.textContent = info;
    const key = `${page}/${last}`;
    if (this.pages.dataset.key === key) return;
    this.pages.dataset.key = key;
    this.pages.replaceChildren(
      this.pageButton("Previous", page - 1, { disabled: page <= 1 }),
      ...pagesAround(page, last).map((each) =>
        each === null
          ? el("li", { class: "page-item disabled" }, el("span", { class: "page-link" }, "…"))
          : this.pageButton(String(each), each, { active: each === page }),
      ),
      this.pageButton("Next", page + 1, { disabled: page >= last }),
    );
  }

  pageButton(text, page, { disabled = false, active = false }) {
    return el(
      "li",
      { class: `page-item${disabled ? " disabled" : ""}${active ? " active" : ""}` },
      el(
        "button",
        {
          type: "button",
          class: "page-link",
          disabled,
          "aria-current": active ? "page" : null,
          click: () => this.set({ page: String(page) }),
        },
        text,
      ),
    );
  }
}

function pagesAround(page, last) {
  const near = [1, page - 1, page, page + 1, last].filter((each) => each >= 1 && each <= last);
  const pages = [...new Set(near)].sort((a, b) => a - b);
  return pages.flatMap((each, at) => (at && each - pages[at - 1] > 1 ? [null, each] : [each]));
}
