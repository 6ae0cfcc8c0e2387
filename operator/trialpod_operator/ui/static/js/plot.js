/**
 * A chart with two axes. uPlot draws axes and grid, and knows scales and zoom; what lies between is drawn here, since
 * thousands of lines with x-values of their own are not what its series are for.
 */

import { h } from "./dom.js";
import { number } from "./format.js";
import { color, onTheme } from "./theme.js";

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
const FONT = "11px system-ui, sans-serif";

export class Plot {
  /**
   * @param host the element to fill
   * @param options label: accessible name; bounds() -> [x0, x1, y0, y1] or null; draw(ctx, frame); xLog, yLog;
   *   xValue, yValue: write a tick; xTicks, yTicks: [positions] of categories; hover(frame, x, y) -> {x, y, lines} or null;
   *   click(frame, x, y); height
   */
  constructor(host, options) {
    this.host = host;
    this.options = options;
    this.tip = h("div", { class: "tip", hidden: true });
    this.zoomed = false;
    this.reset = h("button", { type: "button", class: "button small reset-zoom", hidden: true, onclick: () => this.unzoom() }, "Reset zoom");
    host.append(this.reset);
    this.resizer = new ResizeObserver(() => this.resize());
    this.resizer.observe(host);
    this.stopTheme = onTheme(() => this.rebuild());
    this.rebuild();
  }

  get size() {
    return { width: Math.max(200, Math.floor(this.host.clientWidth)), height: this.options.height ?? 280 };
  }

  rebuild() {
    this.u?.destroy();
    const { options } = this;
    const axis = (side, more) => ({
      side, font: FONT, stroke: color("--ink-soft"), grid: { stroke: color("--grid"), width: 1, filter: (side === 2 ? options.xLog : options.yLog) ? tens : every }, ticks: { show: false },
      gap: 6, ...more,
    });
    const range = (name) => (u, min, max) => {
      const limits = options.limits?.[name];
      return limits ?? [min, max];
    };
    const values = (write) => (u, ticks) => ticks.map((tick) => (tick === null ? "" : write(tick)));
    const place = this.host.querySelector(".uplot-host") ?? this.host.appendChild(h("div", { class: "uplot-host" }));
    const xAxis = axis(2, { values: values(options.xValue ?? number), space: options.xSpace ?? 60, size: 30, label: options.xLabel, labelSize: 20, labelFont: FONT });
    const yAxis = axis(3, { values: values(options.yValue ?? number), size: options.yWidth ?? 54 });
    if (options.xWhole && !options.xLog) xAxis.incrs = WHOLE;
    if (options.xTicks) Object.assign(xAxis, { splits: () => options.xTicks(), space: 1 });
    if (options.yTicks) Object.assign(yAxis, { splits: () => options.yTicks(), space: 1 });
    this.u = new window.uPlot({
      ...this.size,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: true, uni: 12, dist: 6 }, focus: { prox: -1 } },
      scales: {
        x: { time: false, distr: options.xLog ? 3 : 1, range: range("x") },
        y: { distr: options.yLog ? 3 : 1, range: range("y") },
      },
      axes: [xAxis, yAxis],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(u) => this.paint(u)],
        setCursor: [(u) => this.point(u)],
        setSelect: [(u) => { if (u.select.width > 0 || u.select.height > 0) this.setZoomed(true); }],
      },
    }, this.data(), place);
    this.u.over.addEventListener("dblclick", () => this.setZoomed(false));
    this.u.over.addEventListener("click", (event) => {
      if (options.click) options.click(this.frame(), event.offsetX, event.offsetY);
    });
    this.u.over.append(this.tip);
    this.u.over.addEventListener("pointerleave", () => this.hide());
    const canvas = place.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", options.label);
    this.u.over.tabIndex = 0;
    this.u.over.setAttribute("role", "application");
    this.u.over.setAttribute("aria-label", `${options.label}. Keys: plus and minus zoom, arrows move, 0 shows all.`);
    this.u.over.addEventListener("keydown", (event) => this.key(event));
  }

  data() {
    const [x0, x1, y0, y1] = this.options.bounds() ?? [this.options.xLog ? 1 : 0, this.options.xLog ? 10 : 1, this.options.yLog ? 1 : 0, this.options.yLog ? 10 : 1];
    return [[x0, x1], [y0, y1]];
  }

  /** Draws again. The zoom stays; a chart that shows everything follows its data. */
  update() {
    this.u.setData(this.data(), !this.zoomed);
    if (this.zoomed) this.u.redraw(false);
  }

  /** Takes other scales or words for the axes. */
  configure(options) {
    Object.assign(this.options, options);
    this.setZoomed(false);
    this.rebuild();
  }

  setZoomed(on) {
    this.zoomed = on;
    this.reset.hidden = !on;
  }

  unzoom() {
    this.setZoomed(false);
    this.u.setData(this.data(), true);
    this.u.over.focus();
  }

  /** Returns the drawing area with functions from values to canvas pixels. */
  frame() {
    const { u, options } = this;
    const { left, top, width, height } = u.bbox;
    return {
      left, top, width, height, ratio: window.uPlot.pxRatio,
      toX: mapper(u.scales.x, options.xLog, left, width),
      toY: mapper(u.scales.y, options.yLog, top + height, -height),
    };
  }

  paint(u) {
    const { ctx } = u;
    const frame = this.frame();
    u.over.dataset.shown = [u.scales.x, u.scales.y].flatMap(({ min, max }) => [min, max]).map((each) => Number(each).toPrecision(6)).join(" ");
    ctx.save();
    ctx.beginPath();
    ctx.rect(frame.left, frame.top - 3, frame.width, frame.height + 6);
    ctx.clip();
    this.options.draw(ctx, frame);
    ctx.restore();
  }

  point(u) {
    const { left, top } = u.cursor;
    const found = left >= 0 && this.options.hover ? this.options.hover(this.frame(), left, top) : null;
    if (!found) return this.hide();
    this.tip.replaceChildren(...found.lines.map((line, index) => h("div", { class: index ? "" : "tip-head" }, line)));
    this.tip.hidden = false;
    const wide = u.over.clientWidth;
    this.tip.classList.toggle("left", found.x > wide * 0.6);
    this.tip.style.setProperty("left", `${found.x}px`);
    this.tip.style.setProperty("top", `${Math.min(found.y, u.over.clientHeight - 24)}px`);
  }

  hide() {
    this.tip.hidden = true;
  }

  key(event) {
    const { u } = this;
    const steps = { "+": [0.1, -0.1, 0.1, -0.1], "=": [0.1, -0.1, 0.1, -0.1], "-": [-0.125, 0.125, -0.125, 0.125], ArrowLeft: [-0.1, -0.1, 0, 0], ArrowRight: [0.1, 0.1, 0, 0], ArrowUp: [0, 0, 0.1, 0.1], ArrowDown: [0, 0, -0.1, -0.1] };
    if (event.key === "0" || (event.key === "Escape" && this.zoomed)) {
      this.unzoom();
    } else if (steps[event.key]) {
      const [a, b, c, d] = steps[event.key];
      u.batch(() => {
        u.setScale("x", moved(u.scales.x, this.options.xLog, a, b));
        u.setScale("y", moved(u.scales.y, this.options.yLog, c, d));
      });
      this.setZoomed(true);
    } else return;
    event.preventDefault();
  }

  resize() {
    const { width, height } = this.size;
    if (this.u.width !== width || this.u.height !== height) this.u.setSize({ width, height });
  }

  destroy() {
    this.resizer.disconnect();
    this.stopTheme();
    this.u.destroy();
  }
}

