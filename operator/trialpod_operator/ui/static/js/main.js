/** The page: reads the address, shows a view, follows the experiment. */

import * as address from "./address.js";
import { experimentPath, Follower, get } from "./api.js";
import { after, fill, h } from "./dom.js";
import { duration } from "./format.js";
import { Store } from "./store.js";
import { setUp } from "./theme.js";
import { compare } from "./views/compare.js";
import { curves } from "./views/curves.js";
import { experimentList, overlay } from "./views/experiments.js";
import { front, hasFront } from "./views/front.js";
import { groups } from "./views/groups.js";
import { filterBar, header } from "./views/header.js";
import { history } from "./views/history.js";
import { parallel } from "./views/parallel.js";
import { importance, slices } from "./views/parameters.js";
import { trialTable } from "./views/table.js";
import { timeline } from "./views/timeline.js";
import { trialPage } from "./views/trial.js";

const TABS = {
  overview: ["Overview", (store) => [...(hasFront(store) ? [front(store)] : []), history(store), curves(store), importance(store), parallel(store, { height: 340 }), trialTable(store, { height: 432 })]],
  trials: ["Trials", (store) => [trialTable(store)]],
  curves: ["Curves", (store) => [curves(store, { wide: true, height: 520 })]],
  parameters: ["Parameters", (store) => [importance(store), history(store), parallel(store), slices(store)]],
  timeline: ["Timeline", (store) => [timeline(store)]],
  groups: ["Groups", (store) => [groups(store)]],
  compare: ["Compare", (store) => [compare(store)]],
};

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const banner = document.getElementById("banner");
const live = document.getElementById("live");

let shown = null;
let store = null;
let follower = null;
let bars = [];
let views = [];
let generation = 0;
let actions = false;
let stale = null;

async function route() {
  const wanted = address.read();
  const mine = ++generation;
  if (wanted.page !== "experiment" || wanted.id !== store?.id) leave();
  try {
    if (wanted.page === "list") await showList(mine);
    else if (wanted.page === "overlay") showPage(overlay(wanted.ids), [["Overlay", null]]);
    else await showExperiment(wanted, mine);
  } catch (error) {
    if (mine === generation) showError(error);
  }
}

function leave() {
  follower?.close();
  follower = null;
  store = null;
  shown = null;
  clearViews();
  bars = [];
  setStale(null);
  live.textContent = "";
}

function clearViews() {
  for (const view of views) view.destroy?.();
  views = [];
}

async function showList(mine) {
  const data = await get("experiments");
  if (mine !== generation) return;
  actions = Boolean(data.actions);
  // With a single experiment the list would only be in the way; the name at the top leads back to it.
  if (data.experiments.length === 1 && !route.before) {
    location.replace(address.experimentUrl(data.experiments[0].id));
    return;
  }
  showPage(experimentList(data, (error) => setStale(error ? Date.now() / 1000 : null, error?.message)), []);
}

function showPage(view, path) {
  clearViews();
  views = [view];
  fill(main, view.el);
  showCrumbs(path);
}

function showCrumbs(path) {
  document.title = [...path.map(([name]) => name).reverse(), "trialpod"].join(" · ");
  fill(crumbs, h("ol", {}, h("li", {}, h("a", { href: "#/" }, "Experiments")), path.map(([name, href]) => h("li", {}, href ? h("a", { href }, name) : h("span", { "aria-current": "page" }, name)))));
}

async function showExperiment(wanted, mine) {
  if (!store) {
    fill(main, h("p", { class: "loading" }, "Reading the experiment …"));
    const [head, data, session] = await Promise.all([get(experimentPath(wanted.id)), get(experimentPath(wanted.id, "/trials")), get("session").catch(() => ({}))]);
    if (mine !== generation) return;
    store = new Store(wanted.id, head, data);
    store.actions = Boolean(session.actions ?? actions);
    address.applyQuery(store, wanted.query);
    store.on(changed);
    follower = new Follower(wanted.id, () => store?.cursor, {
      delta: (delta) => { if (store?.id === wanted.id) store.delta(delta); },
      stale: setStale,
      async reload() {
        const [again, rows] = await Promise.all([get(experimentPath(wanted.id)), get(experimentPath(wanted.id, "/trials"))]);
        if (store?.id === wanted.id) store.replace(again, rows);
      },
    });
    if (head.stale_since) setStale(head.stale_since, "The experiment's data does not change although it should.");
    buildFrame();
  }
  showTab(wanted);
}

let place;
let tabs;

function buildFrame() {
  place = h("div", { class: "views", id: "views", role: "tabpanel", tabindex: "-1" });
  tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, Object.entries(TABS).map(([name, [label]]) => h("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "views", "data-tab": name, onclick: () => { location.hash = address.experimentUrl(store.id, name, address.queryOf(store)); },
  }, label)));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...tabs.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
  bars = [header(store), filterBar(store)];
  fill(main, h("div", { class: "page" }, bars[0].el, tabs, bars[1].el, place));
}

