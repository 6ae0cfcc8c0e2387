/** Values as people read them, and as programs do: numbers, times, Python, YAML, CSV. */

const SPECIAL = { NaN, Infinity, "-Infinity": -Infinity };

/** Returns a number of the server's: NaN and infinities come as strings; null when there is none. */
export function num(value) {
  if (typeof value === "number") return value;
  if (typeof value === "string" && value in SPECIAL) return SPECIAL[value];
  return null;
}

/** Returns a number with four significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", "−");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e").replaceAll("-", "−");
  }
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** Returns any value on one line. */
export function text(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return number(value);
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** Returns a whole number with separators. */
export const count = (value) => value.toLocaleString("en");

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** Returns seconds as "3 h 12 min", with two units at most. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[first];
  const whole = Math.floor(seconds / size);
  const [small, smaller] = units[first + 1];
  const rest = Math.floor((seconds - whole * size) / smaller);
  return rest && whole < 100 ? `${whole} ${name} ${rest} ${small}` : `${whole} ${name}`;
}

/** Returns a moment as "14:05:09", with the date when it is not today's. */
export function clock(seconds) {
  if (!seconds) return "–";
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

export function ago(seconds) {
  return seconds ? `${duration(Math.max(0, Date.now() / 1000 - seconds))} ago` : "–";
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = size < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(size) / 3));
  return `${Number((size / 1000 ** step).toPrecision(3))} ${units[step]}`;
}

/** Returns nested dictionaries as one with dotted names. */
export function flatten(nested, prefix = "") {
  const result = {};
  for (const [name, value] of Object.entries(nested ?? {})) {
    if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
      Object.assign(result, flatten(value, `${prefix}${name}.`));
    } else result[prefix + name] = value;
  }
  return result;
}

/** Returns a configuration as Python; `kinds` maps dotted names to "float" where 1 must stay 1.0. */
export function toPython(config, kinds = {}) {
  const write = (value, path, depth) => {
    if (value === null) return "None";
    if (value === true) return "True";
    if (value === false) return "False";
    if (typeof value === "number") return floating(value, kinds[path]);
    if (typeof value === "string") {
      return kinds[path] === "float" && value in SPECIAL ? `float("${value}")` : JSON.stringify(value);
    }
    if (Array.isArray(value)) return `[${value.map((item) => write(item, null, depth)).join(", ")}]`;
    const names = Object.keys(value);
    if (!names.length) return "{}";
    const pad = "    ".repeat(depth + 1);
    const lines = names.map((name) => {
      const inside = write(value[name], path ? `${path}.${name}` : name, depth + 1);
      return `${pad}${JSON.stringify(name)}: ${inside},`;
    });
    return `{\n${lines.join("\n")}\n${"    ".repeat(depth)}}`;
  };
  return `config = ${write(config, "", 0)}\n`;
}

/** Returns a configuration as YAML that YAML 1.1 readers take as the same values. */
export function toYaml(config, kinds = {}) {
  const scalar = (value, path) => {
    if (value === null) return "null";
    if (typeof value === "boolean") return String(value);
    if (typeof value === "number") return floating(value, kinds[path]).replace(/^(-?\d+)e/, "$1.0e").replace(/e(\d)/, "e+$1");
    if (typeof value === "string") {
      if (kinds[path] === "float" && value in SPECIAL) return value === "NaN" ? ".nan" : value.replace("Infinity", ".inf");
      return /^[A-Za-z_][\w ./-]*[\w]$/.test(value) && !RESERVED.test(value) ? value : JSON.stringify(value);
    }
    return JSON.stringify(value);
  };
  const write = (dict, path, depth) => Object.entries(dict).map(([name, value]) => {
    const where = path ? `${path}.${name}` : name;
    const key = /^[A-Za-z_][\w.-]*$/.test(name) && !RESERVED.test(name) ? name : JSON.stringify(name);
    const pad = "  ".repeat(depth);
    if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
      return `${pad}${key}:\n${write(value, where, depth + 1)}`;
    }
    return `${pad}${key}: ${scalar(value, where)}\n`;
  }).join("");
  return write(config, "", 0);
}

const RESERVED = /^(y|n|yes|no|on|off|true|false|null|none|nan|inf)$/i;

function floating(value, kind) {
  const written = String(value);
  return kind === "float" && /^-?\d+$/.test(written) ? `${written}.0` : written;
}

/** Returns a table as CSV. Text that a spreadsheet would take as a formula gets an apostrophe. */
export function toCsv(heads, rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let words = typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(words)) words = `'${words}`;
    return /[",\n\r]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
  };
  return `${[heads, ...rows].map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}
