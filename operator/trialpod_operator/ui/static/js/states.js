/** The states of trials: a word, a shape and a colour each, so that colour alone never distinguishes them. */

import { h, s } from "./dom.js";

export const STATES = {
  RUNNING: { label: "Running", shape: "M4 2.500 13 8 4 13.500z", color: "--running" },
  PENDING: { label: "Pending", shape: null, color: "--pending" },
  PAUSED: { label: "Paused", shape: "M4 3h3v10H4zM9 3h3v10H9z", color: "--paused" },
  TERMINATED: { label: "Completed", shape: "M8 2.500a5.500 5.500 0 1 0 0 11 5.500 5.500 0 1 0 0-11z", color: "--terminated" },
  STOPPED: { label: "Stopped early", shape: "M3 3h10v10H3z", color: "--stopped" },
  ERROR: { label: "Error", shape: "M8 2 14.500 13.500h-13z", color: "--error" },
};

/**
 * Returns the state that the page shows: a trial that a scheduler ended before its last iteration is "stopped early",
 * and one that ran when its experiment was interrupted is pending.
 */
export function stateOf(row, experiment) {
  if (row.state === "RUNNING" && isInterrupted(experiment)) return "PENDING";
  return row.state === "TERMINATED" && row.pruned ? "STOPPED" : row.state;
}

/** Returns whether no process runs an experiment that has work left. */
export function isInterrupted(experiment) {
  return experiment.state === "Interrupted";
}

export function icon(state) {
  const { shape } = STATES[state] ?? STATES.PENDING;
  return s("svg", { viewBox: "0 0 16 16", width: "11", height: "11", class: `icon state-${state}`, "aria-hidden": "true" },
    shape ? s("path", { d: shape }) : s("circle", { cx: "8", cy: "8", r: "4.600", fill: "none", stroke: "currentColor", "stroke-width": "2.200" }));
}

export function chip(state) {
  return h("span", { class: "state" }, icon(state), STATES[state]?.label ?? state);
}

/** Returns the class of an experiment's state, for its colour. */
export function toneOf(state) {
  const word = String(state).toLowerCase();
  if (/fail|error|damaged|degraded/.test(word)) return "bad";
  if (/succe|complete/.test(word)) return "good";
  if (/run/.test(word)) return "live";
  return "calm";
}

/** Returns what the time is called that trials have used: without GPUs it is that of the trials themselves. */
export function costName(experiment) {
  return experiment.cost_unit === "GPU-seconds" ? "GPU time" : "Trial time";
}

/** Returns whether an experiment of that state neither runs nor waits for anything: its times have ended. */
export function isIdle(state) {
  return /^(interrupted|suspended|stopped|succeeded|failed)$/i.test(String(state));
}
