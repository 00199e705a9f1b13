// The Homes page: figures, the grid of all homes, one home in detail, alerts, and a chart.
import { find, make, setText, setClass, keepRows, colour } from "./dom.js";
import { number, plural, rate, seconds, time, known, DASH } from "./format.js";
import { Chart } from "./charts.js";
import { SERIES } from "./palette.js";
import { Stream } from "./stream.js";
import { HomeGrid, nameOf } from "./home_grid.js";
import { HomeCard } from "./home.js";
import { AlertCard } from "./alert_card.js";
import { Table } from "./table.js";

const ALERTS_MAX = 50;
const MINUTES_MAX = 180;
const EMPTY_MINUTES = 30; // shown before the first activity
const MINUTES_MIN = 15;
const NO_DATA_STATE = 0;

let words, grid, card, alertCard, chart, regions, stream;
let minutes = new Map();
let alerts = [];
let isFirst = true; // whether the next message is the first of the stream

export function enter(about, onState) {
  if (!words) build(about.homes);
  isFirst = true;
  stream = new Stream("/stream/homes", { homes: show }, onState);
  if (card.name) card.open(card.name);
  const name = new URLSearchParams(location.search).get("home");
  if (name && !card.name) choose(name);
}

export function leave() {
  stream.close();
  card.close();
}

export function repaint() {
  if (!words) return;
  grid.repaint();
  card.paint();
  chart.repaint();
}

function build(vocabulary) {
  words = vocabulary;
  grid = new HomeGrid(words, (home) => choose(nameOf(home)));
  card = new HomeCard(words, (id) => alertCard.open(id));
  alertCard = new AlertCard(choose);
  chart = buildChart();
  regions = buildRegions();
  const meanings = words.states.flatMap((state, index) => [
    make("dt", {}, swatch(index), " ", state.name),
    make("dd", {}, state.meaning),
  ]);
  const states = words.numbers.homes_by_state.meaning;
  find("states-meaning").replaceChildren(make("p", {}, states), make("dl", {}, ...meanings));
  find("minutes-title").textContent = words.numbers.activities_per_minute.title;
  find("minutes-meaning").replaceWith(explanation("activities_per_minute"));
  const legend = words.states.map((state, index) =>
    make("li", { title: state.meaning }, swatch(index), state.name, make("b")),
  );
  find("states-legend").replaceChildren(...legend);
  find("find").addEventListener("submit", (event) => {
    event.preventDefault();
    choose(find("home-name").value);
  });
}

// The items of the kinds in the chart. It has no climate sensors, which only replayed data has.
const charted = (items) => words.charted.map((index) => items[index]);

function buildChart() {
  const stroke = (index) => SERIES[index % SERIES.length];
  const series = charted(words.kinds).map((label, index) => ({ label, stroke: stroke(index) }));
  const red = () => colour("--bad");
  series.push({ label: "alerts", stroke: red, scale: "right", dash: [4, 3] });
  return new Chart(find("minutes"), series, { right: true });
}

// A column for the region, and one for each state.
function buildRegions() {
  const columns = [{ name: "region", title: "Region" }];
  const cells = { region: (row) => row.region };
  words.states.forEach((state, index) => {
    const name = `state_${index}`;
    columns.push({ name, title: state.name, meaning: state.meaning, numeric: true });
    cells[name] = (row) => number(row.counts[index]);
  });
  const table = new Table(columns, cells, { rowHeader: "region" });
  find("regions").replaceChildren(table.head(), table.body);
  return table;
}

const swatch = (state) => make("span", { class: `swatch s${state}`, "aria-hidden": "true" });

function choose(text) {
  const digits = text.trim().toLowerCase().replace(/^h/, "");
  const error = find("find-error");
  if (!/^\d{1,6}$/.test(digits)) {
    setText(error, "Invalid home: use a number of up to six digits, such as h000042 or 42.");
    return;
  }
  const home = Number(digits);
  const homes = grid.states.length;
  if (homes && home >= homes) {
    setText(error, `Unknown home ${nameOf(home)}: the highest is ${nameOf(homes - 1)}.`);
    return;
  }
  setText(error, "");
  find("home-name").value = nameOf(home);
  card.open(nameOf(home));
  history.replaceState(null, "", `/homes?home=${nameOf(home)}`);
}

