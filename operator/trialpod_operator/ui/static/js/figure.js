/** An accessible chart: a title, one sentence, the picture, and the same as a table. */

import { fill, h } from "./dom.js";

let last = 0;
const MAX_TABLE_ROWS = 500;

/**
 * Returns {el, host, sentence(words), progress(done, all), refreshTable()}. `table` returns {heads, rows} on demand.
 */
export function figure({ title, controls = [], table, wide = false, level = "h3" }) {
  const id = `figure-${++last}`;
  const caption = h("figcaption", { id: `${id}-text`, class: "sentence" });
  const bar = h("progress", { class: "progress", hidden: true, "aria-label": `${title}: loaded` });
  const host = h("div", { class: "plot" });
  const place = h("div", { class: "as-table", hidden: true });
  const button = table ? h("button", {
    type: "button", class: "button ghost small", "aria-expanded": "false", "aria-label": `Show as table: ${title}`,
    onclick: () => {
      place.hidden = !place.hidden;
      button.setAttribute("aria-expanded", String(!place.hidden));
      button.textContent = place.hidden ? "Show as table" : "Hide table";
      refreshTable();
    },
  }, "Show as table") : null;

  function refreshTable() {
    if (place.hidden || !table) return;
    const { heads, rows } = table();
    fill(place, plainTable(heads, rows.slice(0, MAX_TABLE_ROWS), title),
      rows.length > MAX_TABLE_ROWS ? h("p", { class: "note" }, `The first ${MAX_TABLE_ROWS} of ${rows.length.toLocaleString("en")} rows.`) : null);
  }

  const el = h("figure", { class: wide ? "card figure wide" : "card figure", "aria-labelledby": id },
    h("div", { class: "figure-head" }, h(level, { id }, title), h("div", { class: "controls" }, ...controls, button)),
    caption, bar, host, place);
  return {
    el,
    host,
    sentence: (words) => { if (caption.textContent !== words) caption.textContent = words; },
    /** Shows how much of what takes long is there; nothing once it is all. */
    progress(done, all) {
      bar.hidden = done >= all;
      bar.max = Math.max(1, all);
      bar.value = done;
    },
    refreshTable,
    captionId: `${id}-text`,
  };
}

/** Returns a plain HTML table; numbers are already written. */
export function plainTable(heads, rows, label) {
  return h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": `${label}, as a table` },
    h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}
