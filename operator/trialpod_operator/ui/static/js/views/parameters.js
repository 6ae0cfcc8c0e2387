/** Which parameter mattered, and how the metric lies over each of them. */

import * as address from "../address.js";
import { experimentPath, get } from "../api.js";
import { atMostEvery, fill, h, segmented } from "../dom.js";
import { figure } from "../figure.js";
import { number, plural, text } from "../format.js";
import { padded, Plot } from "../plot.js";
import { color, scaleColor } from "../theme.js";
import { categories } from "./parallel.js";

const MAX_SLICES = 12;

export function importance(store) {
  let answer = null;
  const view = figure({
    title: "Which parameter mattered",
    table: () => ({ heads: ["Parameter", "Importance", "Resamples from", "to"], rows: (answer?.importance ?? []).map(({ name, value, low, high }) => [name, number(value), number(low), number(high)]) }),
  });
  const list = h("ol", { class: "bars" });
  view.host.append(list);
  let stopped = false;
  view.sentence("Computing …");
  async function load() {
    try {
      answer = await get(experimentPath(store.id, `/importance?metric=${encodeURIComponent(store.header.metric ?? "")}`));
    } catch (error) {
      answer = { unavailable: error.message };
    }
    if (stopped) return;
    if (answer.unavailable) {
      fill(list);
      view.sentence(`Not known: ${answer.unavailable}.`);
      return;
    }
    const ranked = [...answer.importance].sort((a, b) => b.value - a.value);
    const top = ranked[0];
    view.sentence(top
      ? `${top.name} explains ${Math.round(top.value * 100)} % of what differs between ${plural(answer.trials_used, "trial")}${ranked[1] ? `, ${ranked[1].name} ${Math.round(ranked[1].value * 100)} %` : ""} (${answer.method}).${answer.remark ? ` ${answer.remark}.` : ""}`
      : "No parameter differs between trials.");
    const widest = Math.max(...ranked.map(({ value, high }) => high ?? value), 1e-9);
    const share = (value) => `${(100 * value) / widest}%`;
    fill(list, ranked.map(({ name, value, low, high }) => {
      const bar = h("span", { class: "bar-fill" });
      bar.style.setProperty("width", `max(2px, ${share(value)})`);
      const interval = typeof low === "number" && typeof high === "number" ? h("span", { class: "bar-interval", "aria-hidden": "true" }) : null;
      interval?.style.setProperty("left", share(low));
      interval?.style.setProperty("width", share(high - low));
      const title = interval ? `${name}: ${percent(low)} to ${percent(high)} in resamples of the trials` : name;
      return h("li", { title }, h("span", { class: "bar-name clip" }, name), h("span", { class: "bar-track" }, bar, interval), h("span", { class: "bar-value" }, percent(value)));
    }));
    view.refreshTable();
  }
  load();
  const again = atMostEvery(10000, load);
  return { el: view.el, update: (what) => { if (what === "rows") again(); }, destroy: () => { stopped = true; } };
}