const every = (u, ticks) => ticks;

/** Leaves only the powers of ten of a logarithmic axis, so that its grid stays calm. */
function tens(u, ticks) {
  return ticks.map((tick) => (Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9 ? tick : null));
}

function mapper(scale, log, start, length) {
  if (log) {
    const low = Math.log10(scale.min);
    const factor = length / (Math.log10(scale.max) - low);
    return (value) => start + (Math.log10(value) - low) * factor;
  }
  const factor = length / (scale.max - scale.min);
  return (value) => start + (value - scale.min) * factor;
}

function moved(scale, log, low, high) {
  const [from, to] = log ? [Math.log10(scale.min), Math.log10(scale.max)] : [scale.min, scale.max];
  const [min, max] = [from + low * (to - from), to + high * (to - from)];
  return log ? { min: 10 ** min, max: 10 ** max } : { min, max };
}

/** Returns limits with a small margin; null when no value is usable. On log axes only positive values are. */
export function padded(values, log, margin = 0.04) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (log) {
    const spread = Math.max(0.1, Math.log10(high / low));
    return [low / 10 ** (spread * margin), high * 10 ** (spread * margin)];
  }
  const pad = (high - low) * margin || Math.abs(high) * 0.05 || 0.5;
  return [low - pad, high + pad];
}

/** Draws a state's shape: circles, squares, triangles, so that points differ without colour. */
export function mark(ctx, state, x, y, radius) {
  if (state === "STOPPED") ctx.fillRect(x - radius * 0.9, y - radius * 0.9, radius * 1.8, radius * 1.8);
  else {
    ctx.beginPath();
    if (state === "ERROR") {
      ctx.moveTo(x, y - radius * 1.2);
      ctx.lineTo(x + radius * 1.2, y + radius);
      ctx.lineTo(x - radius * 1.2, y + radius);
    } else if (state === "RUNNING") {
      ctx.moveTo(x - radius, y - radius * 1.2);
      ctx.lineTo(x + radius * 1.3, y);
      ctx.lineTo(x - radius, y + radius * 1.2);
    } else ctx.arc(x, y, radius, 0, 7);
    ctx.fill();
  }
}
