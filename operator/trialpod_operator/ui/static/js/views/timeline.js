/** When each trial waited, ran, paused or was preempted, how many ran at a time, and who was cloned from whom. */

import * as address from "../address.js";
import { experimentPath, get } from "../api.js";
import { atMostEvery, h, perFrame, s } from "../dom.js";
import { figure } from "../figure.js";
import { clock, count, duration, plural } from "../format.js";
import { color, onTheme } from "../theme.js";

const ROW = 16;
const LEFT = 64;
const LOAD = 56;
const FOOT = 26;
const VIEW = 420;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
const KINDS = { waiting: ["Waiting", "--pending"], running: ["Running", "--running"], paused: ["Paused", "--paused"], preempted: ["Preempted", "--error"], unknown: ["Not recorded", "--pending"] };

export function timeline(store) {
  let data = { spans: [], clones: [] };
  const view = figure({
    title: "Timeline", wide: true,
    table: () => ({
      heads: ["Trial", "Attempt", "What", "From", "To", "For"],
      rows: shown().flatMap((row) => (byTrial.get(row.id) ?? []).map((span) => [String(row.number), String(span.attempt ?? ""), span.kind, clock(span.start), span.end ? clock(span.end) : "now", duration((span.end ?? now()) - span.start)])),
    }),
  });
  let byTrial = new Map();
  const canvas = h("canvas", { role: "img" });
  const spacer = h("div", { class: "spacer" });
  const scroller = h("div", { class: "timeline-scroll", tabindex: "0", role: "region", "aria-label": "Timeline, scrolls over all trials" }, canvas, spacer);
  const tip = h("div", { class: "tip", hidden: true });
  view.host.append(scroller, tip);
  view.el.append(h("ul", { class: "legend" }, Object.entries(KINDS).map(([kind, [label]]) => h("li", { class: "legend-item", "data-kind": kind, hidden: kind === "unknown" }, key(kind), label)),
    h("li", { class: "legend-item" }, s("svg", { viewBox: "0 0 22 12", width: "22", height: "12", class: "clone-key", "aria-hidden": "true" }, s("path", { d: "M1 2v7h16M13 5l4 4-4 4", fill: "none", stroke: "currentColor", "stroke-width": "1.500" })), "Cloned from")));
  const ctx = canvas.getContext("2d");
  let width = 0;
  let stopped = false;

  // An experiment that no process runs ends with its last event.
  const now = () => store.now();
  const shown = () => store.visible().filter((row) => byTrial.has(row.id));

  async function load() {
    try {
      data = await get(experimentPath(store.id, "/timeline"));
    } catch (error) {
      view.sentence(`The timeline could not be read: ${error.message}`);
      return;
    }
    if (stopped) return;
    byTrial = new Map();
    for (const span of data.spans) {
      if (!byTrial.has(span.trial)) byTrial.set(span.trial, []);
      byTrial.get(span.trial).push(span);
    }
    update();
  }

  function limits() {
    let low = Infinity;
    let high = -Infinity;
    for (const row of shown()) {
      for (const span of byTrial.get(row.id)) {
        low = Math.min(low, span.start);
        high = Math.max(high, span.end ?? now());
      }
    }
    return low < high ? [low, high] : [low === Infinity ? 0 : low, (low === Infinity ? 0 : low) + 1];
  }

  function update() {
    const rows = shown();
    const height = Math.min(VIEW, LOAD + FOOT + rows.length * ROW);
    width = Math.max(320, view.host.clientWidth);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round((width - 14) * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.setProperty("width", `${width - 14}px`);
    canvas.style.setProperty("height", `${height}px`);
    scroller.style.setProperty("height", `${height}px`);
    spacer.style.setProperty("height", `${Math.max(0, LOAD + FOOT + rows.length * ROW - height)}px`);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
    const [low, high] = limits();
    const waited = data.spans.filter((span) => span.kind === "waiting").reduce((sum, span) => sum + (span.end ?? now()) - span.start, 0);
    const ran = data.spans.filter((span) => span.kind === "running").reduce((sum, span) => sum + (span.end ?? now()) - span.start, 0);
    view.el.querySelector('[data-kind="unknown"]').hidden = !data.spans.some((span) => span.kind === "unknown");
    const lost = data.spans.filter((span) => span.kind === "preempted").length;
    view.sentence(rows.length
      ? `${plural(rows.length, "trial")} in ${duration(high - low)}; at most ${count(peak)} ran at a time; ${duration(ran)} of running, ${duration(waited)} of waiting`
        + `${lost ? `, ${plural(lost, "preemption")}` : ""}${data.clones.length ? `, ${plural(data.clones.length, "clone")}` : ""}.`
      : "Nothing has run yet.");
    canvas.setAttribute("aria-label", `Timeline. ${view.el.querySelector("figcaption").textContent}`);
    view.refreshTable();
  }
  let peak = 0;

  function draw() {
    const rows = shown();
    const height = canvas.clientHeight || VIEW;
    const [low, high] = limits();
    const inner = width - 14 - LEFT - 12;
    const toX = (time) => LEFT + ((time - low) / (high - low)) * inner;
    const first = Math.floor(scroller.scrollTop / ROW);
    const offset = LOAD - (scroller.scrollTop % ROW);
    ctx.clearRect(0, 0, width, height);
    ctx.font = "11px system-ui, sans-serif";
    const place = new Map(rows.map((row, index) => [row.id, offset + (index - first) * ROW]));
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, LOAD, width, height - LOAD - FOOT);
    ctx.clip();
    ctx.textBaseline = "middle";
    for (let index = first; index < Math.min(rows.length, first + Math.ceil(height / ROW) + 1); index += 1) {
      const row = rows[index];
      const y = place.get(row.id);
      ctx.textAlign = "right";
      ctx.fillStyle = color(store.selection.has(row.id) ? "--accent" : "--ink-soft");
      ctx.fillText(`${row.number}`, LEFT - 10, y + ROW / 2);
      for (const span of byTrial.get(row.id)) {
        const x = toX(span.start);
        const wide = Math.max(1.5, toX(span.end ?? now()) - x);
        ctx.fillStyle = color(KINDS[span.kind]?.[1] ?? "--pending");
        if (span.kind === "running") ctx.fillRect(x, y + 3, wide, ROW - 6);
        else if (span.kind === "waiting") ctx.fillRect(x, y + ROW / 2 - 1, wide, 2);
        else if (span.kind === "unknown") {
          ctx.setLineDash([2, 4]);
          ctx.strokeStyle = ctx.fillStyle;
          ctx.beginPath();
          ctx.moveTo(x, y + ROW / 2);
          ctx.lineTo(x + wide, y + ROW / 2);
          ctx.stroke();
          ctx.setLineDash([]);
        } else if (span.kind === "preempted") {
          ctx.fillRect(x, y + 3, Math.max(3, wide), ROW - 6);
        } else {
          ctx.globalAlpha = 0.5;
          ctx.fillRect(x, y + 5, wide, ROW - 10);
          ctx.globalAlpha = 1;
        }
      }
    }
    ctx.strokeStyle = color("--ink");
    ctx.fillStyle = color("--ink");
    ctx.lineWidth = 1.2;
    for (const clone of data.clones) {
      const [from, to] = [place.get(clone.from), place.get(clone.to)];
      if (from === undefined || to === undefined) continue;
      const x = toX(clone.time);
      const [start, end] = [from + ROW / 2, to + ROW / 2];
      const down = Math.sign(end - start) || 1;
      ctx.beginPath();
      ctx.moveTo(x, start);
      ctx.lineTo(x, end - 5 * down);
      ctx.stroke();
      ctx.beginPath();
      ctx.arc(x, start, 2, 0, 7);
      ctx.moveTo(x, end - 2 * down);
      ctx.lineTo(x - 3.5, end - 8 * down);
      ctx.lineTo(x + 3.5, end - 8 * down);
      ctx.fill();
    }
    ctx.restore();
    drawLoad(toX, low, high);
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "center";
    ctx.fillStyle = color("--ink-soft");
    const step = STEPS.find((each) => (high - low) / each <= inner / 90) ?? (high - low) / 4;
    for (let time = 0; time <= high - low; time += step) {
      const x = toX(low + time);
      ctx.textAlign = time ? (x > LEFT + inner - 24 ? "right" : "center") : "left";
      ctx.fillText(time ? duration(time) : "0", x, height - 8);
    }
  }

  /** Draws how many trials ran at a time, above the rows. */
  function drawLoad(toX, low) {
    const edges = [];
    for (const row of shown()) {
      for (const span of byTrial.get(row.id)) if (span.kind === "running") edges.push([span.start, 1], [span.end ?? now(), -1]);
    }
    edges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    peak = 0;
    let level = 0;
    for (const [, change] of edges) { level += change; peak = Math.max(peak, level); }
    const base = LOAD - 12;
    const toY = (n) => base - (n / Math.max(1, peak)) * (base - 8);
    ctx.beginPath();
    ctx.moveTo(toX(low), base);
    level = 0;
    for (const [time, change] of edges) {
      ctx.lineTo(toX(time), toY(level));
      level += change;
      ctx.lineTo(toX(time), toY(level));
    }
    ctx.fillStyle = color("--running");
    ctx.globalAlpha = 0.25;
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.fillStyle = color("--ink-soft");
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillText(`${peak} run`, LEFT - 10, 12);
  }

  const drawSoon = perFrame(draw);
  scroller.addEventListener("scroll", drawSoon);
  canvas.addEventListener("pointermove", (event) => {
    const rows = shown();
    const index = Math.floor((event.offsetY - LOAD + scroller.scrollTop) / ROW);
    const row = event.offsetY > LOAD ? rows[index] : null;
    tip.hidden = !row;
    if (!row) return;
    const [low, high] = limits();
    const time = low + ((event.offsetX - LEFT) / (width - 14 - LEFT - 12)) * (high - low);
    const span = byTrial.get(row.id).find((each) => each.start <= time && (each.end ?? now()) >= time);
    tip.replaceChildren(h("div", { class: "tip-head" }, `Trial ${row.number}`), h("div", {}, span ? `${KINDS[span.kind]?.[0] ?? span.kind} for ${duration((span.end ?? now()) - span.start)}${span.attempt ? `, attempt ${span.attempt}` : ""}` : ""));
    tip.classList.toggle("left", event.offsetX > width * 0.6);
    tip.style.setProperty("left", `${event.offsetX}px`);
    tip.style.setProperty("top", `${event.offsetY}px`);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const row = event.offsetY > LOAD ? shown()[Math.floor((event.offsetY - LOAD + scroller.scrollTop) / ROW)] : null;
    if (row) location.hash = address.trialUrl(store.id, row.id);
  });
  const resizer = new ResizeObserver(perFrame(() => { if (view.host.clientWidth !== width) update(); }));
  resizer.observe(view.host);
  const stopTheme = onTheme(drawSoon);
  const again = atMostEvery(3000, load);
  load();
  return {
    el: view.el,
    update: (what) => { if (what === "rows") again(); else if (what === "filter") update(); else drawSoon(); },
    destroy() { stopped = true; resizer.disconnect(); stopTheme(); },
  };
}

function key(kind) {
  return h("span", { class: `span-key span-${kind}`, "aria-hidden": "true" });
}