const percent = (value) => `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;

export function slices(store) {
  const log = () => store.option("slices.y", "linear") === "log";
  const place = h("div", { class: "slices" });
  const note = h("p", { class: "note" });
  const el = h("section", { class: "wide", "aria-label": "Slices" },
    h("div", { class: "section-head" }, h("h2", {}, "Each parameter against the metric"), note,
      segmented("Vertical scale", [["linear", "linear"], ["log", "log"]], store.option("slices.y", "linear"), (value) => { store.setOption("slices.y", value); build(); })),
    place);
  let parts = [];
  let names = "";
  function build() {
    for (const part of parts) part.destroy();
    const columns = store.varying();
    names = columns.map((column) => column.key).join();
    parts = columns.slice(0, MAX_SLICES).map((column) => slice(store, column, log()));
    fill(place, parts.map((part) => part.el));
    note.textContent = columns.length > MAX_SLICES ? `the first ${MAX_SLICES} of ${columns.length} parameters` : "later trials are lighter; the ring is the best one";
  }
  build();
  return {
    el,
    update(what) {
      if (what === "rows" && store.varying().map((column) => column.key).join() !== names) build();
      else for (const part of parts) part.update(what);
    },
    destroy() { for (const part of parts) part.destroy(); },
  };
}

function slice(store, column, yLog) {
  const view = figure({
    title: column.label,
    table: () => ({ heads: ["Trial", column.label, store.header.metric ?? "value"], rows: usable().map((row) => [String(row.number), text(column.get(row)), number(row.value)]) }),
  });
  const usable = () => store.visible().filter((row) => Number.isFinite(row.value) && column.get(row) !== null && (!yLog || row.value > 0));
  const names = column.numeric ? [] : categories(store.all(), column);
  const xLog = column.numeric && column.log && store.all().every((row) => column.get(row) === null || column.get(row) > 0);
  // Points of one category lie side by side, always at the same place for the same trial.
  const xOf = (row) => (column.numeric ? column.get(row) : names.indexOf(String(column.get(row))) + (((row.number * 7919) % 97) / 97 - 0.5) * 0.44);

  function bounds() {
    const rows = usable();
    const y = padded(rows.map((row) => row.value), yLog, 0.06);
    const x = column.numeric ? padded(rows.map(xOf), xLog, 0.03) : [-0.6, names.length - 0.4];
    return x && y ? [...x, ...y] : null;
  }
  function draw(ctx, frame) {
    const rows = usable();
    const radius = (rows.length > 1000 ? 1.6 : 3) * frame.ratio;
    ctx.globalAlpha = rows.length > 1000 ? 0.5 : 0.8;
    const most = Math.max(1, store.rows.size - 1);
    for (const row of rows) {
      ctx.fillStyle = scaleColor((row.number / most) * 0.85);
      dot(ctx, frame.toX(xOf(row)), frame.toY(row.value), radius);
    }
    const best = store.ranked()[0];
    ctx.globalAlpha = 1;
    if (!best || column.get(best) === null) return;
    ctx.strokeStyle = color("--accent");
    ctx.lineWidth = 2 * frame.ratio;
    ctx.beginPath();
    ctx.arc(frame.toX(xOf(best)), frame.toY(best.value), 6 * frame.ratio, 0, 7);
    ctx.stroke();
  }
  function nearest(frame, x, y) {
    let found = null;
    let distance = 14 * frame.ratio;
    for (const row of usable()) {
      const d = Math.hypot(frame.toX(xOf(row)) - x * frame.ratio - frame.left, frame.toY(row.value) - y * frame.ratio - frame.top);
      if (d < distance) { distance = d; found = row; }
    }
    return found;
  }
  const plot = new Plot(view.host, {
    label: `${store.header.metric} over ${column.label}`, bounds, draw, height: 200, xLog, yLog,
    ...(column.numeric ? {} : { xTicks: () => names.map((_, index) => index), xValue: (tick) => shortened(names[tick] ?? "", names.length) }),
    hover(frame, x, y) {
      const row = nearest(frame, x, y);
      return row && {
        x: (frame.toX(xOf(row)) - frame.left) / frame.ratio, y: (frame.toY(row.value) - frame.top) / frame.ratio,
        lines: [`Trial ${row.number}`, `${column.label}: ${text(column.get(row))}`, `${store.header.metric}: ${number(row.value)}`],
      };
    },
    click: (frame, x, y) => { const row = nearest(frame, x, y); if (row) location.hash = address.trialUrl(store.id, row.id); },
  });
  function update(what) {
    if (what === "selection" || what === "view") return;
    plot.update();
    const rows = usable();
    const best = store.ranked()[0];
    const without = store.visible().filter((row) => column.get(row) === null).length;
    view.sentence(!rows.length ? "No trial with a value."
      : `Best at ${best && column.get(best) !== null ? text(column.get(best)) : "none"}${without ? `; ${plural(without, "trial")} without it` : ""}.`);
    view.refreshTable();
  }
  update();
  return { el: view.el, update, destroy: () => plot.destroy() };
}

function dot(ctx, x, y, radius) {
  if (radius < 2.5) ctx.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
  else {
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 7);
    ctx.fill();
  }
}

function shortened(name, n) {
  const room = n > 8 ? 5 : n > 4 ? 9 : 14;
  return name.length > room ? `${name.slice(0, room - 1)}…` : name;
}
