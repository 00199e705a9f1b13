// The tabs, the theme, and the state of the connection.
import { find, setText, setClass } from "./dom.js";
import * as homes from "./homes.js";
import * as fleet from "./fleet.js";
import * as events from "./events.js";
import { seconds } from "./format.js";

const PAGES = { homes, fleet, events };
const RETRY_MS = 1000;
const SHOW_DURATION_S = 5; // the banner shows the duration of a lost connection from here on
const tabs = [...document.querySelectorAll('[role="tab"]')];
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
let current = null;
let about = null;
let lostAt = null;
let refused = false; // the server runs, but was restarted with another token

const pageOf = (tab) => tab.id.replace(/^tab-/, "");

function pageOfPath(path) {
  const name = path.replace(/^\//, "");
  if (name in PAGES && !find(`tab-${name}`).hidden) return name;
  return about.homes ? "homes" : "fleet";
}

function show(name, push) {
  if (current === name) return;
  if (current) {
    PAGES[current].leave();
    find(current).hidden = true;
  }
  current = name;
  for (const tab of tabs) {
    const selected = pageOf(tab) === name;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
  }
  find(name).hidden = false;
  document.title = `${find(`tab-${name}`).textContent} · Pumphouse`;
  if (push) history.pushState(null, "", `/${name}`);
  lostAt = null;
  showState("connecting");
  PAGES[name].enter(about, showState);
}

// Shows the state of the stream of the page: connecting, live or lost.
function showState(state) {
  if (state === "lost" && lostAt === null) lostAt = Date.now();
  if (state === "lost") checkToken();
  if (state === "live") {
    lostAt = null;
    refused = false;
  }
  const lost = lostAt !== null;
  setClass(find("link"), `link ${lost ? "lost" : state}`);
  setText(find("link-word"), lost ? "connection lost" : state);
  showBanner();
}

// A stream does not report why it was refused, so another request is made for the reason.
async function checkToken() {
  try {
    refused = (await fetch("/api/about")).status === 401;
    showBanner();
  } catch {
    refused = false; // the server does not respond
  }
}

function showBanner() {
  const banner = find("banner");
  banner.hidden = lostAt === null;
  if (lostAt === null) return;
  if (refused) {
    setText(banner, "The page was restarted. Open the address that the command has printed.");
    return;
  }
  const lost = Math.floor((Date.now() - lostAt) / 1000);
  const duration = lost >= SHOW_DURATION_S ? ` ${seconds(lost)} ago` : "";
  const text = `Connection to the server of the page lost${duration}.`;
  setText(banner, `${text} The data is stale. The page reconnects by itself.`);
}

function moveTab(event) {
  const visible = tabs.filter((tab) => !tab.hidden);
  const index = visible.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (index < 0 || !step) return;
  event.preventDefault();
  const next = visible[(index + step + visible.length) % visible.length];
  next.focus();
  show(pageOf(next), true);
}

function repaintAll() {
  for (const page of Object.values(PAGES)) page.repaint();
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : darkScheme.matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("pumphouse-theme", root.dataset.theme);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  repaintAll();
}

async function loadAbout() {
  for (;;) {
    try {
      const response = await fetch("/api/about");
      if (response.ok) return await response.json();
      throw new Error(`refused with status ${response.status}`);
    } catch {
      showState("lost");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

async function start() {
  setText(find("zone"), Intl.DateTimeFormat().resolvedOptions().timeZone);
  about = await loadAbout();
  find("tab-homes").hidden = !about.homes;
  find("tab-events").hidden = !about.hubs.length;
  for (const tab of tabs) {
    tab.addEventListener("keydown", moveTab);
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      show(pageOf(tab), true);
    });
  }
  find("theme").addEventListener("click", toggleTheme);
  darkScheme.addEventListener("change", repaintAll);
  addEventListener("popstate", () => show(pageOfPath(location.pathname), false));
  setInterval(showBanner, RETRY_MS);
  show(pageOfPath(location.pathname), false);
}

start();
