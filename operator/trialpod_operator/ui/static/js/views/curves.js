/** Learning curves: the best or the selected trials in colour over all others in grey, with the scheduler's rungs. */

import * as address from "../address.js";
import { experimentPath, get } from "../api.js";
import { after, atMostEvery, chooser, fill, h } from "../dom.js";
import { figure } from "../figure.js";
import { count, duration, num, number, plural } from "../format.js";
import { mark, padded, Plot } from "../plot.js";
import { costName } from "../states.js";
import { color, lineColor } from "../theme.js";

const TOP = 8;
const MAX_GREY = 2000;
const MAX_LABELS = 10;
const AXES = ["iteration", "time", "cost"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/** Reads curves into `{trial: {x, y}}`. Values that are not numbers become NaN, and make a gap. */
export async function readCurves(store, { metric, x, points, trials, after }) {
  const query = new URLSearchParams({ metric, x, points: String(points) });
  if (trials) query.set("trials", trials.join(","));
  if (after !== undefined && after !== null) query.set("after", String(after));
  const data = await get(experimentPath(store.id, `/curves?${query}`));
  const curves = new Map();
  for (const [id, curve] of Object.entries(data.curves)) {
    curves.set(id, { x: Float64Array.from(curve.x, (v) => num(v) ?? NaN), y: Float64Array.from(curve.y, (v) => num(v) ?? NaN), full: curve.full });
  }
  return { cursor: data.cursor, curves };
}

export function curves(store, { only = null, title = "Learning curves", height = 280, wide = false } = {}) {
  let data = new Map();
  let cursor;
  let loaded = false;
  let problem = null;
  let highlighted = null;
  const metric = () => store.option("curves.metric", store.header.metric ?? store.header.metrics?.[0]);
  const axis = () => store.option("curves.x", "iteration");
  const axisName = (which) => (which === "cost" ? costName(store.header).replace("Trial", "trial") : which);
  const logX = () => store.option("curves.logx") === "1";
  const logY = () => store.option("curves.logy") === "1";
  const names = [...new Set([store.header.metric, ...(store.header.metrics ?? [])])].filter(Boolean);
  const controls = [
    names.length > 1 ? chooser("Metric", names.map((name) => [name, name]), metric(), (value) => { store.setOption("curves.metric", value); restart(); }) : null,
    chooser("over", AXES.map((each) => [each, axisName(each)]), axis(), (value) => { store.setOption("curves.x", value); restart(); }),
    chooser("axes", [["", "linear"], ["x", "log x"], ["y", "log y"], ["xy", "log both"]], `${logX() ? "x" : ""}${logY() ? "y" : ""}`, (value) => {
      store.setOption("curves.logx", value.includes("x") ? "1" : null);
      store.setOption("curves.logy", value.includes("y") ? "1" : null);
      plot.configure(axes());
      update();
    }),
  ];
  const view = figure({
    title, controls, wide,
    table: () => ({
      heads: ["Trial", "Points", "First", "Last", "Best", "At"],
      rows: rows().filter((row) => data.has(row.id)).map((row) => {
        const { x, y } = data.get(row.id);
        let best = -1;
        y.forEach((value, index) => { if (Number.isFinite(value) && (best < 0 || store.sign * (value - y[best]) > 0)) best = index; });
        return [String(row.number), String(y.length), number(y[0]), number(y[y.length - 1]), best < 0 ? "–" : number(y[best]), best < 0 ? "–" : xText(x[best])];
      }),
    }),
  });
  const legend = h("ul", { class: "legend", "aria-label": "Trials in colour" });
  const xText = (value) => (axis() === "iteration" ? number(value) : duration(value));

  const rows = () => (only ? only.map((id) => store.rows.get(id)).filter(Boolean) : store.visible());

  /** The trials in colour: those compared, the selected ones, or the best. */
  function colored() {
    if (only) return rows();
    const chosen = rows().filter((row) => store.selection.has(row.id));
    return chosen.length ? chosen.slice(0, 16) : store.ranked().slice(0, TOP);
  }

  function axes() {
    return { xLog: logX(), yLog: logY(), xValue: xText, xLabel: axisName(axis()), xWhole: axis() === "iteration" };
  }

  function bounds() {
    const xs = [];
    const ys = [];
    for (const row of rows()) {
      const curve = data.get(row.id);
      if (!curve?.x.length) continue;
      xs.push(curve.x[0], curve.x[curve.x.length - 1]);
      for (const value of curve.y) if (Number.isFinite(value)) ys.push(value);
    }
    if (!ys.length) return null;
    let x = padded(xs, logX(), 0.02);
    if (x && axis() === "iteration" && x[1] - x[0] < 1) x = [Math.max(0.5, x[0] - 0.5), x[1] + 0.5];
    // A few diverging trials would press all others onto one line: the 1st to the 99th percentile counts, and the best.
    let y = padded(ys, logY());
    if (ys.length > 400 && y) {
      ys.sort((a, b) => a - b);
      const low = ys[Math.floor(ys.length * 0.01)];
      const high = ys[Math.floor(ys.length * 0.99)];
      const best = store.sign > 0 ? ys.at(-1) : ys[0];
      y = padded([low, high, best], logY()) ?? y;
    }
    return x && y ? [...x, ...y] : null;
  }

  function trace(ctx, frame, { x, y }) {
    ctx.beginPath();
    let gap = true;
    for (let i = 0; i < x.length; i += 1) {
      const py = frame.toY(y[i]);
      const px = frame.toX(x[i]);
      if (!Number.isFinite(py) || !Number.isFinite(px)) { gap = true; continue; }
      if (i && x[i] <= x[i - 1]) gap = true; // it continued from a checkpoint of another trial, or of its own
      if (gap) ctx.moveTo(px, py);
      else ctx.lineTo(px, py);
      gap = false;
    }
    ctx.stroke();
  }

  function draw(ctx, frame) {
    const { ratio } = frame;
    if (axis() === "iteration") {
      ctx.strokeStyle = color("--ink-faint");
      ctx.fillStyle = color("--ink-soft");
      ctx.font = `${10 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 4 * ratio]);
      for (const rung of store.header.rungs ?? []) {
        const x = Math.round(frame.toX(rung));
        if (x < frame.left || x > frame.left + frame.width) continue;
        ctx.beginPath();
        ctx.moveTo(x, frame.top);
        ctx.lineTo(x, frame.top + frame.height);
        ctx.stroke();
        ctx.save();
        ctx.translate(x - 4 * ratio, frame.top + 4 * ratio);
        ctx.rotate(-Math.PI / 2);
        ctx.fillText(`rung ${rung}`, 0, 0);
        ctx.restore();
      }
      ctx.setLineDash([]);
    }
    const top = colored();
    const inColor = new Set(top.map((row) => row.id));
    const rest = rows().filter((row) => !inColor.has(row.id) && data.has(row.id));
    const step = Math.max(1, rest.length / MAX_GREY);
    ctx.lineWidth = ratio;
    for (let at = 0; at < rest.length; at += step) {
      const row = rest[Math.floor(at)];
      ctx.globalAlpha = rest.length > 300 ? 0.35 : 0.75;
      ctx.strokeStyle = color(row.shown === "STOPPED" ? "--line-faint" : "--line-grey");
      trace(ctx, frame, data.get(row.id));
    }
    ctx.globalAlpha = 1;
    const labels = [];
    [...top].reverse().forEach((row) => {
      const curve = data.get(row.id);
      if (!curve?.x.length) return;
      const index = top.indexOf(row);
      ctx.strokeStyle = lineColor(index);
      ctx.lineWidth = (row.id === highlighted ? 4 : 2) * ratio;
      ctx.globalAlpha = highlighted && row.id !== highlighted ? 0.35 : 1;
      ctx.setLineDash(DASHES[Math.floor(index / 8) % DASHES.length].map((part) => part * ratio));
      trace(ctx, frame, curve);
      ctx.setLineDash([]);
      const last = curve.y.findLastIndex((value) => Number.isFinite(value));
      if (last < 0) return;
      const [x, y] = [frame.toX(curve.x[last]), frame.toY(curve.y[last])];
      ctx.fillStyle = lineColor(index);
      mark(ctx, row.shown, x, y, 3 * ratio);
      labels.push({ x, y, words: `${row.number}`, fill: lineColor(index) });
    });
    ctx.globalAlpha = 1;
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    let before = -Infinity;
    for (const label of labels.sort((a, b) => a.y - b.y).slice(0, MAX_LABELS)) {
      if (label.y - before < 11 * ratio) continue;
      before = label.y;
      const right = label.x > frame.left + frame.width - 34 * ratio;
      ctx.textAlign = right ? "right" : "left";
      ctx.lineWidth = 3 * ratio;
      ctx.strokeStyle = color("--card");
      const x = label.x + (right ? -7 : 7) * ratio;
      const y = Math.max(label.y - (right ? 8 * ratio : 0), frame.top + 6 * ratio);
      ctx.strokeText(label.words, x, y);
      ctx.fillStyle = label.fill;
      ctx.fillText(label.words, x, y);
    }
  }

  function nearest(frame, x, y) {
    const [px, py] = [x * frame.ratio + frame.left, y * frame.ratio + frame.top];
    let found = null;
    const look = (list, within) => {
      let distance = within * frame.ratio;
      for (const row of list) {
        const curve = data.get(row.id);
        if (!curve?.x.length) continue;
        for (let i = nearIndex(curve.x, frame, px), end = Math.min(curve.x.length, i + 2); i < end; i += 1) {
          const d = Math.hypot(frame.toX(curve.x[i]) - px, frame.toY(curve.y[i]) - py);
          if (d < distance) { distance = d; found = { row, x: curve.x[i], y: curve.y[i] }; }
        }
      }
    };
    look(colored(), 26);
    if (!found && rows().length <= 2000) look(rows(), 14);
    return found;
  }

  function nearIndex(list, frame, px) {
    let low = 0;
    let high = list.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (frame.toX(list[middle]) <= px) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  const plot = new Plot(view.host, {
    label: "Learning curves", bounds, draw, height, ...axes(),
    hover(frame, x, y) {
      const found = nearest(frame, x, y);
      if (!found) return null;
      return {
        x: (frame.toX(found.x) - frame.left) / frame.ratio, y: (frame.toY(found.y) - frame.top) / frame.ratio,
        lines: [`Trial ${found.row.number}`, `${metric()}: ${number(found.y)}`, `${axisName(axis())}: ${xText(found.x)}`],
      };
    },
    click(frame, x, y) {
      const found = nearest(frame, x, y);
      if (found) location.hash = address.trialUrl(store.id, found.row.id);
    },
  });
  view.el.append(legend);

  async function load() {
    if (!metric()) return;
    const asked = [metric(), axis()].join();
    const size = only ? only.length : store.rows.size;
    const points = only && size <= 20 ? 2000 : size > 3000 ? 24 : size > 500 ? 80 : 200;
    try {
      const answer = await readCurves(store, { metric: metric(), x: axis(), points, trials: only, after: only ? undefined : cursor });
      if (stopped || asked !== [metric(), axis()].join()) return;
      if (only || cursor === undefined || runOf(cursor) !== runOf(answer.cursor)) data = answer.curves;
      else for (const [id, curve] of answer.curves) data.set(id, curve);
      cursor = answer.cursor;
      problem = null;
    } catch (error) {
      problem = error.message;
    }
    loaded = true;
    update();
  }

  /** Returns what a cursor's experiment has for itself: another one may have taken its place. */
  const runOf = (at) => String(at).split(".")[0];

  /** Returns how many trials' curves are still rough, because the server reads their files. */
  const unread = () => (only ? 0 : Math.min(store.header.loading ?? 0, store.rows.size));

  function restart() {
    cursor = undefined;
    data = new Map();
    loaded = false;
    plot.configure(axes());
    update();
    load();
  }

  function update() {
    if (stopped) return;
    plot.update();
    const top = colored();
    const drawn = rows().filter((row) => data.get(row.id)?.x.length).length;
    const early = rows().filter((row) => row.shown === "STOPPED").length;
    const rungs = store.header.rungs ?? [];
    if (problem) view.sentence(`The curves could not be read: ${problem}`);
    else if (!metric()) view.sentence("No trial has reported a metric yet.");
    else if (!loaded) view.sentence("Reading the curves …");
    else if (!drawn && unread()) view.sentence(`Reading the curves: ${count(store.rows.size - unread())} of ${plural(store.rows.size, "trial")} …`);
    else if (!drawn) view.sentence("No trial has reported this metric yet.");
    else {
      view.sentence(`${metric()} of ${plural(drawn, "trial")}`
        + (only ? "" : `; the ${store.selection.size ? "selected" : "best"} ${count(top.length)} in colour`)
        + (early ? `, ${count(early)} stopped early` : "")
        + (rungs.length && axis() === "iteration" ? `; the scheduler judges at ${rungs.slice(0, 8).join(", ")}${rungs.length > 8 ? " …" : ""}` : "")
        + (drawn - top.length > MAX_GREY ? `; ${count(MAX_GREY)} of the others are drawn` : "")
        + (unread() ? `; ${count(store.rows.size - unread())} of ${count(store.rows.size)} are read, the others are rough` : "") + ".");
    }
    view.progress(store.rows.size - unread(), loaded && !problem ? store.rows.size : 0);
    fill(legend, top.filter((row) => data.get(row.id)?.x.length).map((row, index) => h("li", {}, h("button", {
      type: "button", class: "legend-item", onclick: () => { location.hash = address.trialUrl(store.id, row.id); },
      onpointerenter: () => light(row.id), onpointerleave: () => light(null), onfocus: () => light(row.id), onblur: () => light(null),
      "aria-label": `Trial ${row.number}: ${metric()} ${number(row.value)}; open it`,
    }, swatch(index), `${row.number}`, h("span", { class: "soft" }, metric() === store.header.metric ? number(row.value) : number(num(row.metrics?.[metric()])))))));
    view.refreshTable();
  }

  function light(id) {
    highlighted = id;
    plot.u.redraw(false);
  }

  let stopped = false;
  const more = atMostEvery(2000, load);
  // Thousands of curves do not follow every step of a brush: they wait until the hand rests.
  const updateLater = after(150, update);
  let before = unread();
  load();
  return {
    el: view.el,
    loads: true,
    update(what) {
      if (what === "header") {
        if (unread() || before) more();
        before = unread();
        return;
      }
      if (what === "rows") { more(); return; }
      if (what === "view") return;
      if (what === "filter" && store.rows.size > 500) updateLater();
      else update();
    },
    refresh: () => { cursor = undefined; load(); },
    destroy() { stopped = true; plot.destroy(); },
  };
}

export function swatch(index) {
  return h("span", { class: `swatch line-${(index % 8) + 1}`, "aria-hidden": "true" });
}