function show(data) {
  if (known(data.grid)) grid.setAll(decode(data.grid));
  else if (data.changed) grid.setChanged(new Uint32Array(decode(data.changed).buffer));
  grid.showCounts(data.regions);
  showTrouble(data);
  showFigures(data);
  const legend = [...find("states-legend").querySelectorAll("b")];
  legend.forEach((count, state) => setText(count, number(data.homes_by_state[state])));
  const rows = data.regions.map((counts, index) => ({ region: words.regions[index], counts }));
  regions.show(rows, (row) => row.region);
  showAlerts(data);
  showMinutes(data);
  isFirst = false;
}

function decode(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function showTrouble(data) {
  const text = troubleText(data);
  find("homes-trouble").hidden = !text;
  setText(find("homes-trouble"), text);
}

function troubleText(data) {
  if (data.trouble) {
    return `Cannot read the hubs of the homes: ${data.trouble}. Retrying; the data is stale.`;
  }
  if (data.behind_s) {
    const age = seconds(data.behind_s);
    return `Catching up with the last day: the incoming readings are ${age} old.`;
  }
  if (data.records_trouble) {
    return `Cannot read the database of the records: ${data.records_trouble}. Retrying; the page shows what it has read from the hubs.`;
  }
  if (data.homes_by_state[NO_DATA_STATE] === data.size) {
    return "No activities yet. They appear after the sensors send and the stage sift has run.";
  }
  return "";
}

// A number; "20,000+" if it is a lower bound, because the page does not keep all alerts.
function counted(data, name) {
  return `${number(data[name])}${data.at_least.includes(name) ? "+" : ""}`;
}

// The names are those of views/numbers.py, which has the titles and definitions.
function figuresOf(data) {
  return [
    { key: "homes_heard", value: number(data.homes_heard), note: `of ${number(data.size)}` },
    delayFigure(data),
    alertDelayFigure(data),
    { key: "readings_per_s", value: rate(data.readings_per_s), unit: "/s", note: "in hub sensors" },
    {
      key: "activities_per_s",
      value: rate(data.activities_per_s),
      unit: "/s",
      note: data.invalid ? `${number(data.invalid)} invalid` : "in hub activity",
    },
    {
      key: "homes_in_alert",
      value: counted(data, "homes_in_alert"),
      note: "with an open alert",
      bad: data.homes_in_alert > 0,
    },
    {
      key: "alerts_open",
      value: counted(data, "alerts_open"),
      note: "not closed",
      bad: data.alerts_open > 0,
    },
    {
      key: "alerts_day",
      value: counted(data, "alerts_day"),
      note: "open and closed",
    },
  ];
}

function delayFigure(data) {
  // The delay that the server measured, and the time from the server to this screen.
  const network = Math.max(0, (Date.now() - data.at) / 1000);
  const { hub_s: hub, page_s: page, total_s: total } = data.sensor_to_page;
  const key = "sensor_to_page";
  if (!known(total)) return { key, value: DASH, note: "no recent activity" };
  const note = `hub ${seconds(hub)}, page ${seconds(page + network)}`;
  return { key, value: seconds(total + network), note };
}

function alertDelayFigure(data) {
  const { alerts, p50_s: median, p99_s: most } = data.sensor_to_alert;
  const key = "sensor_to_alert";
  if (!known(median)) return { key, value: DASH, note: "no recent alert" };
  return { key, value: seconds(median), note: `99 % ${seconds(most)}, ${plural(alerts, "alert")}` };
}

function showFigures(data) {
  keepRows(
    find("homes-figures"),
    figuresOf(data),
    (figure) => figure.key,
    buildFigure,
    (item, figure) => {
      setText(item.querySelector(".value"), figure.value);
      setText(item.querySelector(".unit"), figure.unit ?? "");
      setText(item.querySelector(".note"), figure.note ?? "");
      setClass(item, figure.bad ? "bad" : "");
    },
  );
}

function buildFigure(figure) {
  const { title } = words.numbers[figure.key];
  return make(
    "li",
    { id: `figure-${figure.key.replaceAll("_", "-")}` },
    make("span", { class: "name" }, title),
    make("span", { class: "value" }),
    make("span", { class: "unit" }),
    make("span", { class: "note" }),
    explanation(figure.key),
  );
}

// The definition of a number, behind "What is this?".
function explanation(name) {
  const { title, meaning, source } = words.numbers[name];
  const summary = make("summary", { "aria-label": `What is this? ${title}` }, "What is this?");
  const from = `Counted in: ${source.replaceAll("`", "")}.`;
  return make("details", { class: "what" }, summary, make("p", {}, meaning), make("p", {}, from));
}

function showAlerts(data) {
  if (isFirst) alerts = [];
  const changed = new Set(data.alerts.map((alert) => alert.id));
  const earlier = alerts.filter((alert) => !changed.has(alert.id));
  alerts = [...data.alerts, ...earlier].sort(byRank).slice(0, ALERTS_MAX);
  alertCard.update(data.alerts);
  find("alerts-empty").hidden = alerts.length > 0;
  const open = counted(data, "alerts_open");
  setText(find("alerts-count"), alertsText(data.alerts_open, open));
  keepRows(find("alerts"), alerts, (alert) => alert.id, buildAlert, updateAlert);
}

// Open alerts come first, then the newest.
function byRank(a, b) {
  const closed = (alert) => (alert.state === "closed" ? 1 : 0);
  return closed(a) - closed(b) || b.at - a.at || (a.id < b.id ? 1 : -1);
}

function alertsText(open, text) {
  const shown = alerts.filter((alert) => alert.state !== "closed").length;
  if (open > shown) return `the newest ${number(shown)} of ${text} open`;
  return alerts.length ? `${text} open` : "";
}

function buildAlert(alert) {
  const toHome = { type: "button", class: "link-button home", onclick: () => choose(alert.home) };
  const details = { type: "button", class: "link-button details" };
  details.onclick = () => alertCard.open(alert.id);
  const tone = words.urgent.includes(alert.kind) ? "bad" : "warn";
  return make(
    "li",
    { class: isFirst ? "" : "fresh" },
    make("span", { class: `pill ${tone}` }),
    make("span", {}, make("button", toHome)),
    make("time"),
    make("span", { class: "text" }, make("button", details), make("span")),
  );
}

function updateAlert(item, alert) {
  setText(item.querySelector(".pill"), alert.kind);
  setText(item.querySelector(".home"), alert.home);
  setText(item.querySelector("time"), time(alert.at));
  setText(item.querySelector(".details"), alert.text || "Details");
  const state = alert.state === "open" ? "" : ` · ${alert.state}`;
  setText(item.querySelector(".text span"), ` · ${alert.region}${state}`);
  item.classList.toggle("gone", alert.state === "closed");
}

// A row of data.activities_per_minute has the start, a count for each kind of sensor, and the alerts.
function showMinutes(data) {
  if (isFirst) minutes = new Map();
  for (const row of data.activities_per_minute) minutes.set(row[0], row);
  const rows = [...minutes.values()].sort((a, b) => a[0] - b[0]).slice(-MINUTES_MAX);
  minutes = new Map(rows.map((row) => [row[0], row]));
  const shown = rows.slice(firstMinute(rows));
  chart.show(shown.map((row) => [row[0], ...charted(row.slice(1)), row.at(-1)]));
  const last = rows.at(-2); // the last minute is not complete yet
  if (last) setText(find("minutes-text"), minuteText(last));
}

// The index of the first minute to show: the first with activities.
function firstMinute(rows) {
  const first = rows.findIndex((row) => row.slice(1).some((count) => count > 0));
  if (first < 0) return Math.max(0, rows.length - EMPTY_MINUTES);
  return Math.max(0, Math.min(first, rows.length - MINUTES_MIN));
}

function minuteText(row) {
  const values = charted(row.slice(1));
  const counts = charted(words.kinds).map((kind, index) => `${number(values[index])} ${kind}`);
  return `In the last full minute: ${counts.join(", ")}, ${number(row.at(-1))} alerts.`;
}
