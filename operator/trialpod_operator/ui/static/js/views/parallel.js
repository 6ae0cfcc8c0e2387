/**
 * Parallel coordinates: an axis for each parameter and the metric, a line for each trial. Brushing an axis filters every
 * view. A trial that has no value for a parameter passes its axis at "none", it is not left out.
 */

import * as address from "../address.js";
import { atMostEvery, fill, h, perFrame, toggle } from "../dom.js";
import { figure } from "../figure.js";
import { count, number, plural, text } from "../format.js";
import { inRange } from "../store.js";
import { color, onTheme, scaleColor } from "../theme.js";

const TOP = 46;
const BOTTOM = 40;
const SIDE = 70;
const MAX_AXES = 12;
const MAX_GREY = 1500;
const MAX_WHILE_DRAGGING = 800;
const MAX_CATEGORIES = 24;

export function parallel(store, { height = 380 } = {}) {
  const top = toggle("Best 10 % only", store.option("top") === "1", (on) => { store.setOption("top", on ? "1" : null); draw(); });
  const view = figure({
    title: "Parallel coordinates", wide: true, controls: [top],
    table: () => ({
      heads: ["Trial", ...axes.map((axis) => axis.column.label)],
      rows: shown().map((row) => [String(row.number), ...axes.map((axis) => text(axis.column.get(row) ?? "none"))]),
    }),
  });
  const canvas = h("canvas", { role: "img" });
  const handles = h("div", { class: "axis-handles" });
  const tip = h("div", { class: "tip", hidden: true });
  view.host.classList.add("parallel");
  view.host.append(canvas, handles, tip);
  const ctx = canvas.getContext("2d", { alpha: true });
  let axes = [];
  let lines = new Float32Array(0);
  let order = [];
  let drag = null;
  let width = 0;
  let hovered = null;

  function layout() {
    width = Math.max(320, view.host.clientWidth);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const rows = store.all();
    const chosen = store.varying().filter((column) => column.numeric || categories(rows, column).length <= MAX_CATEGORIES);
    const best = store.column("best");
    const list = [...chosen.slice(0, best ? MAX_AXES - 1 : MAX_AXES), ...(best ? [best] : [])];
    axes = list.map((column, index) => axisOf(column, rows, list.length > 1 ? SIDE + (index * (width - 2 * SIDE)) / (list.length - 1) : width / 2, height));
    left = chosen.length - (list.length - (best ? 1 : 0));
    order = store.ranked(rows).reverse();
    const ranked = new Set(order);
    order = [...rows.filter((row) => !ranked.has(row)), ...order];
    lines = new Float32Array(order.length * axes.length);
    order.forEach((row, index) => axes.forEach((axis, a) => { lines[index * axes.length + a] = axis.toY(axis.column.get(row)); }));
    showHandles();
    draw();
  }
  let left = 0;
  let handlesOf = "";

  function showHandles() {
    const now = JSON.stringify([axes.map((axis) => [axis.column.key, axis.x]), [...store.ranges.keys()]]);
    if (now === handlesOf) return;
    handlesOf = now;
    const focused = handles.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    fill(handles, axes.map((axis) => handle(axis)));
    if (focused) [...handles.children].find((each) => each.dataset.key === focused)?.focus();
  }

  function shown() {
    return store.ranked();
  }

  function draw() {
    const from = performance.now();
    ctx.clearRect(0, 0, width, height);
    if (!axes.length) return;
    const visible = store.visibleIds();
    const limit = store.option("top") === "1" ? new Set(store.ranked().slice(0, Math.max(1, Math.ceil(visible.size / 10))).map((row) => row.id)) : null;
    const passes = (row) => visible.has(row.id) && (!limit || limit.has(row.id));
    const last = axes[axes.length - 1];
    const span = height - TOP - BOTTOM;
    const colored = [];
    const grey = [];
    order.forEach((row, index) => (passes(row) ? colored : grey).push(index));
    ctx.lineWidth = 1;
    ctx.strokeStyle = color("--line-faint");
    ctx.globalAlpha = grey.length > 300 ? 0.35 : 0.7;
    for (const index of thinned(grey, drag ? 200 : MAX_GREY)) stroke(index);
    const drawn = thinned(colored, drag ? MAX_WHILE_DRAGGING : Infinity);
    ctx.globalAlpha = Math.max(0.12, Math.min(0.85, 60 / Math.sqrt(drawn.length + 1) / 4));
    ctx.lineWidth = drawn.length < 200 ? 1.6 : 1;
    const metric = last.column.key === "best";
    for (const index of drawn) {
      const share = metric && order[index].value !== null ? 1 - (lines[index * axes.length + axes.length - 1] - TOP) / span : 0;
      ctx.strokeStyle = scaleColor(Math.max(0, Math.min(1, store.sign > 0 ? share : 1 - share)));
      stroke(index);
    }
    ctx.globalAlpha = 1;
    order.forEach((row, index) => {
      if (!store.selection.has(row.id) && row.id !== hovered) return;
      ctx.lineWidth = 3;
      ctx.strokeStyle = color("--accent");
      stroke(index);
    });
    axes.forEach(drawAxis);
    if (!drag) showHandles();
    const best = drag ? null : shown()[0];
    const words = `${count(colored.length)} of ${plural(order.length, "trial")} pass${colored.length === 1 ? "es" : ""}`
      + (best ? `; the best of them is trial ${best.number} with ${store.header.metric} ${number(best.value)}` : "")
      + ". Drag along an axis, or press its name, to keep a range."
      + (left > 0 ? ` ${plural(left, "more parameter")} not drawn.` : "");
    view.sentence(words);
    canvas.setAttribute("aria-label", `Parallel coordinates. ${words}`);
    performance.measure("trialpod:parallel", { start: from, end: performance.now() });
  }

  function stroke(index) {
    const n = axes.length;
    ctx.beginPath();
    ctx.moveTo(axes[0].x, lines[index * n]);
    for (let a = 1; a < n; a += 1) ctx.lineTo(axes[a].x, lines[index * n + a]);
    ctx.stroke();
  }

  function drawAxis(axis) {
    const range = store.ranges.get(axis.column.key);
    ctx.strokeStyle = color("--ink-soft");
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(axis.x, TOP);
    ctx.lineTo(axis.x, height - BOTTOM);
    ctx.stroke();
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    for (const [position, label] of axis.ticks) {
      const words = label.length > 14 ? `${label.slice(0, 13)}…` : label;
      const wide = ctx.measureText(words).width;
      ctx.fillStyle = color("--card");
      ctx.globalAlpha = 0.78;
      ctx.fillRect(axis.x + 6, position - 8, wide + 4, 16);
      ctx.globalAlpha = 1;
      ctx.fillStyle = color("--ink");
      ctx.fillText(words, axis.x + 8, position);
      ctx.fillRect(axis.x - 3, position - 0.5, 7, 1);
    }
    if (range) {
      ctx.fillStyle = color("--accent");
      ctx.globalAlpha = 0.25;
      for (const [from, to] of axis.boxes(range)) {
        ctx.globalAlpha = 0.25;
        ctx.fillRect(axis.x - 8, from, 16, to - from);
        ctx.globalAlpha = 1;
        ctx.strokeStyle = color("--accent");
        ctx.strokeRect(axis.x - 8, from, 16, to - from);
      }
    }
  }

  /** The axis's name is a button: it opens the same range as numbers, for the keyboard and for exact values. */
  function handle(axis) {
    const { column } = axis;
    const button = h("button", {
      type: "button", class: "axis-name", "data-key": column.key, title: `${column.label}: choose a range`, onclick: () => rangeDialog(store, axes.find((each) => each.column.key === column.key)),
      "aria-label": `${column.label}: choose a range${store.ranges.has(column.key) ? " (brushed)" : ""}`,
    }, column.label, column.log ? h("small", {}, " log") : null);
    button.style.setProperty("left", `${axis.x}px`);
    return button;
  }

  function axisAt(x) {
    return axes.find((axis) => Math.abs(axis.x - x) < 16) ?? null;
  }

  canvas.addEventListener("pointerdown", (event) => {
    const axis = axisAt(event.offsetX);
    if (!axis || event.button !== 0) {
      if (hovered && event.button === 0) location.hash = address.trialUrl(store.id, hovered);
      return;
    }
    canvas.setPointerCapture(event.pointerId);
    drag = { axis, from: event.offsetY, to: event.offsetY };
  });
  const brushed = perFrame(() => {
    if (!drag) return;
    const from = drag.at;
    store.setRange(drag.axis.column.key, drag.axis.range(Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)));
    performance.measure("trialpod:brush", { start: from, end: performance.now() });
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      drag.to = event.offsetY;
      drag.at = performance.now();
      brushed();
      return;
    }
    canvas.style.setProperty("cursor", axisAt(event.offsetX) ? "row-resize" : hovered ? "pointer" : "default");
    hover(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerup", () => {
    if (!drag) return;
    const { axis, from, to } = drag;
    drag = null;
    store.setRange(axis.column.key, Math.abs(to - from) < 4 ? null : axis.range(Math.min(from, to), Math.max(from, to)));
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; if (hovered) { hovered = null; drawSoon(); } });
  const drawSoon = perFrame(draw);

  function hover(x, y) {
    let found = null;
    const right = axes.findIndex((axis) => axis.x > x);
    if (right > 0 && !axisAt(x) && order.length <= 3000) {
      const share = (x - axes[right - 1].x) / (axes[right].x - axes[right - 1].x);
      const visible = store.visibleIds();
      let nearest = 6;
      order.forEach((row, index) => {
        if (!visible.has(row.id)) return;
        const at = lines[index * axes.length + right - 1] * (1 - share) + lines[index * axes.length + right] * share;
        if (Math.abs(at - y) < nearest) { nearest = Math.abs(at - y); found = row; }
      });
    }
    if ((found?.id ?? null) === hovered) return;
    hovered = found?.id ?? null;
    tip.hidden = !found;
    if (found) {
      tip.replaceChildren(h("div", { class: "tip-head" }, `Trial ${found.number}`), ...axes.map((axis) => h("div", {}, `${axis.column.label}: ${text(axis.column.get(found) ?? "none")}`)));
      tip.classList.toggle("left", x > width * 0.6);
      tip.style.setProperty("left", `${x}px`);
      tip.style.setProperty("top", `${Math.min(y, height - 120)}px`);
    }
    drawSoon();
  }

  const layoutSoon = perFrame(layout);
  const again = atMostEvery(1000, () => { if (!stopped && !drag) layout(); });
  let stopped = false;
  const resizer = new ResizeObserver(() => { if (view.host.clientWidth !== width) layoutSoon(); });
  resizer.observe(view.host);
  const stopTheme = onTheme(drawSoon);
  layout();
  return {
    el: view.el,
    follows: true,
    update(what) {
      if (what === "rows") again();
      else if (drag) draw();
      else drawSoon();
      if (!drag) view.refreshTable();
    },
    destroy() { stopped = true; resizer.disconnect(); stopTheme(); },
  };
}

