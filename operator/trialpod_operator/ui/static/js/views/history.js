/** The metric of each trial over its number or the time, and the best value so far as a line. */

import * as address from "../address.js";
import { chooser } from "../dom.js";
import { figure } from "../figure.js";
import { clock, duration, number, plural } from "../format.js";
import { mark, padded, Plot } from "../plot.js";
import { STATES } from "../states.js";
import { color } from "../theme.js";

export function history(store) {
  const axis = chooser("over", [["number", "trial"], ["time", "time"]], store.option("history.x", "number"), (value) => {
    store.setOption("history.x", value);
    plot.configure(axes());
    update();
  });
  const scale = chooser("axis", [["linear", "linear"], ["log", "log y"]], store.option("history.y", "linear"), (value) => {
    store.setOption("history.y", value);
    plot.configure(axes());
    update();
  });
  const view = figure({
    title: `History of ${store.header.metric ?? "the metric"}`, controls: [axis, scale],
    table: () => {
      const steps = bestSoFar();
      return {
        heads: ["Trial", "State", store.header.metric ?? "value", "Best so far", "Ended"],
        rows: steps.all.map(({ row, best }) => [String(row.number), STATES[row.shown]?.label ?? row.state, number(row.value), number(best), clock(row.ended)]),
      };
    },
  });

  const byTime = () => store.option("history.x", "number") === "time";
  const log = () => store.option("history.y", "linear") === "log";
  const start = () => store.header.started ?? Math.min(...store.all().map((row) => row.started ?? Infinity));
  const xOf = (row) => (byTime() ? (row.ended ?? row.started ?? NaN) - start() : row.number);

  function bestSoFar() {
    let best = null;
    const points = [];
    const all = [];
    const list = byTime() ? [...store.visible()].sort((a, b) => xOf(a) - xOf(b)) : store.visible();
    for (const row of list) {
      if (Number.isFinite(row.value) && (best === null || store.sign * (row.value - best) > 0)) {
        best = row.value;
        points.push({ x: xOf(row), y: best, row });
      }
      all.push({ row, best });
    }
    return { points, all };
  }

  function axes() {
    return { yLog: log(), xValue: byTime() ? duration : number, xLabel: byTime() ? "time since the start" : "trial", xWhole: !byTime() };
  }

  function bounds() {
    const rows = store.visible();
    const x = padded(rows.map(xOf), false, 0.02);
    const y = padded(rows.map((row) => row.value), log(), 0.06);
    return x && y ? [...x, ...y] : null;
  }

  function draw(ctx, frame) {
    const rows = store.visible();
    const many = rows.length > 1500;
    const radius = (many ? 1.8 : rows.length > 300 ? 2.6 : 3.6) * frame.ratio;
    ctx.globalAlpha = many ? 0.45 : 0.8;
    for (const row of rows) {
      const x = frame.toX(xOf(row));
      if (!Number.isFinite(row.value)) {
        if (row.shown === "ERROR" && Number.isFinite(x)) {
          ctx.fillStyle = color("--error");
          mark(ctx, "ERROR", x, frame.top + frame.height - 5 * frame.ratio, Math.max(radius, 3 * frame.ratio));
        }
        continue;
      }
      if (log() && row.value <= 0) continue;
      ctx.fillStyle = color(STATES[row.shown]?.color ?? "--pending");
      if (many) ctx.fillRect(x - radius, frame.toY(row.value) - radius, 2 * radius, 2 * radius);
      else mark(ctx, row.shown, x, frame.toY(row.value), radius);
    }
    ctx.globalAlpha = 1;
    const { points } = bestSoFar();
    if (!points.length) return;
    ctx.strokeStyle = color("--accent");
    ctx.lineWidth = 2.2 * frame.ratio;
    ctx.lineJoin = "round";
    ctx.beginPath();
    points.forEach(({ x, y }, index) => {
      if (index) ctx.lineTo(frame.toX(x), frame.toY(points[index - 1].y));
      ctx[index ? "lineTo" : "moveTo"](frame.toX(x), frame.toY(y));
    });
    const end = Math.max(...rows.map(xOf).filter(Number.isFinite));
    ctx.lineTo(frame.toX(end), frame.toY(points.at(-1).y));
    ctx.stroke();
    ctx.fillStyle = color("--accent");
    for (const id of store.selection) {
      const row = store.rows.get(id);
      if (row && Number.isFinite(row.value)) ring(ctx, frame, row);
    }
    const top = points.at(-1);
    ctx.beginPath();
    ctx.arc(frame.toX(top.x), frame.toY(top.y), 5.5 * frame.ratio, 0, 7);
    ctx.fill();
  }

  function ring(ctx, frame, row) {
    ctx.beginPath();
    ctx.arc(frame.toX(xOf(row)), frame.toY(row.value), 7 * frame.ratio, 0, 7);
    ctx.stroke();
  }

  function nearest(frame, x, y) {
    let found = null;
    let distance = 18 * frame.ratio;
    const [px, py] = [x * frame.ratio + frame.left, y * frame.ratio + frame.top];
    for (const row of store.visible()) {
      if (!Number.isFinite(row.value)) continue;
      const d = Math.hypot(frame.toX(xOf(row)) - px, frame.toY(row.value) - py);
      if (d < distance) { distance = d; found = row; }
    }
    return found;
  }

  function hover(frame, x, y) {
    const row = nearest(frame, x, y);
    if (!row) return null;
    return {
      x: (frame.toX(xOf(row)) - frame.left) / frame.ratio, y: (frame.toY(row.value) - frame.top) / frame.ratio,
      lines: [`Trial ${row.number}`, `${store.header.metric}: ${number(row.value)}`, STATES[row.shown]?.label ?? row.state],
    };
  }

  const plot = new Plot(view.host, {
    label: `History of ${store.header.metric}`, bounds, draw, hover,
    click: (frame, x, y) => { const row = nearest(frame, x, y); if (row) location.hash = address.trialUrl(store.id, row.id); },
    ...axes(),
  });

  function update() {
    plot.update();
    const { points } = bestSoFar();
    const measured = store.visible().filter((row) => Number.isFinite(row.value)).length;
    const failed = store.visible().filter((row) => row.shown === "ERROR").length;
    view.sentence(points.length
      ? `The best of ${plural(measured, "measured trial")} is ${number(points.at(-1).y)}, found at trial ${points.at(-1).row.number}${failed ? `; ${plural(failed, "trial")} failed` : ""}.`
      : "No trial has a value yet.");
    view.refreshTable();
  }
  update();
  return { el: view.el, update: (what) => (what === "selection" ? plot.u.redraw(false) : update()), destroy: () => plot.destroy() };
}
