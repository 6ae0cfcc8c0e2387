/** The filter line: `lr<0.01 optimizer=adam "my name">=2 momentum=none`. Words without a sign search in every text. */

import { text } from "./format.js";

const TERM = /\s*(?:"([^"]+)"|([^\s"<>=!~]+))\s*(?:(<=|>=|!=|==|=|<|>|~)\s*(?:"([^"]*)"|([^\s"]+)))?/y;

/** Returns a function that tells whether a row passes; null for an empty line. Throws an Error with a sentence. */
export function compileQuery(line, columns) {
  const tests = [];
  let at = 0;
  const rest = line.trim();
  while (at < rest.length) {
    TERM.lastIndex = at;
    const match = TERM.exec(rest);
    if (!match || match[0] === "") throw new Error(`"${rest.slice(at)}" is not a condition; write for example lr<0.01`);
    at = TERM.lastIndex;
    const name = match[1] ?? match[2];
    if (match[3]) tests.push(comparison(name, match[3], match[4] ?? match[5], columns));
    else tests.push(search(name));
  }
  return tests.length ? (row) => tests.every((test) => test(row)) : null;
}

function search(word) {
  const low = word.toLowerCase();
  return (row) => row.id.toLowerCase().includes(low) || String(row.number) === low || (row.reason ?? "").toLowerCase().includes(low)
    || row.shown.toLowerCase().includes(low) || Object.values(row.config ?? {}).some((value) => text(value).toLowerCase().includes(low));
}

function comparison(name, sign, wanted, columns) {
  const column = find(name, columns);
  wanted = wanted.replaceAll("−", "-");
  if (wanted === "none" || wanted === "None") {
    const without = (row) => { const value = column.get(row); return value === null || value === undefined; };
    return sign === "!=" ? (row) => !without(row) : without;
  }
  const asNumber = Number(wanted);
  if (column.numeric && sign !== "~") {
    if (wanted === "" || (Number.isNaN(asNumber) && wanted !== "NaN")) throw new Error(`${name} is a number, "${wanted}" is none`);
    const compare = NUMERIC[sign];
    return (row) => { const value = column.get(row); return value !== null && value !== undefined && compare(value, asNumber); };
  }
  const low = wanted.toLowerCase();
  if (sign === "~") return (row) => text(column.get(row)).toLowerCase().includes(low);
  if (sign === "=" || sign === "==") return (row) => text(column.get(row)).toLowerCase() === low;
  if (sign === "!=") return (row) => text(column.get(row)).toLowerCase() !== low;
  throw new Error(`${name} is text; compare it with = or != or ~ (contains)`);
}

const NUMERIC = {
  "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
  "=": (a, b) => Object.is(a, b) || a === b, "==": (a, b) => Object.is(a, b) || a === b, "!=": (a, b) => !(Object.is(a, b) || a === b),
};

function find(name, columns) {
  for (const key of [`p:${name}`, `m:${name}`, name]) if (columns.has(key)) return columns.get(key);
  for (const column of columns.values()) if (column.label.toLowerCase() === name.toLowerCase()) return column;
  const some = [...columns.values()].slice(0, 6).map((column) => column.label).join(", ");
  throw new Error(`there is no column "${name}"; there are ${some} …`);
}
