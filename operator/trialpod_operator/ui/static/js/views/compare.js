/** The selected trials side by side: only what differs, and their curves. */

import * as address from "../address.js";
import { fill, h, toggle } from "../dom.js";
import { number, plural, text } from "../format.js";
import { chip } from "../states.js";
import { curves } from "./curves.js";

const MAX = 20;

export function compare(store) {
  let chart = null;
  let ids = "";
  let all = false;
  const place = h("div", { class: "stack wide" });
  const table = h("div");
  function build() {
    const chosen = [...store.selection].filter((id) => store.rows.has(id)).slice(0, MAX);
    if (chosen.join() !== ids || !place.childElementCount) {
      ids = chosen.join();
      chart?.destroy();
      chart = null;
      if (chosen.length < 2) {
        fill(place, h("p", { class: "empty" }, "Select two trials or more in the table (space bar or check box), then come back."));
        return;
      }
      chart = curves(store, { only: chosen, title: "Curves of the selected trials", wide: true, height: 300 });
      fill(place, chart.el, h("section", { class: "card", "aria-label": "Differences" }, h("div", { class: "figure-head" }, h("h3", {}, "Differences"),
        h("div", { class: "controls" }, toggle("Show what is equal too", all, (on) => { all = on; rows(); }),
          h("button", { type: "button", class: "button small", onclick: () => store.clearSelection() }, "Clear selection"))), table));
    }
    rows();
  }
  function rows() {
    const trials = ids.split(",").map((id) => store.rows.get(id)).filter(Boolean);
    const columns = [...store.columns().values()].filter((column) => column.key !== "number" && column.key !== "started");
    const differs = (column) => new Set(trials.map((row) => JSON.stringify(column.get(row)))).size > 1;
    const shown = columns.filter((column) => all || differs(column));
    const best = store.ranked(trials)[0];
    fill(table, h("p", { class: "note" }, `${plural(trials.length, "trial")}; ${plural(columns.filter(differs).length, "value")} differ.`),
      h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Differences, as a table" }, h("table", { class: "plain compare" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Value")), trials.map((row) => h("th", { scope: "col" },
          h("a", { href: address.trialUrl(store.id, row.id) }, row === best ? `★ Trial ${row.number}` : `Trial ${row.number}`))))),
        h("tbody", {}, shown.map((column) => h("tr", {}, h("th", { scope: "row" }, column.group === "metric" ? `${column.label} (last)` : column.label),
          trials.map((row) => h("td", { class: differs(column) ? "differs" : "" }, column.key === "state" ? chip(row.shown) : column.numeric ? number(column.get(row)) : text(column.get(row))))))))));
  }
  build();
  return { el: place, update: (what) => { build(); if (what === "rows") chart?.update("rows"); }, destroy: () => chart?.destroy() };
}
