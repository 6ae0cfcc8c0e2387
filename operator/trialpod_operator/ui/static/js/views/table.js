/** The table of trials. Only the rows in sight are elements, so that ten thousand cost as much as twenty. */

import * as address from "../address.js";
import { fill, h, perFrame, save } from "../dom.js";
import { clock, count, duration, number, plural, text, toCsv } from "../format.js";
import { chip } from "../states.js";
import { sorted } from "../store.js";

const ROW = 36;
const SPARE = 8;
const DEFAULT_PARAMETERS = 8;

export function trialTable(store, { height = null } = {}) {
  const scroller = h("div", { class: "grid-scroll", tabindex: "-1" });
  if (height) scroller.style.setProperty("height", `${height}px`);
  const head = h("div", { class: "grid-row grid-head", role: "row" });
  const body = h("div", { class: "grid-body", role: "rowgroup" });
  const grid = h("div", { class: "grid", role: "grid", "aria-label": "Trials" }, h("div", { role: "rowgroup", class: "grid-headgroup" }, head), body);
  scroller.append(grid);
  const summary = h("p", { class: "note", "aria-live": "polite" });
  const chooserPlace = h("div", { class: "popover-host" });
  const compare = h("a", { class: "button small primary", hidden: true }, "Compare");
  const clear = h("button", { type: "button", class: "button small", hidden: true, onclick: () => store.clearSelection() }, "Clear selection");
  const el = h("section", { class: "card table-card", "aria-label": "Table of trials" },
    h("div", { class: "figure-head" }, h("h3", {}, "Trials"), summary,
      h("div", { class: "controls" }, compare, clear, chooserPlace,
        h("button", { type: "button", class: "button ghost small", onclick: () => download() }, "CSV"))),
    scroller);
  let rows = [];
  let columns = [];
  let current = 0;
  let wantFocus = false;

  fill(chooserPlace, columnChooser(store, () => shownColumns(), () => refresh()));

  function sorting() {
    const chosen = store.option("sort", "");
    const cut = chosen.lastIndexOf(":"); // a column's key has one too: p:lr
    const column = store.column(chosen.slice(0, cut));
    if (column) return [column, chosen.slice(cut + 1) === "desc"];
    return store.column("best") ? [store.column("best"), store.sign > 0] : [store.column("number"), true];
  }

  function shownColumns() {
    const chosen = store.option("columns", "");
    if (chosen) return chosen.split("|").map((key) => store.column(key)).filter(Boolean);
    const some = store.varying().slice(0, DEFAULT_PARAMETERS);
    return ["number", "state", "best", "iteration", "duration", "reason"].map((key) => store.column(key)).filter(Boolean).concat(some);
  }

  function refresh() {
    const [by, descending] = sorting();
    const before = rows[current]?.id;
    columns = shownColumns();
    rows = sorted(store.visible(), by, descending);
    const found = before === undefined ? -1 : rows.findIndex((row) => row.id === before);
    current = found >= 0 ? found : Math.min(current, Math.max(0, rows.length - 1));
    grid.setAttribute("aria-rowcount", String(rows.length + 1));
    grid.setAttribute("aria-colcount", String(columns.length + 1));
    grid.style.setProperty("--columns", ["44px", ...columns.map(width)].join(" "));
    fill(head, h("div", { role: "columnheader", class: "cell" }, h("span", { class: "visually-hidden" }, "Selected")), columns.map((column) => h("div", {
      role: "columnheader", class: column.numeric ? "cell numeric" : "cell", title: column.title ?? column.label,
      "aria-sort": column === by ? (descending ? "descending" : "ascending") : "none",
    }, h("button", { type: "button", onclick: () => sortBy(column, by, descending) },
      h("span", { class: "clip" }, column.label), h("span", { class: "arrow", "aria-hidden": "true" }, column === by ? (descending ? "↓" : "↑") : "")))));
    body.style.setProperty("height", `${Math.max(1, rows.length) * ROW}px`);
    summary.textContent = store.isFiltered() ? `${count(rows.length)} of ${plural(store.rows.size, "trial")}` : plural(rows.length, "trial");
    selectionChanged();
    paint();
  }

  function sortBy(column, by, descending) {
    const best = column.key === "best" && by !== column;
    const down = column === by ? !descending : best ? store.sign > 0 : false;
    store.setOption("sort", `${column.key}:${down ? "desc" : "asc"}`);
    refresh();
    [...head.querySelectorAll("button")][columns.indexOf(column)]?.focus();
  }

  function paint() {
    const top = Math.max(0, scroller.scrollTop - head.offsetHeight);
    const first = Math.max(0, Math.floor(top / ROW) - SPARE);
    const last = Math.min(rows.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW) + SPARE);
    const hadFocus = body.contains(document.activeElement) || wantFocus;
    wantFocus = false;
    const leader = store.header.best?.trial;
    const made = [];
    for (let index = first; index < last; index += 1) made.push(rowElement(rows[index], index, leader));
    if (!rows.length) made.push(h("div", { role: "row" }, h("div", { role: "gridcell", class: "empty" }, store.rows.size ? "No trial passes the filter." : "There are no trials yet.")));
    fill(body, made);
    if (hadFocus) body.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  function rowElement(row, index, leader) {
    const selected = store.selection.has(row.id);
    const el = h("div", {
      class: `grid-row${selected ? " selected" : ""}${row.id === leader ? " leader" : ""}`, role: "row", tabindex: index === current ? "0" : "-1",
      "aria-rowindex": String(index + 2), "aria-selected": String(selected), "data-id": row.id,
      onclick: (event) => { if (!event.target.closest("input, a")) { current = index; open(row); } },
    },
    h("div", { role: "gridcell", class: "cell" }, h("input", {
      type: "checkbox", checked: selected, tabindex: "-1", "aria-label": `Select trial ${row.number}`,
      onchange: (event) => store.select(row.id, event.target.checked),
    })),
    columns.map((column) => h("div", { role: "gridcell", class: column.numeric ? "cell numeric" : "cell" }, cell(store, column, row, row.id === leader))));
    el.style.setProperty("top", `${index * ROW}px`);
    return el;
  }

  function open(row) {
    location.hash = address.trialUrl(store.id, row.id);
  }

  function selectionChanged() {
    const n = store.selection.size;
    compare.hidden = n < 2;
    clear.hidden = n === 0;
    compare.textContent = `Compare ${n}`;
    compare.href = address.experimentUrl(store.id, "compare", address.queryOf(store));
  }

  body.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(scroller.clientHeight / ROW) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (event.key in moves) {
      current = Math.max(0, Math.min(rows.length - 1, current + moves[event.key]));
      const top = current * ROW;
      const room = scroller.clientHeight - head.offsetHeight;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top + ROW > scroller.scrollTop + room) scroller.scrollTop = top + ROW - room;
      wantFocus = true;
      paint();
    } else if (event.key === "Enter" && rows[current]) open(rows[current]);
    else if (event.key === " " && rows[current]) store.select(rows[current].id);
    else return;
    event.preventDefault();
  });
  const onScroll = perFrame(paint);
  scroller.addEventListener("scroll", onScroll);
  const resizer = new ResizeObserver(onScroll);
  resizer.observe(scroller);

  function download() {
    const [by, descending] = sorting();
    const list = sorted(store.visible(), by, descending);
    const every = [...store.columns().values()];
    save(`${store.header.name}.csv`, toCsv(["id", ...every.map((column) => (column.group === "parameter" ? `config.${column.label}` : column.key === "best" ? `best ${column.label}` : column.label))],
      list.map((row) => [row.id, ...every.map((column) => column.get(row))])), "text/csv");
  }

  refresh();
  return {
    el,
    follows: true,
    update(what) {
      if (what === "selection") { selectionChanged(); paint(); } else refresh();
    },
    destroy: () => resizer.disconnect(),
  };
}

