/**
 * What the page knows of one experiment, and what of it is shown: rows, filter, selection, sorting.
 *
 * Views read from here and are notified of what changed: "rows", "filter", "selection", "view" or "header". The part that a
 * link should carry (filter, sorting, columns, axes) is written to the address.
 */

import { compileQuery } from "./query.js";
import { num } from "./format.js";
import { costName, isIdle, isInterrupted, stateOf } from "./states.js";

export class Store {
  constructor(id, header, data) {
    this.id = id;
    this.header = header;
    this.rows = new Map();
    this.cursor = data.cursor;
    this.curves = new Map();
    this.selection = new Set();
    this.states = new Set();
    this.query = "";
    this.queryProblem = null;
    this.ranges = new Map();
    this.options = {};
    this.listeners = new Set();
    this.version = 0;
    this.updated = Date.now();
    this.take(data.trials);
    this.filterChanged();
  }

  on(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell(what) {
    for (const listener of this.listeners) listener(what);
  }

  /** Replaces everything; the filter stays, and the selection of trials that are still there. */
  replace(header, data) {
    this.header = header;
    this.cursor = data.cursor;
    const there = new Set(data.trials.map((row) => row.id));
    for (const id of this.rows.keys()) if (!there.has(id)) this.rows.delete(id);
    for (const id of this.selection) if (!there.has(id)) this.selection.delete(id);
    this.curves.clear();
    this.curvesCursor = undefined;
    this.take(data.trials);
    this.changed();
  }

  /** Takes what has changed since the last time. */
  delta({ trials, cursor, header, whole }) {
    if (whole) {
      this.replace(header, { trials, cursor });
      return;
    }
    this.cursor = cursor;
    const interrupted = isInterrupted(this.header);
    if (header) Object.assign(this.header, header);
    if (interrupted !== isInterrupted(this.header)) {
      for (const row of this.rows.values()) row.shown = stateOf(row, this.header);
      this.take(trials ?? []);
      this.changed();
      return;
    }
    if (!trials?.length) {
      this.updated = Date.now();
      this.tell("header");
      return;
    }
    this.take(trials ?? []);
    this.changed();
  }

  changed() {
    this.updated = Date.now();
    this.version += 1;
    this.cache = {};
    this.tell("rows");
  }

  /** Returns the present, in seconds since the epoch; an experiment that is over has its last moment. */
  now() {
    return (isIdle(this.header.state) ? this.header.updated : null) ?? Date.now() / 1000;
  }

  take(rows) {
    for (const row of rows) {
      row.shown = stateOf(row, this.header);
      // What ranks a trial is its latest finite value, as everywhere else.
      const latest = num(row.metrics?.[this.header.metric]);
      row.value = Number.isFinite(latest) ? latest : num(row.best);
      this.rows.set(row.id, row);
    }
    this.cache = {};
    this.version += 1;
  }

  /** Returns all columns; those of parameters and metrics are found in the rows too, not only in the header. */
  columns() {
    return (this.cache.columns ??= columnsOf(this));
  }

  column(key) {
    return this.columns().get(key);
  }

  all() {
    return (this.cache.all ??= [...this.rows.values()].sort((a, b) => a.number - b.number));
  }

  /** Returns the rows that pass the filter, by number. */
  visible() {
    return (this.cache.visible ??= this.all().filter(this.predicate()));
  }

  visibleIds() {
    return (this.cache.visibleIds ??= new Set(this.visible().map((row) => row.id)));
  }

  isFiltered() {
    return this.states.size > 0 || this.ranges.size > 0 || (this.query !== "" && !this.queryProblem);
  }

  predicate(exceptKey = null) {
    const tests = [];
    if (this.states.size) tests.push((row) => this.states.has(row.shown));
    if (this.matches) tests.push(this.matches);
    for (const [key, range] of this.ranges) {
      const column = this.column(key);
      if (!column || key === exceptKey) continue;
      tests.push((row) => inRange(column.get(row), range));
    }
    return (row) => tests.every((test) => test(row));
  }

  filterChanged() {
    try {
      this.matches = compileQuery(this.query, this.columns());
      this.queryProblem = null;
    } catch (error) {
      this.matches = null;
      this.queryProblem = error.message;
    }
    delete this.cache.visible;
    delete this.cache.visibleIds;
    delete this.cache.ranked;
    this.version += 1;
    this.tell("filter");
  }

  setQuery(query) {
    this.query = query.trim();
    this.filterChanged();
  }

  toggleState(state) {
    if (!this.states.delete(state)) this.states.add(state);
    this.filterChanged();
  }

  /** Sets or, with null, removes the range of a column: {min, max} or {values: Set}; `none`: rows without a value pass. */
  setRange(key, range) {
    if (range) this.ranges.set(key, range);
    else this.ranges.delete(key);
    this.filterChanged();
  }

  clearFilter() {
    this.states.clear();
    this.ranges.clear();
    this.query = "";
    this.filterChanged();
  }

  select(id, on = !this.selection.has(id)) {
    if (on) this.selection.add(id);
    else this.selection.delete(id);
    this.tell("selection");
  }

  clearSelection() {
    this.selection.clear();
    this.tell("selection");
  }

  option(name, fallback) {
    return this.options[name] ?? fallback;
  }

  setOption(name, value) {
    if (value === null || value === "") delete this.options[name];
    else this.options[name] = String(value);
    this.tell("view");
  }

  /** Returns 1 when larger values of the metric are better, -1 otherwise. */
  get sign() {
    return this.header.mode === "min" ? -1 : 1;
  }

  /** Returns the rows with a finite value, the best first. */
  ranked(rows = null) {
    if (rows === null) return (this.cache.ranked ??= this.ranked(this.visible()));
    return rows.filter((row) => Number.isFinite(row.value)).sort((a, b) => this.sign * (b.value - a.value) || a.number - b.number);
  }

  /** Returns the parameters that differ between trials; with one trial all of them. */
  varying() {
    return (this.cache.varying ??= [...this.columns().values()].filter((column) => column.group === "parameter" && differs(this.all(), column)));
  }

  kinds() {
    return Object.fromEntries((this.header.parameters ?? []).map((parameter) => [parameter.name, parameter.kind]));
  }
}

function differs(rows, column) {
  if (rows.length < 2) return rows.length === 1;
  const first = JSON.stringify(column.get(rows[0]));
  return rows.some((row) => JSON.stringify(column.get(row)) !== first);
}

/** Tells whether a value lies in a brushed range. */
export function inRange(value, range) {
  if (value === null || value === undefined || (typeof value === "number" && Number.isNaN(value))) return Boolean(range.none);
  if (range.values) return range.values.has(String(value));
  return typeof value === "number" && range.min !== undefined && value >= range.min && value <= range.max;
}

function columnsOf(store) {
  const { header } = store;
  const columns = new Map();
  const add = (key, label, group, numeric, get, more = {}) => columns.set(key, { key, label, group, numeric, get, ...more });
  add("number", "Trial", "trial", true, (row) => row.number);
  add("state", "State", "trial", false, (row) => row.shown);
  if (header.metric) add("best", header.metric, "trial", true, (row) => row.value, { title: `${header.metric}, the latest finite value` });
  const parameters = new Map((header.parameters ?? []).map((parameter) => [parameter.name, parameter]));
  const metrics = new Set(header.metrics ?? []);
  for (const row of store.rows.values()) {
    for (const name in row.config) if (!parameters.has(name)) parameters.set(name, { name });
    for (const name in row.metrics) metrics.add(name);
  }
  for (const parameter of parameters.values()) {
    const { name } = parameter;
    const numeric = parameter.kind === "float" || parameter.kind === "int" || (!parameter.kind && looksNumeric(store, name));
    const get = numeric ? (row) => num(row.config?.[name]) : (row) => plain(row.config?.[name]);
    add(`p:${name}`, name, "parameter", numeric, get, { log: Boolean(parameter.log), parameter });
  }
  for (const name of [...metrics].sort()) {
    if (name === header.metric) continue;
    add(`m:${name}`, name, "metric", true, (row) => num(row.metrics?.[name]), { title: `${name}, the last value` });
  }
  add("iteration", "Iteration", "trial", true, (row) => row.iteration ?? null);
  add("duration", "Time", "trial", true, (row) => (row.started ? (row.ended ?? store.now()) - row.started : null), { format: "duration" });
  add("started", "Started", "trial", true, (row) => row.started ?? null, { format: "clock" });
  add("cost", costName(store.header), "trial", true, (row) => row.cost ?? null, { format: "duration" });
  add("attempts", "Attempts", "trial", true, (row) => row.attempts ?? null);
  add("restarts", "Restarts", "trial", true, (row) => row.restarts ?? null);
  add("reason", "Why it ended", "trial", false, (row) => row.reason || null);
  return columns;
}

function looksNumeric(store, name) {
  for (const row of store.rows.values()) {
    const value = row.config?.[name];
    if (value !== undefined && value !== null && num(value) === null) return false;
  }
  return true;
}

function plain(value) {
  if (value === undefined) return null;
  return value !== null && typeof value === "object" ? JSON.stringify(value) : value === null ? "null" : String(value);
}

/** Returns rows sorted by a column. Rows without a value, and NaN, come last in both directions. */
export function sorted(rows, column, descending) {
  const usable = [];
  const missing = [];
  for (const row of rows) {
    const value = column.get(row);
    (value === null || value === undefined || (typeof value === "number" && Number.isNaN(value)) ? missing : usable).push([value, row]);
  }
  const turn = descending ? -1 : 1;
  usable.sort(column.numeric
    ? ([a, left], [b, right]) => turn * (a - b) || left.number - right.number
    : ([a, left], [b, right]) => turn * String(a).localeCompare(String(b), "en", { numeric: true }) || left.number - right.number);
  return [...usable, ...missing].map(([, row]) => row);
}
