// How the page speaks with Flower.

import { el } from "./elements.js";

const page = document.getElementById("singleton-page");

export const root = page.dataset.root;
export const isLive = page.dataset.live === "true";
export const mayChange = page.dataset.mayChange === "true";

export function urlOf(path, query = {}) {
  const search = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined),
  ).toString();
  return `${root}${path}${search ? `?${search}` : ""}`;
}

export async function get(path, query) {
  return answer(await reach(urlOf(path, query), {}));
}

export async function post(path, said) {
  const token = document.cookie.match(/(?:^|;)\s*_xsrf=([^;]+)/);
  return answer(
    await reach(urlOf(path), {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-XSRFToken": token ? decodeURIComponent(token[1]) : "" },
      body: JSON.stringify(said),
    }),
  );
}

async function reach(url, options) {
  try {
    return await fetch(url, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("Flower does not answer");
  }
}

async function answer(response) {
  let said = null;
  try {
    said = await response.json();
  } catch {
    // A login page, or a proxy that speaks for Flower.
  }
  if (response.ok && said !== null) return said;
  throw new Error(said?.error || `Flower answered ${response.status} ${response.statusText}`);
}

export function toast(message, isError = false) {
  const box = el(
    "div",
    {
      class: `toast align-items-center text-bg-${isError ? "danger" : "success"} border-0`,
      role: isError ? "alert" : "status",
    },
    el(
      "div",
      { class: "d-flex" },
      el("div", { class: "toast-body" }, message),
      el("button", {
        type: "button",
        class: "btn-close btn-close-white me-2 m-auto",
        "data-bs-dismiss": "toast",
        "aria-label": "Close",
      }),
    ),
  );
  document.getElementById("toast-container").append(box);
  box.addEventListener("hidden.bs.toast", () => box.remove());
  window.bootstrap.Toast.getOrCreateInstance(box, { delay: isError ? 10000 : 5000 }).show();
}

// Ask before something is changed. Resolves to what was said, or to null if it is not to be done.
// `reason`: "required", "optional", or not asked for.
export function confirm({ title, text, action, reason = "", danger = false }) {
  const field = el("textarea", {
    id: "singleton-why",
    class: "form-control",
    rows: 2,
    maxlength: 500,
    required: reason === "required",
    placeholder: "For the audit, and for whoever wonders about it",
  });
  const label = reason === "required" ? "Reason" : "Reason (optional)";
  const dialog = el(
    "dialog",
    { class: "singleton-dialog", "aria-labelledby": "singleton-dialog-title" },
    el(
      "form",
      { method: "dialog" },
      el("h2", { id: "singleton-dialog-title" }, title),
      el("p", {}, text),
      reason ? [el("label", { for: "singleton-why", class: "form-label" }, label), field] : [],
      el(
        "div",
        { class: "singleton-dialog-buttons" },
        el("button", { type: "button", class: "btn btn-outline-secondary", click: () => dialog.close("") }, "Cancel"),
        el("button", { value: "yes", class: `btn ${danger ? "btn-danger" : "btn-primary"}` }, action),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? { why: field.value.trim() } : null);
    });
  });
}

// Ask, do, tell. True when it was done.
export async function change(path, said, question) {
  const answered = await confirm(question);
  if (answered === null) return false;
  try {
    const done = await post(path, { ...said, ...answered });
    toast(done.message, done.is_whole === false);
    return true;
  } catch (error) {
    toast(error.message, true);
    return false;
  }
}
