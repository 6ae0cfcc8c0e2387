/** The address of what is shown: `#/e/ID/TAB?q=...`, so that a link opens the same view. */

/** Returns {page, id, tab, trial, ids, query} of the address. */
export function read() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  const query = new URLSearchParams(search);
  const parts = path.split("/").filter(Boolean).map(decode);
  if (parts[0] === "e" && parts[1]) {
    if (parts[2] === "trial" && parts[3]) return { page: "experiment", id: parts[1], tab: "trial", trial: parts[3], query };
    return { page: "experiment", id: parts[1], tab: parts[2] ?? "overview", query };
  }
  if (parts[0] === "overlay") return { page: "overlay", ids: query.getAll("id"), query };
  return { page: "list", query };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const experimentUrl = (id, tab = "overview", query = "") =>
  `#/e/${encodeURIComponent(id)}${tab === "overview" ? "" : `/${tab}`}${query ? `?${query}` : ""}`;

export const trialUrl = (id, trial) => `#/e/${encodeURIComponent(id)}/trial/${encodeURIComponent(trial)}`;

/** Returns the query of a store: filter, ranges and options. */
export function queryOf(store) {
  const query = new URLSearchParams();
  if (store.query) query.set("q", store.query);
  if (store.states.size) query.set("states", [...store.states].join(","));
  for (const [key, range] of store.ranges) {
    const parts = range.values ? ["in", ...range.values] : range.min === undefined ? [] : ["range", range.min, range.max];
    query.append("range", JSON.stringify([key, Boolean(range.none), ...parts]));
  }
  if (store.selection.size && store.selection.size <= 50) query.set("selected", [...store.selection].join(","));
  for (const [name, value] of Object.entries(store.options)) query.set(`o.${name}`, value);
  return query.toString();
}

/** Sets filter, ranges and options of a store from a query; what makes no sense is left out. */
export function applyQuery(store, query) {
  store.query = query.get("q") ?? "";
  store.states = new Set((query.get("states") ?? "").split(",").filter(Boolean));
  store.ranges = new Map();
  for (const written of query.getAll("range")) {
    try {
      const [key, none, kind, ...rest] = JSON.parse(written);
      if (kind === "in") store.ranges.set(key, { none, values: new Set(rest.map(String)) });
      else if (kind === "range") store.ranges.set(key, { none, min: Number(rest[0]), max: Number(rest[1]) });
      else store.ranges.set(key, { none });
    } catch {
      continue; // a shortened link
    }
  }
  store.selection = new Set((query.get("selected") ?? "").split(",").filter((id) => store.rows.has(id)));
  store.options = {};
  for (const [name, value] of query) if (name.startsWith("o.")) store.options[name.slice(2)] = value;
  store.filterChanged();
}

/** Writes the address without a new entry in the history. */
export function replace(url) {
  if (location.hash !== url) history.replaceState(null, "", url);
}
