// The Homes page: figures, the picture of all homes, one home closely, alerts, the chart.
import { find, make, setText, setClass, keepRows, colour } from "./dom.js";
import { number, rate, seconds, time, known, DASH, plural } from "./format.js";
import { Chart } from "./charts.js";
import { SERIES } from "./palette.js";
import { Stream } from "./stream.js";
import { TownPicture, nameOf } from "./town.js";
import { HomeCard } from "./home.js";

const ALERTS_SHOWN = 50;
let words, picture, card, chart, stream, tell;
let minutes = new Map();
let alerts = [];
let first = true;

export function enter(about, onState) {
  if (!words) build(about.homes);
  tell = onState;
  first = true;
  stream = new Stream("/stream/homes", { homes: show }, tell);
  if (card.name) card.open(card.name);
  const asked = new URLSearchParams(location.search).get("home");
  if (asked && !card.name) choose(asked);
}

export function leave() {
  stream.close();
  card.close();
}

export function repaint() {
  if (!words) return;
  picture.repaint();
  card.paint();
  chart.repaint();
}

function build(given) {
  words = given;
  picture = new TownPicture(words, (home) => choose(nameOf(home)));
  card = new HomeCard(words, tell);
  chart = new Chart(find("minutes"), [
    ...words.kinds.slice(0, 5).map((label, place) => ({ label, stroke: SERIES[place] })),
    { label: "alerts", stroke: () => colour("--bad"), scale: "right", dash: [4, 3] },
  ], { right: true });
  find("states-meaning").replaceChildren(make("dl", {}, ...words.states.flatMap((state, place) => [make("dt", {}, swatch(place), " ", state.word), make("dd", {}, state.meaning)])));
  find("states-legend").replaceChildren(...words.states.map((state, place) => make("li", { title: state.meaning }, swatch(place), state.word, make("b"))));
  find("find").addEventListener("submit", (event) => { event.preventDefault(); choose(find("home-name").value); });
  const head = make("tr", {}, make("th", { scope: "col" }, "Region"), ...words.states.map((state) => make("th", { scope: "col", class: "num", title: state.meaning }, state.word)));
  find("regions").replaceChildren(make("thead", {}, head), make("tbody"));
}

const swatch = (state) => make("span", { class: `swatch s${state}`, "aria-hidden": "true" });

function choose(text) {
  const digits = text.trim().toLowerCase().replace(/^h/, "");
  const error = find("find-error");
  if (!/^\d{1,6}$/.test(digits)) { setText(error, "A home is a number of up to six digits, such as h000042 or 42."); return; }
  const name = nameOf(Number(digits));
  if (picture.states.length && Number(digits) >= picture.states.length) { setText(error, `There is no home ${name} here: the highest is ${nameOf(picture.states.length - 1)}.`); return; }
  setText(error, "");
  find("home-name").value = name;
  card.open(name);
  history.replaceState(null, "", `/homes?home=${name}`);
}

function show(data) {
  if (known(data.grid)) picture.whole(decode(data.grid));
  else if (data.changed) picture.change(new Uint32Array(decode(data.changed).buffer));
  picture.counts(data.regions);
  showTrouble(data);
  showFigures(data);
  [...find("states-legend").children].forEach((item, state) => setText(item.lastChild, number(data.states[state])));
  showRegions(data.regions);
  showAlerts(data);
  showMinutes(data);
  first = false;
}

function decode(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place++) found[place] = raw.charCodeAt(place);
  return found;
}

function showTrouble(data) {
  const element = find("homes-trouble");
  let text = "";
  if (data.trouble) text = `The homes' hubs cannot be read: ${data.trouble}. Trying again; what is shown is from before.`;
  else if (data.behind_s) text = `Catching up with the last day: the readings that come in are ${seconds(data.behind_s)} old.`;
  else if (!data.known) text = "No home has been heard yet. Readings come once the sensors send and the first Spark stage has sifted them.";
  element.hidden = !text;
  setText(element, text);
}