function showTab(wanted) {
  const name = wanted.tab === "trial" ? "trial" : TABS[wanted.tab] ? wanted.tab : "overview";
  const signature = `${name}/${wanted.trial ?? ""}`;
  const same = shown === signature;
  shown = signature;
  if (same && name !== "trial" && wanted.query.toString() !== address.queryOf(store)) address.applyQuery(store, wanted.query);
  for (const tab of tabs.children) {
    const current = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", String(current));
    tab.tabIndex = current || (name === "trial" && tab.dataset.tab === "overview") ? 0 : -1;
  }
  const row = wanted.trial ? store.rows.get(wanted.trial) : null;
  const query = address.queryOf(store);
  showCrumbs(name === "trial"
    ? [[store.header.name, address.experimentUrl(store.id, "overview", query)], [`Trial ${row?.number ?? wanted.trial}`, null]]
    : [[store.header.name, null]]);
  bars[1].el.hidden = name === "trial" || name === "compare";
  bars[0].el.classList.toggle("compact", name === "trial");
  if (same) return;
  clearViews();
  place.className = `views views-${name}`;
  if (name === "trial") place.removeAttribute("aria-labelledby");
  else place.setAttribute("aria-labelledby", `tab-${name}`);
  // Views measure the place that they fill: it must be on the page, and wide, before they are made.
  fill(place);
  views = name === "trial" ? [trialPage(store, wanted.trial)] : TABS[name][1](store);
  fill(place, views.map((view) => view.el));
  if (name === "trial") scrollTo(0, 0);
  writeAddress();
  requestAnimationFrame(() => performance.mark("trialpod:shown"));
}

function changed(what) {
  for (const part of bars) part.update(what);
  // With thousands of trials only what is brushed, and the table, follow each step; the other charts wait for a rest.
  const lazy = what === "filter" && store.rows.size > MANY;
  // What only the header says concerns the views that still load.
  for (const view of views) if (what === "header" ? view.loads : !lazy || view.follows) view.update(what);
  if (lazy) rested();
  if (what !== "rows" && what !== "header") writeSoon();
}

// Browsers limit how often an address changes; a brush would be over that limit.
const writeSoon = after(200, () => writeAddress());

const MANY = 2000;
const rested = after(120, () => { for (const view of views) if (!view.follows) view.update("filter"); });

function writeAddress() {
  const wanted = address.read();
  if (!store || wanted.page !== "experiment" || wanted.tab === "trial") return;
  address.replace(address.experimentUrl(store.id, wanted.tab, address.queryOf(store)));
}

function setStale(since, words = "") {
  stale = since;
  if (!since) {
    if (banner.childElementCount) fill(banner);
    return;
  }
  const text = `${words} `;
  if (banner.dataset.words === text && banner.childElementCount) return;
  banner.dataset.words = text;
  fill(banner, h("div", { class: "stale" }, h("strong", {}, "Not up to date. "), text, h("span", { id: "stale-for" })));
}

setInterval(() => {
  if (!store) return;
  const age = (Date.now() - store.updated) / 1000;
  live.classList.toggle("off", Boolean(stale));
  const words = stale ? "not up to date" : age < 3 ? "live" : `live, last change ${duration(Math.round(age))} ago`;
  if (live.textContent !== words) live.textContent = words;
  const place = document.getElementById("stale-for");
  if (place) place.textContent = `(for ${duration(Math.max(0, Math.round(Date.now() / 1000 - stale)))})`;
}, 1000);

function showError(error) {
  leave();
  showCrumbs([["Not available", null]]);
  const expired = error.status === 401;
  fill(main, h("div", { class: "page" }, h("section", { class: "card error-card", role: "alert" },
    h("h1", {}, expired ? "This page needs its link" : error.status === 404 ? "There is no such experiment" : "The experiment cannot be shown"),
    h("p", {}, expired ? "Open the link that `trialpod ui` printed; it has a token that this browser does not know." : error.message),
    error.remedy && !expired ? h("p", { class: "remedy" }, error.remedy) : null,
    h("div", { class: "controls" }, h("button", { type: "button", class: "button primary", onclick: () => route() }, "Try again"), h("a", { class: "button", href: "#/" }, "All experiments")))));
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !store || document.querySelector("dialog[open]")) return;
  if (store.ranges.size) {
    store.ranges.clear();
    store.filterChanged();
  } else if (store.selection.size) store.clearSelection();
});

/** Shows who has signed in, where users do, and lets them sign out. */
async function showUser() {
  const session = await get("session").catch(() => ({}));
  if (!session.signs_in) return;
  const user = document.getElementById("user");
  const button = document.getElementById("sign-out");
  user.textContent = session.user;
  user.title = session.user;
  user.hidden = button.hidden = false;
  button.addEventListener("click", async () => {
    leave();
    await fetch("/signout", { method: "POST" }).catch(() => null);
    location.assign("/login");
  });
}

addEventListener("hashchange", () => { route.before = true; route(); });
setUp(document.getElementById("theme"));
route();
showUser();
