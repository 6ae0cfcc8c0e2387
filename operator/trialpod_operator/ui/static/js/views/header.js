/** The top of an experiment: its state and why, the best trial, the budget, when it ends; and the filter of all views. */

import * as address from "../address.js";
import { after, copy, fill, h } from "../dom.js";
import { ago, clock, count, duration, number, plural, text, toPython, toYaml } from "../format.js";
import { icon, STATES, toneOf } from "../states.js";
import { actionButtons } from "./actions.js";

const ENDED = new Set(["TERMINATED", "STOPPED", "ERROR"]);

export function header(store) {
  const title = h("div", { class: "title" });
  const actions = actionButtons(store);
  const cards = h("div", { class: "cards" });
  const damaged = h("div");
  const el = h("section", { class: "experiment-head", "aria-label": "The experiment" }, h("div", { class: "title-row" }, title, actions.el), damaged, cards);

  function update() {
    const { header: now } = store;
    fill(title,
      h("h1", {}, now.name, " ", h("span", { class: `pill tone-${toneOf(now.state)}` }, now.state)),
      h("p", { class: "sentence" }, now.sentence || now.reason || ""));
    fill(damaged, now.damaged ? h("p", { class: "reason bad" }, now.damaged.message, " ", now.damaged.remedy) : null);
    fill(cards, bestCard(), countCard(), budgetCard(), timeCard());
    actions.update();
  }

  function bestCard() {
    const { best, metric, mode } = store.header;
    if (!best) {
      return card("Best trial", h("p", { class: "big soft" }, "–"), h("p", { class: "note" }, metric ? `No trial has reported ${metric} yet.` : "The experiment has no metric."));
    }
    const row = store.rows.get(best.trial);
    const varying = store.varying().filter((column) => row && column.get(row) !== null).slice(0, 6);
    return card("Best trial",
      h("p", { class: "big" }, number(typeof best.value === "number" ? best.value : Number(best.value)), h("span", { class: "unit" }, `latest ${metric}, ${mode === "min" ? "lower" : "higher"} is better`)),
      h("p", {}, h("a", { href: address.trialUrl(store.id, best.trial) }, `Trial ${row?.number ?? best.trial}`), best.iteration ? ` at iteration ${best.iteration}` : "",
        (store.header.front ?? []).length > 1 ? `; one of ${count(store.header.front.length)} on the front, the best in ${metric}` : ""),
      h("dl", { class: "config" }, varying.map((column) => [h("dt", {}, column.label), h("dd", { class: "clip", title: text(column.get(row)) }, text(column.get(row)))])),
      h("div", { class: "controls" },
        h("button", { type: "button", class: "button small", onclick: () => copy(toPython(best.config ?? {}, store.kinds()), "the best configuration as Python") }, "Copy as Python"),
        h("button", { type: "button", class: "button small", onclick: () => copy(toYaml(best.config ?? {}, store.kinds()), "the best configuration as YAML") }, "Copy as YAML")));
  }

  function countCard() {
    const counts = {};
    for (const row of store.rows.values()) counts[row.shown] = (counts[row.shown] ?? 0) + 1;
    const done = Object.entries(counts).reduce((sum, [state, n]) => sum + (ENDED.has(state) ? n : 0), 0);
    const trials = (store.header.budget ?? []).find((part) => part.name === "trials");
    const all = trials?.limit ?? store.rows.size;
    const bar = h("div", { class: "stacked", "aria-hidden": "true" });
    for (const state of Object.keys(STATES)) {
      if (!counts[state]) continue;
      const part = h("span", { class: `part state-${state}` });
      part.style.setProperty("flex-grow", String(counts[state]));
      bar.append(part);
    }
    const rest = Math.max(0, all - store.rows.size);
    if (rest) {
      const part = h("span", { class: "part rest" });
      part.style.setProperty("flex-grow", String(rest));
      bar.append(part);
    }
    return card("Trials", h("p", { class: "big" }, count(done), h("span", { class: "unit" }, trials?.limit ? `of ${count(trials.limit)} done` : "done")), bar,
      h("ul", { class: "counts" }, Object.keys(STATES).filter((state) => counts[state]).map((state) => h("li", {}, icon(state), `${count(counts[state])} ${STATES[state].label.toLowerCase()}`))));
  }

  function budgetCard() {
    const parts = (store.header.budget ?? []).filter((part) => part.name !== "trials" || part.limit);
    return card("Budget used", parts.length ? h("ul", { class: "budget" }, parts.map((part) => {
      const used = part.unit === "s" || part.unit === "seconds" ? duration(part.used) : `${number(part.used)}${part.unit && part.unit !== part.name ? ` ${part.unit}` : ""}`;
      const limit = part.limit === null || part.limit === undefined ? null : part.unit === "s" || part.unit === "seconds" ? duration(part.limit) : number(part.limit);
      const meter = limit === null ? null : h("span", { class: "meter", "aria-hidden": "true" }, h("span", { class: "meter-fill" }));
      meter?.firstChild.style.setProperty("width", `${Math.min(100, (100 * part.used) / (part.limit || 1))}%`);
      return h("li", {}, h("span", { class: "budget-name" }, part.name), h("span", { class: "budget-value" }, used, limit === null ? "" : ` of ${limit}`), meter);
    })) : h("p", { class: "note" }, "This experiment has no limits."));
  }

  function timeCard() {
    const { started, updated, estimated_end: end, state } = store.header;
    const running = toneOf(state) === "live";
    const last = running ? Date.now() / 1000 : updated;
    return card(running ? "Ends" : "Time",
      h("p", { class: "big" }, running ? (end ? `in ${roughly(end - Date.now() / 1000)}` : "unknown") : duration(started && last ? last - started : null)),
      h("p", { class: "note" }, running ? (end ? `about ${clock(end)}, from the speed of the trials so far` : "Too little has ended to tell.") : `ended ${ago(updated)}`),
      h("dl", { class: "config" }, [["Started", clock(started)], ["Scheduler", store.header.scheduler], ["Search", store.header.search]].filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "clip", title: String(value) }, String(value))])));
  }

  update();
  return { el, update: (what) => { if (what === "rows" || what === "header") update(); } };
}

