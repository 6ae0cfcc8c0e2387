/** The list of experiments, and several of them in one picture. */

import * as address from "../address.js";
import { experimentPath, get } from "../api.js";
import { chooser, fill, h, segmented } from "../dom.js";
import { figure } from "../figure.js";
import { ago, clock, count, duration, num, number, plural } from "../format.js";
import { padded, Plot } from "../plot.js";
import { icon, STATES, toneOf } from "../states.js";
import { lineColor } from "../theme.js";
import { swatch } from "./curves.js";

const POLL_MS = 5000;

export function experimentList(data, onData) {
  const el = h("div", { class: "page" });
  const chosen = new Set();
  let order = "updated";
  let namespace = "";
  // Only a cluster's page has several.
  const places = [...new Set(data.experiments.map((each) => each.namespace).filter(Boolean))].sort();
  const filter = places.length > 1
    ? chooser("Namespace", [["", "all"], ...places.map((each) => [each, each])], "", (value) => { namespace = value; show(); })
    : null;
  const overlay = h("a", { class: "button primary small", hidden: true }, "Overlay");
  const rows = h("tbody");
  const note = h("p", { class: "note" });
  const empty = h("p", { class: "empty", hidden: true }, "There is no experiment here yet. Start one with `trialpod run experiment.yaml`, or open another folder with `trialpod ui DIR`.");
  el.append(h("div", { class: "title-row" }, h("div", { class: "title" }, h("h1", {}, "Experiments"), note),
    h("div", { class: "controls" }, overlay, filter, segmented("Order", [["updated", "newest"], ["name", "name"], ["state", "state"]], order, (value) => { order = value; show(); }))),
  h("section", { class: "card", "aria-label": "Experiments" }, empty, h("div", { class: "table-scroll" }, h("table", { class: "plain experiments" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Overlay")), ["Name", "State", "Why", "Trials", "Best", "Started", "Updated"].map((head) => h("th", { scope: "col" }, head)))), rows))));

  function show() {
    const list = data.experiments.filter((each) => !namespace || each.namespace === namespace).sort((a, b) => (order === "updated" ? (b.updated ?? 0) - (a.updated ?? 0) : String(a[order]).localeCompare(String(b[order]), "en", { numeric: true })));
    note.textContent = plural(list.length, "experiment");
    empty.hidden = list.length > 0;
    fill(rows, list.map((each) => h("tr", {},
      h("td", {}, h("input", { type: "checkbox", checked: chosen.has(each.id), "aria-label": `Overlay ${each.name}`, onchange: (event) => { if (event.target.checked) chosen.add(each.id); else chosen.delete(each.id); overlayLink(); } })),
      h("td", {}, h("a", { class: "strong", href: address.experimentUrl(each.id) }, each.name), each.namespace ? h("div", { class: "soft" }, each.namespace) : null),
      h("td", {}, h("span", { class: `pill tone-${toneOf(each.state)}` }, each.state)),
      h("td", { class: "why" }, each.reason || "–"),
      h("td", {}, h("div", {}, count(each.trials)), h("ul", { class: "counts inline" }, Object.entries(each.counts ?? {}).filter(([, n]) => n).map(([state, n]) => h("li", { title: STATES[state]?.label ?? state }, icon(state), h("span", { class: "visually-hidden" }, STATES[state]?.label ?? state), count(n))))),
      h("td", {}, each.best ? [h("strong", {}, number(num(each.best.value))), h("div", { class: "soft" }, `${each.metric} (${each.mode})`)] : "–"),
      h("td", {}, clock(each.started)), h("td", {}, ago(each.updated)))));
    overlayLink();
  }
  function overlayLink() {
    overlay.hidden = chosen.size < 2;
    overlay.textContent = `Overlay ${chosen.size}`;
    overlay.href = `#/overlay?${new URLSearchParams([...chosen].map((id) => ["id", id]))}`;
  }
  const timer = setInterval(async () => {
    try {
      data = await get("experiments");
      onData(null);
      if (!rows.contains(document.activeElement)) show();
    } catch (error) {
      onData(error);
    }
  }, POLL_MS);
  show();
  return { el, update() {}, destroy: () => clearInterval(timer) };
}

/** Best so far of several experiments. */
export function overlay(ids) {
  let byTime = false;
  let series = [];
  const view = figure({
    title: "Best value so far", wide: true, level: "h2",
    controls: [segmented("Horizontal axis", [["trials", "trials ended"], ["time", "time"]], "trials", (value) => {
      byTime = value === "time";
      plot.configure({ xValue: byTime ? duration : number, xLabel: byTime ? "time since the start" : "trials ended" });
      update();
    })],
    table: () => ({ heads: ["Experiment", "Trials", "Metric", "Best", "Found after"], rows: series.map((each) => [each.name, count(each.n), `${each.metric} (${each.mode})`, number(each.points.at(-1)?.y), each.points.length ? `${each.points.at(-1).n} trials` : "–"]) }),
  });
  const legend = h("ul", { class: "legend" });
  view.el.append(legend);
  const x = (point) => (byTime ? point.time : point.n);
  const plot = new Plot(view.host, {
    label: "Best value so far of several experiments", height: 420, xLabel: "trials ended",
    bounds() {
      const horizontal = padded(series.flatMap((each) => [...each.points.map(x), byTime ? each.length : each.n]), false, 0.02);
      const vertical = padded(series.flatMap((each) => each.points.map((point) => point.y)), false);
      return horizontal && vertical ? [...horizontal, ...vertical] : null;
    },
    draw(ctx, frame) {
      series.forEach(({ points, n, length }, index) => {
        if (!points.length) return;
        ctx.strokeStyle = lineColor(index);
        ctx.lineWidth = 2.2 * frame.ratio;
        ctx.setLineDash(index >= 8 ? [7 * frame.ratio, 4 * frame.ratio] : []);
        ctx.beginPath();
        points.forEach((point, at) => {
          if (at) ctx.lineTo(frame.toX(x(point)), frame.toY(points[at - 1].y));
          ctx[at ? "lineTo" : "moveTo"](frame.toX(x(point)), frame.toY(point.y));
        });
        ctx.lineTo(frame.toX(byTime ? length : n), frame.toY(points.at(-1).y));
        ctx.stroke();
      });
      ctx.setLineDash([]);
    },
  });
  async function load() {
    const found = await Promise.allSettled(ids.map(async (id) => [await get(experimentPath(id)), await get(experimentPath(id, "/trials"))]));
    series = found.filter((each) => each.status === "fulfilled").map(({ value: [header, data] }) => {
      const sign = header.mode === "min" ? -1 : 1;
      const rows = data.trials.filter((row) => Number.isFinite(num(row.best))).sort((a, b) => (a.ended ?? Infinity) - (b.ended ?? Infinity) || a.number - b.number);
      const started = header.started ?? 0;
      const points = [];
      let length = 0;
      rows.forEach((row, index) => {
        const time = (row.ended ?? header.updated ?? started) - started;
        length = Math.max(length, time);
        const y = num(row.best);
        if (!points.length || sign * (y - points.at(-1).y) > 0) points.push({ n: index + 1, time, y });
      });
      return { id: header.id, name: header.name, metric: header.metric, mode: header.mode, n: rows.length, length, points };
    });
    update();
    const failed = found.length - series.length;
    if (failed) view.sentence(`${plural(failed, "experiment")} could not be read.`);
  }
  function update() {
    plot.update();
    const metrics = new Set(series.map((each) => `${each.metric} (${each.mode})`));
    view.sentence(series.length ? `${series.map((each) => `${each.name} ${number(each.points.at(-1)?.y)}`).join(", ")}${metrics.size > 1 ? ". They have different metrics: compare the shapes, not the values" : ""}.` : "Reading …");
    fill(legend, series.map((each, index) => h("li", {}, h("a", { class: "legend-item", href: address.experimentUrl(each.id) }, swatch(index), each.name, h("span", { class: "soft" }, number(each.points.at(-1)?.y))))));
    view.refreshTable();
  }
  load();
  return { el: h("div", { class: "page" }, h("h1", {}, plural(ids.length, "experiment")), view.el), update() {}, destroy: () => plot.destroy() };
}
