/** Actions, only those that the server offers; each shows the command that does the same. */

import { experimentPath, get, post } from "../api.js";
import { copy, fill, h, toast } from "../dom.js";

const LABELS = { suspend: "Suspend", resume: "Resume", "stop-trial": "Stop this trial", "more-samples": "More samples" };

/**
 * Returns buttons in a place that fills when the server allows actions. What is possible changes with the experiment's
 * state: `update` asks again when that is another one.
 */
export function actionButtons(store, { trial = null } = {}) {
  const el = h("span", { class: "actions" });
  let state;
  let asked = 0;

  async function load() {
    const mine = ++asked;
    state = store.header.state;
    try {
      const offered = await get(experimentPath(store.id, "/actions"));
      if (mine === asked) show(Array.isArray(offered) ? offered : offered.actions ?? []);
    } catch (error) {
      if (mine === asked && error.status !== 404) toast(error.message);
    }
  }

  function show(offered) {
    const focused = el.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    fill(el, offered.filter((action) => (action.name === "stop-trial") === (trial !== null)).map((action) => h("button", {
      type: "button", class: "button small", "data-action": action.name, disabled: !action.allowed, title: action.allowed ? commandOf(action, trial) : action.why_not ?? "",
      onclick: () => ask(store, action, trial, load),
    }, LABELS[action.name] ?? action.name)));
    if (focused) el.querySelector(`[data-action="${focused}"]`)?.focus();
  }

  function update() {
    if (store.actions && state !== store.header.state) load();
  }

  update();
  return { el, update };
}

/** Returns the command that does the same; `more` are samples to be added. */
function commandOf(action, trial, more = "N") {
  const count = Number(more);
  const total = Number.isInteger(count) && count > 0 ? action.base + count : "N";
  return action.command.replace("{samples}", total).replace(/TRIAL|\{trial\}/g, trial ?? "TRIAL");
}

function ask(store, action, trial, done) {
  const label = LABELS[action.name] ?? action.name;
  const adds = action.name === "more-samples";
  const command = () => commandOf(action, trial, samples.value);
  const shown = h("pre", { class: "command" });
  const samples = h("input", { type: "number", min: "1", step: "1", value: "10", oninput: () => fill(shown, command()) });
  fill(shown, command());
  const problem = h("p", { class: "reason bad", role: "alert", hidden: true });
  const dialog = h("dialog", { "aria-label": label, onclose: () => dialog.remove() },
    h("form", {
      method: "dialog",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await post(experimentPath(store.id, `/actions/${action.name}`), { ...(trial ? { trial } : {}), ...(adds ? { samples: Number(samples.value) } : {}) });
          dialog.close();
          toast(`${label}: done`);
          done();
        } catch (error) {
          problem.hidden = false;
          problem.textContent = [error.message, error.remedy].filter(Boolean).join(" ");
        }
      },
    }, h("h3", {}, `${label}?`), h("p", { class: "note" }, "The same in a terminal:"), shown,
    adds ? h("label", { class: "field" }, h("span", {}, "How many more"), samples) : null, problem,
    h("div", { class: "dialog-buttons" },
      h("button", { type: "button", class: "button", onclick: () => copy(command(), "the command") }, "Copy the command"),
      h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "submit", class: "button primary" }, label))));
  document.body.append(dialog);
  dialog.showModal();
}
