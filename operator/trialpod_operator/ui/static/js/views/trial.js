/** One trial: its parameters, what it did attempt by attempt, what was decided about it and why, its checkpoints, its log. */

import * as address from "../address.js";
import { experimentPath, get } from "../api.js";
import { atMostEvery, copy, fill, h } from "../dom.js";
import { plainTable } from "../figure.js";
import { bytes, clock, duration, flatten, num, number, plural, text, toPython, toYaml } from "../format.js";
import { chip, costName, isIdle, stateOf } from "../states.js";
import { actionButtons } from "./actions.js";
import { curves } from "./curves.js";

export function trialPage(store, id) {
  const el = h("div", { class: "trial-page" });
  const body = h("div", { class: "columns" });
  const headPlace = h("div");
  const row = store.rows.get(id);
  const curve = row ? curves(store, { only: [id], title: "Learning curve" }) : null;
  const actions = actionButtons(store, { trial: id });
  el.append(headPlace, body);
  let stopped = false;

  async function load() {
    let data;
    try {
      data = await get(experimentPath(store.id, `/trials/${encodeURIComponent(id)}`));
    } catch (error) {
      if (!body.childElementCount) fill(headPlace, h("p", { class: "empty" }, error.message, " ", error.remedy));
      return;
    }
    if (!stopped) show(data);
  }

  function show(data) {
    actions.update();
    const now = data.row;
    const shown = stateOf(now, store.header);
    const place = store.ranked(store.all()).findIndex((each) => each.id === id) + 1;
    const all = store.all();
    const at = all.findIndex((each) => each.id === id);
    fill(headPlace,
      h("div", { class: "trial-head" },
        h("div", {}, h("h2", {}, `Trial ${now.number} `, chip(shown)),
          h("p", { class: "note" }, now.id, now.parent ? [" · cloned from ", h("a", { href: address.trialUrl(store.id, now.parent) }, `trial ${store.rows.get(now.parent)?.number ?? now.parent}`)] : null)),
        h("div", { class: "controls" },
          link(all[at - 1], "← Previous"), link(all[at + 1], "Next →"),
          h("button", { type: "button", class: "button small", "aria-pressed": String(store.selection.has(id)), onclick: (event) => { store.select(id); event.currentTarget.setAttribute("aria-pressed", String(store.selection.has(id))); event.currentTarget.textContent = selectLabel(); } }, selectLabel()),
          actions.el)),
      now.reason ? h("p", { class: shown === "ERROR" ? "reason bad" : "reason" }, now.reason) : null,
      h("dl", { class: "facts" },
        fact(store.header.metric ?? "Value", `${number(row?.value ?? num(now.best))}${place ? ` (number ${place} of ${store.ranked(store.all()).length})` : ""}`),
        fact("Iteration", text(now.iteration)),
        fact("Time", duration(now.started ? (now.ended ?? store.now()) - now.started : null)),
        fact("Attempts", `${now.attempts ?? "–"}${now.restarts ? `, ${plural(now.restarts, "restart")}` : ""}`),
        fact(costName(store.header), duration(now.cost))));
    const best = store.header.best;
    const config = flatten(data.config);
    const bestConfig = best && best.trial !== id ? flatten(best.config) : {};
    const compare = best && best.trial !== id;
    fill(body,
      curve?.el,
      card("Decisions", data.decisions.length
        ? h("ol", { class: "decisions" }, data.decisions.map((each) => h("li", {}, h("span", { class: "decision" }, each.decision), h("span", { class: "when" }, each.iteration === null || each.iteration === undefined ? "" : `iteration ${each.iteration} · `, clock(each.time)), h("p", {}, each.explanation))))
        : h("p", { class: "note" }, "Nothing has been decided about this trial: it ran as it was.")),
      card("Configuration",
        h("div", { class: "controls" },
          h("button", { type: "button", class: "button small", onclick: () => copy(toPython(data.config, store.kinds()), "the configuration as Python") }, "Copy as Python"),
          h("button", { type: "button", class: "button small", onclick: () => copy(toYaml(data.config, store.kinds()), "the configuration as YAML") }, "Copy as YAML")),
        plainTable(["Parameter", "Value", ...(compare ? ["Best trial has"] : [])], Object.entries(config).map(([name, value]) => [name, text(value), ...(compare ? [text(bestConfig[name]) === text(value) ? "the same" : text(bestConfig[name])] : [])]), "Configuration")),
      card("Last metrics", plainTable(["Metric", "Value"], Object.entries(now.metrics ?? {}).map(([name, value]) => [name, text(num(value) ?? value)]), "Last metrics")),
      card("Attempts", plainTable(["Attempt", "Started", "Ran for", "Resumed from", "Ended because", "Where"], data.attempts.map((each) => [
        text(each.number), clock(each.started), duration(each.started ? (each.ended ?? store.now()) - each.started : null),
        each.resumed_from === null || each.resumed_from === undefined ? "the beginning" : `iteration ${each.resumed_from}`, each.exit || (each.ended ? "–" : isIdle(store.header.state) ? "the experiment was interrupted" : "still running"),
        [each.pod, each.node].filter(Boolean).join(" on ") || "this machine"]), "Attempts"), true),
      card("Checkpoints", data.checkpoints.length
        ? plainTable(["Iteration", "Size", "Written", "Path"], data.checkpoints.map((each) => [text(each.iteration), bytes(each.size), clock(num(each.committed)), each.path ?? ""]), "Checkpoints")
        : h("p", { class: "note" }, "This trial has no checkpoint."), true),
      card("Log", h("p", { class: "note" }, data.logs?.where ?? ""), data.logs?.tail
        ? h("pre", { class: "log", tabindex: "0", "aria-label": "The last lines of the log" }, data.logs.tail)
        : h("p", { class: "note" }, "No lines are kept here."), true));
  }

  function selectLabel() {
    return store.selection.has(id) ? "Selected for comparing" : "Select for comparing";
  }

  function link(other, label) {
    return other ? h("a", { class: "button small", href: address.trialUrl(store.id, other.id) }, label) : null;
  }

  const again = atMostEvery(2000, load);
  load();
  return {
    el,
    update(what) { if (what === "rows") { again(); curve?.update("rows"); } },
    destroy() { stopped = true; curve?.destroy(); },
  };
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

export function card(title, ...content) {
  const wide = content.at(-1) === true;
  if (wide) content.pop();
  return h("section", { class: wide ? "card wide" : "card", "aria-label": title }, h("h3", {}, title), ...content);
}