function width(column) {
  if (column.key === "reason") return "minmax(260px, 3fr)";
  if (column.key === "number") return "76px";
  if (column.key === "state") return "136px";
  return "minmax(96px, 1fr)";
}

function cell(store, column, row, leads) {
  const value = column.get(row);
  if (column.key === "number") return h("a", { href: address.trialUrl(store.id, row.id), tabindex: "-1", title: row.id }, `${value}`);
  if (column.key === "state") return chip(value);
  if (column.key === "best" && leads) return h("strong", {}, "★ ", number(value));
  if (value === null || value === undefined) return h("span", { class: "none" }, "–");
  if (column.format === "duration") return duration(value);
  if (column.format === "clock") return clock(value);
  if (column.numeric) return number(value);
  return h("span", { class: "clip", title: text(value) }, text(value));
}

function columnChooser(store, shown, refresh) {
  const list = h("div", { class: "popover", hidden: true });
  const button = h("button", {
    type: "button", class: "button ghost small", "aria-expanded": "false",
    onclick: () => { list.hidden ? show() : hide(); },
  }, "Columns");
  function show() {
    const keys = new Set(shown().map((column) => column.key));
    const groups = [["Trial", "trial"], ["Parameters", "parameter"], ["Metrics", "metric"]];
    fill(list, groups.map(([label, group]) => h("fieldset", {}, h("legend", {}, label),
      [...store.columns().values()].filter((column) => column.group === group).map((column) => h("label", { class: "check" },
        h("input", {
          type: "checkbox", checked: keys.has(column.key),
          onchange: (event) => {
            if (event.target.checked) keys.add(column.key);
            else keys.delete(column.key);
            store.setOption("columns", [...store.columns().keys()].filter((key) => keys.has(key)).join("|"));
            refresh();
          },
        }), column.label)))),
    h("button", { type: "button", class: "button small", onclick: () => { store.setOption("columns", null); refresh(); show(); } }, "Usual columns"));
    list.hidden = false;
    button.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside);
  }
  function hide() {
    list.hidden = true;
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
  }
  function outside(event) {
    if (!list.contains(event.target) && event.target !== button) hide();
  }
  list.addEventListener("keydown", (event) => { if (event.key === "Escape") { hide(); button.focus(); event.stopPropagation(); } });
  return [button, list];
}