/** Returns a time that is a guess, in one unit. */
function roughly(seconds) {
  if (seconds < 60) return "less than a minute";
  return duration(seconds < 3600 ? Math.round(seconds / 60) * 60 : Math.round(seconds / 600) * 600);
}

function card(title, ...content) {
  return h("section", { class: "card stat", "aria-label": title }, h("h2", {}, title), ...content);
}

export function filterBar(store) {
  const states = h("div", { class: "chips", role: "group", "aria-label": "Show only these states" });
  const ranges = h("div", { class: "chips" });
  const problem = h("p", { class: "problem", id: "query-problem", role: "alert" });
  const first = store.varying().find((column) => column.numeric);
  const input = h("input", {
    type: "search", class: "query", value: store.query, spellcheck: "false", "aria-label": "Filter trials", "aria-describedby": "query-problem",
    placeholder: first ? `Filter, for example ${first.label}<${number(first.get(store.all()[0]) ?? 1)}` : "Filter, for example state=error",
    oninput: after(180, () => store.setQuery(input.value)),
  });
  const reset = h("button", { type: "button", class: "button small", onclick: () => { input.value = ""; store.clearFilter(); input.focus(); } }, "Clear filter");
  const found = h("span", { class: "note", "aria-live": "polite" });
  const el = h("section", { class: "filter", "aria-label": "Filter" }, h("div", { class: "filter-row" }, input, states, ranges, reset, found), problem);

  function update() {
    const counts = {};
    for (const row of store.rows.values()) counts[row.shown] = (counts[row.shown] ?? 0) + 1;
    const focused = states.contains(document.activeElement) ? document.activeElement.dataset.state : null;
    fill(states, Object.keys(STATES).filter((state) => counts[state] || store.states.has(state)).map((state) => h("button", {
      type: "button", class: "chip", "aria-pressed": String(store.states.has(state)), "data-state": state, onclick: () => store.toggleState(state),
    }, icon(state), STATES[state].label, h("span", { class: "soft" }, count(counts[state] ?? 0)))));
    if (focused) states.querySelector(`[data-state="${focused}"]`)?.focus();
    fill(ranges, [...store.ranges].map(([key, range]) => h("button", {
      type: "button", class: "chip range", "aria-label": `Remove the range of ${store.column(key)?.label ?? key}`, onclick: () => store.setRange(key, null),
    }, `${store.column(key)?.label ?? key}: ${words(range)}`, h("span", { "aria-hidden": "true" }, " ×"))));
    reset.hidden = !store.isFiltered() && !store.queryProblem;
    problem.textContent = store.queryProblem ?? "";
    input.setAttribute("aria-invalid", String(Boolean(store.queryProblem)));
    if (document.activeElement !== input && input.value.trim() !== store.query) input.value = store.query;
    found.textContent = store.isFiltered() ? `${count(store.visible().length)} of ${plural(store.rows.size, "trial")}` : "";
  }
  update();
  return { el, update: (what) => { if (what !== "selection") update(); } };
}

function words(range) {
  const none = range.none ? "none" : "";
  const rest = range.values ? [...range.values].join(", ") : range.min === undefined ? "" : `${number(range.min)} … ${number(range.max)}`;
  return [rest, none].filter(Boolean).join(" or ") || "nothing";
}
