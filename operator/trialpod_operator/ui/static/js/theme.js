/** Light, dark or what the system says; and colours of the style sheet for canvases. */

const CHOICES = ["auto", "light", "dark"];
let cache = new Map();
const listeners = new Set();

export function setUp(button) {
  let current = localStorage.getItem("trialpod-theme") ?? "auto";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    const shown = current === "auto" ? (system.matches ? "dark" : "light") : current;
    document.documentElement.dataset.theme = shown;
    button.textContent = `Theme: ${current}`;
    cache = new Map();
    for (const listener of listeners) listener();
  };
  button.addEventListener("click", () => {
    current = CHOICES[(CHOICES.indexOf(current) + 1) % CHOICES.length];
    localStorage.setItem("trialpod-theme", current);
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** Calls `listener` when the colours have changed; returns the function that ends that. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Returns a colour of the style sheet by the name of its variable. */
export function color(name) {
  if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return cache.get(name);
}

/** Returns the colour of the n-th of several lines. Okabe and Ito's palette, which the colour-blind can tell apart. */
export const lineColor = (n) => color(`--line-${(n % 8) + 1}`);

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/** Returns the colour of a share between 0 and 1 on the scale "viridis", of which dark themes skip the dark end. */
export function scaleColor(share) {
  const dark = color("--is-dark") === "1";
  const at = (dark ? 0.22 + share * 0.78 : share * 0.86) * (VIRIDIS.length - 1);
  const low = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const mix = (channel) => Math.round(VIRIDIS[low][channel] + (at - low) * (VIRIDIS[low + 1][channel] - VIRIDIS[low][channel]));
  return `rgb(${mix(0)},${mix(1)},${mix(2)})`;
}