function showFigures(data) {
  // What the server measured, and what it took from there to this screen.
  const way = Math.max(0, (Date.now() - data.at) / 1000);
  const delay = data.delay;
  const total = known(delay.total_s) ? delay.total_s + way : null;
  const figures = [
    ["homes", "Homes heard", number(data.known), "", `of ${number(data.size)}`],
    ["delay", "Sensor to page", known(total) ? seconds(total) : DASH, "", known(total) ? `hub ${seconds(delay.hub_s)}, page ${seconds(delay.page_s + way)}` : "no fresh reading yet"],
    ["in", "Sensors send", rate(data.rates.sensors), "/s", "readings in"],
    ["kept", "Worth keeping", rate(data.rates.activity), "/s", data.unreadable ? `${number(data.unreadable)} unreadable` : "activities out"],
    ["alert", "Homes in alert", number(data.states[5]), "", "within the last hour", data.states[5] > 0],
    ["day", "Alerts", number(data.alerts_day), "", "in the last day"],
  ];
  keepRows(find("homes-figures"), figures, (one) => one[0],
    () => make("li", {}, make("span", { class: "name" }), make("span", { class: "value" }), make("span", { class: "unit" }), make("span", { class: "more" })),
    (item, [key, name, value, unit, more, bad]) => {
      item.id = `figure-${key}`;
      setText(item.children[0], name);
      setText(item.children[1], value);
      setText(item.children[2], unit);
      setText(item.children[3], more);
      setClass(item, bad ? "bad" : "");
    });
}

function showRegions(regions) {
  keepRows(find("regions").tBodies[0], regions.map((counts, place) => ({ counts, place })), (one) => one.place,
    () => make("tr", {}, make("th", { scope: "row" }), ...words.states.map(() => make("td", { class: "num" }))),
    (row, { counts, place }) => {
      setText(row.children[0], words.regions[place]);
      counts.forEach((count, state) => setText(row.children[state + 1], number(count)));
    });
}

function showAlerts(data) {
  if (first) alerts = [];
  const seen = new Set(data.alerts.map((one) => one.id));
  alerts = [...data.alerts, ...alerts.filter((one) => !seen.has(one.id))].slice(0, ALERTS_SHOWN);
  find("alerts-empty").hidden = alerts.length > 0;
  setText(find("alerts-count"), data.alerts_day > alerts.length ? `the newest ${alerts.length} of ${number(data.alerts_day)}` : alerts.length ? plural(alerts.length, "alert") : "");
  keepRows(find("alerts"), alerts, (one) => one.id, buildAlert, (row, one) => {
    setText(row.children[0], one.kind);
    setText(row.children[1].firstChild, one.home);
    setText(row.children[2], time(one.at));
    setText(row.children[3], `${one.text} · ${one.region}`);
  });
}

function buildAlert(one) {
  const open = make("button", { type: "button", class: "link-button", onclick: () => choose(one.home) });
  return make("li", { class: first ? "" : "fresh" }, make("span", { class: one.kind === "fire" || one.kind === "break-in" ? "pill bad" : "pill warn" }), make("span", {}, open), make("time"), make("span", { class: "text" }));
}

function showMinutes(data) {
  if (first) minutes = new Map();
  for (const row of data.minutes) minutes.set(row[0], row);
  const rows = [...minutes.values()].sort((one, other) => one[0] - other[0]).slice(-180);
  const begun = rows.findIndex((row) => row.slice(1).some((count) => count > 0));
  const from = begun < 0 ? Math.max(0, rows.length - 30) : Math.max(0, Math.min(begun, rows.length - 15));
  minutes = new Map(rows.map((row) => [row[0], row]));
  // kinds 6 and 7 are climate, which only a replay has; the last number is alerts
  chart.show(rows.slice(from).map((row) => [...row.slice(0, 6), row[row.length - 1]]));
  const last = rows[rows.length - 2];
  if (last) setText(find("minutes-text"), `In the last full minute: ${words.kinds.slice(0, 5).map((kind, place) => `${number(last[place + 1])} ${kind}`).join(", ")}, ${number(last[last.length - 1])} alerts.`);
}
