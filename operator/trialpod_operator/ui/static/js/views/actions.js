/** Actions, only those that the server offers; each shows the command that does the same. */

import { experimentPath, get, post } from "../api.js";
import { copy, h, toast } from "../dom.js";

const LABELS = { suspend: "Suspend", resume: "Resume", "stop-trial": "Stop this trial", "more-samples": "More samples" };

/** Returns a place that fills with buttons when the server allows actions. */
export function actionButtons(store, { trial = null } = {}) {
  const place = h("span", { class: "actions" });
  if (!store.actions) return place;
  get(experimentPath(store.id, "/actions")).then((offered) => {
    for (const action of Array.isArray(offered) ? offered : offered.actions ?? []) {
      if ((action.name === "stop-trial") !== (trial !== null)) continue;
      place.append(h("button", {
        type: "button", class: "button small", disabled: !action.allowed, title: action.allowed ? action.command : action.why_not ?? "",
        onclick: () => ask(store, action, trial),
      }, LABELS[action.name] ?? action.name));
    }
  }).catch((error) => { if (error.status !== 404) toast(error.message); });
  return place;
}

function ask(store, action, trial) {
  const label = LABELS[action.name] ?? action.name;
  const samples = h("input", { type: "number", min: "1", step: "1", value: "10" });
  const command = trial ? action.command.replace(/TRIAL|\{trial\}/g, trial) : action.command;
  const problem = h("p", { class: "reason bad", role: "alert", hidden: true });
  const dialog = h("dialog", { "aria-label": label, onclose: () => dialog.remove() },
    h("form", {
      method: "dialog",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await post(experimentPath(store.id, `/actions/${action.name}`), { ...(trial ? { trial } : {}), ...(action.name === "more-samples" ? { samples: Number(samples.value) } : {}) });
          dialog.close();
          toast(`${label}: done`);
        } catch (error) {
          problem.hidden = false;
          problem.textContent = [error.message, error.remedy].filter(Boolean).join(" ");
        }
      },
    }, h("h3", {}, `${label}?`), h("p", { class: "note" }, "The same in a terminal:"), h("pre", { class: "command" }, command),
    action.name === "more-samples" ? h("label", { class: "field" }, h("span", {}, "How many more"), samples) : null, problem,
    h("div", { class: "dialog-buttons" },
      h("button", { type: "button", class: "button", onclick: () => copy(command, "the command") }, "Copy the command"),
      h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "submit", class: "button primary" }, label))));
  document.body.append(dialog);
  dialog.showModal();
}
