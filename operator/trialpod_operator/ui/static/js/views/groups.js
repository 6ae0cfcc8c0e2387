/** Trials grouped by all parameters but the seed: mean, spread and count of the metric, and a band of curves for each. */

import { atMostEvery, fill, h } from "../dom.js";
import { figure, plainTable } from "../figure.js";
import { number, plural, text } from "../format.js";
import { padded, Plot } from "../plot.js";
import { lineColor } from "../theme.js";
import { readCurves, swatch } from "./curves.js";

const SHOWN = 6;

export function groups(store) {
  const seeds = /(^|[._-])(seed|random_state|repeat|replicate|fold)$/i;
  let data = new Map();
  let stopped = false;
  let list = [];
  const boxes = h("fieldset", { class: "card choices" });
  const tablePlace = h("section", { class: "card", "aria-label": "Groups" });
  const view = figure({
    title: "Mean and range of each group", wide: true,
    table: () => ({ heads: ["Group", "Trials", "Mean", "Least", "Most"], rows: list.map((group) => [group.label, String(group.rows.length), number(group.mean), number(group.min), number(group.max)]) }),
  });
  const legend = h("ul", { class: "legend" });
  view.el.append(legend);

  const chosen = () => {
    const option = store.option("groups", null);
    const columns = store.varying();
    if (option !== null) return columns.filter((column) => option.split("|").includes(column.key));
    return columns.filter((column) => !seeds.test(column.label));
  };

  function build() {
    const by = chosen();
    const keys = new Set(by.map((column) => column.key));
    if (!boxes.contains(document.activeElement)) {
      fill(boxes, h("legend", {}, "Group by"), store.varying().map((column) => h("label", { class: "check" }, h("input", {
        type: "checkbox", checked: keys.has(column.key),
        onchange: (event) => {
          const now = new Set(chosen().map((each) => each.key));
          if (event.target.checked) now.add(column.key); else now.delete(column.key);
          store.setOption("groups", [...now].join("|") || "none");
          build();
        },
      }), column.label)));
    }
    const found = new Map();
    for (const row of store.visible()) {
      const key = JSON.stringify(by.map((column) => column.get(row)));
      if (!found.has(key)) found.set(key, { key, rows: [], values: by.map((column) => column.get(row)) });
      found.get(key).rows.push(row);
    }
    list = [...found.values()].map((group) => {
      const values = group.rows.map((row) => row.value).filter(Number.isFinite);
      const mean = values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
      const min = values.reduce((a, b) => Math.min(a, b), Infinity);
      const max = values.reduce((a, b) => Math.max(a, b), -Infinity);
      return { ...group, mean, min: values.length ? min : NaN, max: values.length ? max : NaN, label: by.map((column, index) => `${column.label}=${text(group.values[index] ?? "none")}`).join(", ") || "all trials" };
    }).sort((a, b) => Number.isNaN(a.mean) - Number.isNaN(b.mean) || store.sign * (b.mean - a.mean));
    fill(tablePlace, h("h3", {}, "Groups"), plainTable([...by.map((column) => column.label), "Trials", `Mean ${store.header.metric ?? ""}`, "Least", "Most"],
      list.slice(0, 200).map((group) => [...group.values.map((value) => text(value ?? "none")), String(group.rows.length), number(group.mean), number(group.min), number(group.max)]), "Groups"));
    bands = list.slice(0, SHOWN).map(bandOf);
    plot.update();
    const repeated = list.filter((group) => group.rows.length > 1).length;
    view.sentence(`${plural(list.length, "group")}, ${repeated} of them with more than one trial; the best mean is ${list.length ? number(list[0].mean) : "–"}. The ${Math.min(SHOWN, list.length)} best are drawn: mean as a line, least to most as a band.`);
    fill(legend, bands.map((_, index) => h("li", { class: "legend-item" }, swatch(index), h("span", { class: "clip" }, list[index].label))));
    view.refreshTable();
  }

  let bands = [];
  function bandOf(group) {
    const at = new Map();
    for (const row of group.rows) {
      const curve = data.get(row.id);
      curve?.x.forEach((x, index) => {
        const y = curve.y[index];
        if (!Number.isFinite(y)) return;
        const cell = at.get(x);
        if (!cell) at.set(x, { n: 1, sum: y, min: y, max: y });
        else { cell.n += 1; cell.sum += y; cell.min = Math.min(cell.min, y); cell.max = Math.max(cell.max, y); }
      });
    }
    return [...at].sort((a, b) => a[0] - b[0]).map(([x, cell]) => ({ x, mean: cell.sum / cell.n, min: cell.min, max: cell.max }));
  }

  const plot = new Plot(view.host, {
    label: "Mean curves of groups", height: 300, xLabel: "iteration", xWhole: true,
    bounds() {
      const x = padded(bands.flatMap((band) => band.map((point) => point.x)), false, 0.02);
      const y = padded(bands.flatMap((band) => band.flatMap((point) => [point.min, point.max])), false);
      return x && y ? [...x, ...y] : null;
    },
    draw(ctx, frame) {
      bands.forEach((band, index) => {
        if (!band.length) return;
        ctx.fillStyle = lineColor(index);
        ctx.strokeStyle = lineColor(index);
        ctx.globalAlpha = 0.16;
        ctx.beginPath();
        band.forEach((point) => ctx.lineTo(frame.toX(point.x), frame.toY(point.max)));
        [...band].reverse().forEach((point) => ctx.lineTo(frame.toX(point.x), frame.toY(point.min)));
        ctx.fill();
        ctx.globalAlpha = 1;
        ctx.lineWidth = 2 * frame.ratio;
        ctx.beginPath();
        band.forEach((point) => ctx.lineTo(frame.toX(point.x), frame.toY(point.mean)));
        ctx.stroke();
      });
    },
  });

  async function load() {
    if (!store.header.metric) return;
    try {
      data = (await readCurves(store, { metric: store.header.metric, x: "iteration", points: store.rows.size > 3000 ? 24 : 200 })).curves;
    } catch (error) {
      view.sentence(`The curves could not be read: ${error.message}`);
      return;
    }
    if (!stopped) build();
  }
  const again = atMostEvery(3000, load);
  build();
  load();
  return {
    el: h("div", { class: "stack wide" }, boxes, view.el, tablePlace),
    update(what) { if (what === "rows") again(); else if (what === "filter") build(); },
    destroy() { stopped = true; plot.destroy(); },
  };
}
