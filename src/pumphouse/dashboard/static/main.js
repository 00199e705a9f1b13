// The tabs, the theme, and the word that says whether what is shown is live.
import { find, setText, setClass } from "./dom.js";
import * as homes from "./homes.js";
import * as fleet from "./fleet.js";
import * as events from "./events.js";
import { seconds } from "./format.js";

const PAGES = { homes, fleet, events };
const tabs = [...document.querySelectorAll('[role="tab"]')];
let current = null;
let about = null;
let lostAt = null;

function nameOf(path) {
  const name = path.replace(/^\//, "");
  if (name in PAGES && !find(`tab-${name}`).hidden) return name;
  return about.homes ? "homes" : "fleet";
}

function show(name, push) {
  if (current === name) return;
  if (current) { PAGES[current].leave(); find(current).hidden = true; }
  current = name;
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
  }
  find(name).hidden = false;
  document.title = `${find(`tab-${name}`).textContent} · Pumphouse`;
  if (push) history.pushState(null, "", `/${name}`);
  lostAt = null;
  state("connecting");
  PAGES[name].enter(about, state);
}

// Tells how the stream of the page is: connecting, live or lost.
function state(word) {
  if (word === "lost" && lostAt === null) lostAt = Date.now();
  if (word === "live") lostAt = null;
  const lost = lostAt !== null;
  setClass(find("link"), `link ${lost ? "lost" : word}`);
  setText(find("link-word"), lost ? "connection lost" : word);
  banner();
}

function banner() {
  const element = find("banner");
  if (lostAt === null) { element.hidden = true; return; }
  element.hidden = false;
  const since = Math.floor((Date.now() - lostAt) / 1000);
  // Read out once; the seconds that follow would only be noise.
  setText(element, `The page has lost its server${since >= 5 ? ` ${seconds(since)} ago` : ""}. What you see is from before. It comes back by itself.`);
}

function moveTab(event) {
  const visible = tabs.filter((tab) => !tab.hidden);
  const place = visible.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (place < 0 || !step) return;
  event.preventDefault();
  const next = visible[(place + step + visible.length) % visible.length];
  next.focus();
  show(next.id.slice(4), true);
}

function chooseTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("pumphouse-theme", root.dataset.theme); } catch { /* then only for now */ }
  for (const page of Object.values(PAGES)) page.repaint();
}

async function start() {
  setText(find("zone"), Intl.DateTimeFormat().resolvedOptions().timeZone);
  for (;;) {
    try {
      about = await (await fetch("/api/about")).json();
      break;
    } catch {
      state("lost");
      await new Promise((go) => setTimeout(go, 1000));
    }
  }
  find("tab-homes").hidden = !about.homes;
  find("tab-events").hidden = !about.hubs.length;
  for (const tab of tabs) {
    tab.addEventListener("click", (event) => { event.preventDefault(); show(tab.id.slice(4), true); });
    tab.addEventListener("keydown", moveTab);
  }
  find("theme").addEventListener("click", chooseTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const page of Object.values(PAGES)) page.repaint(); });
  addEventListener("popstate", () => show(nameOf(location.pathname), false));
  setInterval(banner, 1000);
  show(nameOf(location.pathname), false);
}

start();