function thinned(list, most) {
  if (list.length <= most) return list;
  const step = list.length / most;
  return Array.from({ length: most }, (_, index) => list[Math.floor(index * step)]);
}

export function categories(rows, column) {
  const found = new Set();
  for (const row of rows) {
    const value = column.get(row);
    if (value !== null && value !== undefined) found.add(String(value));
    if (found.size > 200) break;
  }
  return [...found].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

/** Returns an axis: toY(value), range(y0, y1) -> what was brushed, boxes(range) -> where that is, ticks. */
function axisOf(column, rows, x, height) {
  const high = TOP;
  const low = height - BOTTOM;
  const noneAt = height - 14;
  const hasNone = rows.some((row) => { const value = column.get(row); return value === null || Number.isNaN(value); });
  const noneTick = hasNone ? [[noneAt, "none"]] : [];
  const noneBox = (range) => (range.none ? [[noneAt - 8, noneAt + 8]] : []);
  if (!column.numeric) {
    const names = categories(rows, column);
    const step = names.length > 1 ? (low - high) / (names.length - 1) : 0;
    const at = new Map(names.map((name, index) => [name, names.length > 1 ? low - index * step : (low + high) / 2]));
    const half = Math.max(6, Math.min(14, step / 2));
    return {
      column, x, names,
      toY: (value) => (value === null ? noneAt : at.get(String(value)) ?? noneAt),
      range: (from, to) => ({ none: to > noneAt - 8 && hasNone, values: new Set(names.filter((name) => at.get(name) >= from - half && at.get(name) <= to + half)) }),
      boxes: (range) => [...(range.values ?? [])].filter((name) => at.has(name)).map((name) => [at.get(name) - half, at.get(name) + half]).concat(noneBox(range)),
      ticks: [...names.map((name) => [at.get(name), name]), ...noneTick],
    };
  }
  const values = rows.map((row) => column.get(row)).filter((value) => Number.isFinite(value));
  let min = values.reduce((a, b) => Math.min(a, b), Infinity);
  let max = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (min > max) [min, max] = [0, 1];
  const log = (column.log || (min > 0 && max / min >= 1000 && column.key !== "best")) && min > 0;
  const forward = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  const span = forward(max) - forward(min);
  const toY = (value) => {
    if (value === null || Number.isNaN(value)) return noneAt;
    if (value === Infinity) return high;
    if (value === -Infinity) return low;
    return span === 0 ? (low + high) / 2 : low - ((forward(value) - forward(min)) / span) * (low - high);
  };
  const toValue = (y) => back(forward(min) + ((low - y) / (low - high)) * span);
  const steps = [0, 0.25, 0.5, 0.75, 1];
  const ticks = span === 0 ? [[(low + high) / 2, number(min)]] : steps.map((share) => [low - share * (low - high), number(round(back(forward(min) + share * span), share, min, max, column))]);
  return {
    column: { ...column, log }, x, min, max,
    toY,
    range: (from, to) => {
      const none = hasNone && to > noneAt - 8;
      if (from > low) return { none };
      return { none, min: Math.max(min, toValue(Math.min(low, to))), max: Math.min(max, toValue(Math.max(high, from))) };
    },
    boxes: (range) => (range.min === undefined ? [] : [[toY(Math.min(max, range.max)), toY(Math.max(min, range.min))]]).concat(noneBox(range)),
    ticks: [...ticks, ...noneTick],
  };
}

function round(value, share, min, max, column) {
  if (share === 0) return min;
  if (share === 1) return max;
  return column.parameter?.kind === "int" ? Math.round(value) : Number(value.toPrecision(3));
}

function rangeDialog(store, axis) {
  const { column } = axis;
  const range = store.ranges.get(column.key);
  const none = h("input", { type: "checkbox", checked: range?.none ?? false });
  const inputs = axis.names
    ? axis.names.map((name) => h("label", { class: "check" }, h("input", { type: "checkbox", value: name, checked: !range || (range.values?.has(name) ?? false) }), name))
    : [
      h("label", { class: "field" }, h("span", {}, "from"), h("input", { type: "number", step: "any", value: String(range?.min ?? axis.min) })),
      h("label", { class: "field" }, h("span", {}, "to"), h("input", { type: "number", step: "any", value: String(range?.max ?? axis.max) })),
    ];
  const dialog = h("dialog", { "aria-label": `Range of ${column.label}`, onclose: () => dialog.remove() },
    h("form", {
      method: "dialog",
      onsubmit: () => {
        if (axis.names) store.setRange(column.key, { none: none.checked, values: new Set(inputs.map((label) => label.querySelector("input")).filter((box) => box.checked).map((box) => box.value)) });
        else {
          const [from, to] = inputs.map((label) => Number(label.querySelector("input").value));
          store.setRange(column.key, { none: none.checked, min: Math.min(from, to), max: Math.max(from, to) });
        }
      },
    }, h("h3", {}, column.label), h("p", { class: "note" }, "Only trials in this range stay in every view."), h("div", { class: "stack" }, inputs,
      h("label", { class: "check" }, none, "also trials without a value")),
    h("div", { class: "dialog-buttons" },
      h("button", { type: "button", class: "button", onclick: () => { store.setRange(column.key, null); dialog.close(); } }, "Remove"),
      h("button", { type: "submit", class: "button primary" }, "Apply"))));
  document.body.append(dialog);
  dialog.showModal();
}
