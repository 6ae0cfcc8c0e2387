/** Several objectives against each other: every trial a point, and the front of those that nothing else beats. */

import * as address from "../address.js";
import { chooser } from "../dom.js";
import { figure } from "../figure.js";
import { number, plural } from "../format.js";
import { mark, padded, Plot } from "../plot.js";
import { color } from "../theme.js";

/** Tells whether an experiment has several objectives. */
export const hasFront = (store) => (store.header.objectives ?? []).length > 1;

export function front(store, { height = 300 } = {}) {
  const objectives = store.header.objectives;
  const names = objectives.map((each) => each.name);
  const chosen = (axis, fallback) => { const name = store.option(`front.${axis}`, fallback); return names.includes(name) ? name : fallback; };
  const choose = (axis, fallback) => chooser(axis === "x" ? "Across" : "Up", names.map((name) => [name, name]), chosen(axis, fallback), (value) => {
    store.setOption(`front.${axis}`, value);
    plot.configure(labels());
    update("view");
  });
  const view = figure({
    title: names.length > 2 ? "Trade-off" : `Trade-off: ${names[1]} over ${names[0]}`, wide: true,
    controls: names.length > 2 ? [choose("x", names[0]), choose("y", names[1])] : [],
    table: () => ({
      heads: ["Trial", ...objectives.map((each) => `${each.name} (${each.mode})`), "On the front"],
      rows: usable().map((row) => [String(row.number), ...names.map((name) => number(valueOf(store, row, name))), onFront().has(row.id) ? "yes" : "no"]),
    }),
  });
  const x = () => chosen("x", names[0]);
  const y = () => chosen("y", names[1]);
  const labels = () => ({ label: `${y()} over ${x()}`, xLabel: x() });
  const onFront = () => new Set(store.header.front ?? []);
  const usable = () => store.visible().filter((row) => Number.isFinite(valueOf(store, row, x())) && Number.isFinite(valueOf(store, row, y())));
  const thresholdOf = (name) => objectives.find((each) => each.name === name).threshold;

  function bounds() {
    const rows = usable();
    const across = padded([...rows.map((row) => valueOf(store, row, x())), thresholdOf(x()) ?? NaN], false, 0.06);
    const up = padded([...rows.map((row) => valueOf(store, row, y())), thresholdOf(y()) ?? NaN], false, 0.08);
    return rows.length && across && up ? [...across, ...up] : null;
  }

  function draw(ctx, frame) {
    const rows = usable();
    const best = onFront();
    const place = (row) => [frame.toX(valueOf(store, row, x())), frame.toY(valueOf(store, row, y()))];
    thresholds(ctx, frame);
    ctx.globalAlpha = rows.length > 1000 ? 0.45 : 0.75;
    ctx.fillStyle = color("--ink-soft");
    for (const row of rows) if (!best.has(row.id)) mark(ctx, row.shown, ...place(row), (rows.length > 1000 ? 1.8 : 3) * frame.ratio);
    ctx.globalAlpha = 1;
    const leaders = rows.filter((row) => best.has(row.id)).map(place).sort((a, b) => a[0] - b[0]);
    ctx.strokeStyle = ctx.fillStyle = color("--accent");
    // Between two points of the front nothing better is known: a line would promise what no trial has shown.
    if (names.length === 2 && leaders.length > 1) {
      const [worseX, worseY] = objectives.map((each) => (each.mode === "max" ? Math.min : Math.max));
      ctx.lineWidth = 1.5 * frame.ratio;
      ctx.beginPath();
      ctx.moveTo(...leaders[0]);
      for (let index = 1; index < leaders.length; index += 1) {
        const [before, now] = [leaders[index - 1], leaders[index]];
        // Canvas pixels grow downwards, so what is worse upwards is the larger one.
        ctx.lineTo(worseX(before[0], now[0]), -worseY(-before[1], -now[1]));
        ctx.lineTo(...now);
      }
      ctx.stroke();
    }
    for (const [atX, atY] of leaders) {
      ctx.beginPath();
      ctx.arc(atX, atY, 5 * frame.ratio, 0, 7);
      ctx.fill();
    }
  }

  function thresholds(ctx, frame) {
    ctx.save();
    ctx.strokeStyle = color("--error");
    ctx.setLineDash([5 * frame.ratio, 4 * frame.ratio]);
    ctx.lineWidth = frame.ratio;
    for (const [name, upright] of [[x(), true], [y(), false]]) {
      const limit = thresholdOf(name);
      if (limit === null || limit === undefined) continue;
      ctx.beginPath();
      if (upright) { ctx.moveTo(frame.toX(limit), frame.top); ctx.lineTo(frame.toX(limit), frame.top + frame.height); }
      else { ctx.moveTo(frame.left, frame.toY(limit)); ctx.lineTo(frame.left + frame.width, frame.toY(limit)); }
      ctx.stroke();
    }
    ctx.restore();
  }

  function nearest(frame, atX, atY) {
    let found = null;
    let distance = 14 * frame.ratio;
    for (const row of usable()) {
      const d = Math.hypot(frame.toX(valueOf(store, row, x())) - atX * frame.ratio - frame.left, frame.toY(valueOf(store, row, y())) - atY * frame.ratio - frame.top);
      if (d < distance) { distance = d; found = row; }
    }
    return found;
  }

  const plot = new Plot(view.host, {
    ...labels(), bounds, draw, height,
    hover(frame, atX, atY) {
      const row = nearest(frame, atX, atY);
      return row && {
        x: (frame.toX(valueOf(store, row, x())) - frame.left) / frame.ratio, y: (frame.toY(valueOf(store, row, y())) - frame.top) / frame.ratio,
        lines: [`Trial ${row.number}${onFront().has(row.id) ? ", on the front" : ""}`, ...names.map((name) => `${name}: ${number(valueOf(store, row, name))}`)],
      };
    },
    click: (frame, atX, atY) => { const row = nearest(frame, atX, atY); if (row) location.hash = address.trialUrl(store.id, row.id); },
  });

  function update(what) {
    if (what === "selection") return;
    plot.update();
    const all = onFront().size;
    const limits = objectives.filter((each) => each.threshold !== null && each.threshold !== undefined);
    const wanted = objectives.map((each) => `${each.mode === "min" ? "low" : "high"} ${each.name}`).join(" and ");
    view.sentence(all
      ? `${plural(all, "trial")} on the front: no other is at least as good in everything and better in something (${wanted}${limits.length ? "; dashed: the thresholds" : ""}).`
      : `No trial is on the front yet (${wanted}${limits.length ? ", within the thresholds" : ""}).`);
    view.refreshTable();
  }
  update("rows");
  return { el: view.el, loads: true, update, destroy: () => plot.destroy() };
}

/** Returns the latest finite value of an objective in a trial. */
function valueOf(store, row, name) {
  const value = name === store.header.metric ? row.value : row.metrics?.[name];
  return typeof value === "number" ? value : NaN;
}
