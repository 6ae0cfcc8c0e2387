/** Elements without a framework. Text only ever becomes a text node, so no value of an experiment can become markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Returns a new element. Attributes `on...` are listeners, `class` and `aria-*` what they are in HTML; null is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...flat(children));
  return element;
}

/** Returns a new SVG element. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  element.append(...flat(children));
  return element;
}

/** Replaces what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

/** Returns a function that runs `work` once in the next frame, however often it is called before. */
export function perFrame(work) {
  let waiting = 0;
  return () => {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; work(); });
  };
}

/** Returns a function that runs `work` when it was not called for `ms`. */
export function after(ms, work) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}

/** Returns a function that runs `work` at most once in `ms`; the last call is never lost. */
export function atMostEvery(ms, work) {
  let timer = 0;
  let last = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => { timer = 0; last = performance.now(); work(); }, Math.max(0, last + ms - performance.now()));
  };
}

/** Shows a short message at the edge of the page; screen readers say it. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => place.classList.remove("shown"), 2500);
}

/** Copies text to the clipboard and says so. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`Copied ${what}`);
  } catch {
    const area = h("textarea", { class: "copy-source", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    toast(done ? `Copied ${what}` : "The browser did not allow copying");
  }
}

/** Offers text as a file to save. */
export function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Returns a group of buttons of which one is pressed. `choices` are [value, label]. */
export function segmented(label, choices, current, onchange) {
  const group = h("div", { class: "segmented", role: "group", "aria-label": label });
  for (const [value, text] of choices) {
    group.append(h("button", {
      type: "button", "aria-pressed": String(value === current), "data-value": value,
      onclick: (event) => {
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
        onchange(value);
      },
    }, text));
  }
  return group;
}

/** Returns a labelled drop-down list. */
export function chooser(label, choices, current, onchange) {
  const list = h("select", { onchange: (event) => onchange(event.target.value) });
  for (const [value, text] of choices) list.append(h("option", { value, selected: value === current }, text));
  return h("label", { class: "field" }, h("span", {}, label), list);
}

/** Returns a labelled check box. */
export function toggle(label, current, onchange) {
  return h("label", { class: "check" },
    h("input", { type: "checkbox", checked: current, onchange: (event) => onchange(event.target.checked) }), label);
}
