// The Homes page: figures, the grid of all homes, one home in detail, alerts, and a chart.
import { find, make, setText, setClass, keepRows, colour } from "./dom.js";
import { number, rate, seconds, time, known, DASH, plural } from "./format.js";
import { Chart } from "./charts.js";
import { SERIES } from "./palette.js";
import { Stream } from "./stream.js";
import { HomeGrid, nameOf } from "./home_grid.js";
import { HomeCard } from "./home.js";
import { Table } from "./table.js";

const ALERTS_MAX = 50;
const MINUTES_MAX = 180;
const EMPTY_MINUTES = 30; // shown before the first reading
const MINUTES_MIN = 15;
const CHART_KINDS = 5; // the further kinds are climate sensors, which only a replay has
const ALERT_STATE = 5;
const URGENT_ALERTS = new Set(["fire", "break-in"]);

let words, grid, card, chart, regions, stream;
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

function build(given) {
  words = given;
  grid = new HomeGrid(words, (home) => choose(nameOf(home)));
  card = new HomeCard(words);
  chart = buildChart();
  regions = buildRegions();
  const meanings = words.states.flatMap((state, index) => [
    make("dt", {}, swatch(index), " ", state.word),
    make("dd", {}, state.meaning),
  ]);
  find("states-meaning").replaceChildren(make("dl", {}, ...meanings));
  const legend = words.states.map((state, index) =>
    make("li", { title: state.meaning }, swatch(index), state.word, make("b")),
  );
  find("states-legend").replaceChildren(...legend);
  find("find").addEventListener("submit", (event) => {
    event.preventDefault();
    choose(find("home-name").value);
  });
}

function buildChart() {
  const kinds = words.kinds.slice(0, CHART_KINDS);
  const series = kinds.map((label, index) => ({ label, stroke: SERIES[index] }));
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
    columns.push({ name, title: state.word, meaning: state.meaning, numeric: true });
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
  legend.forEach((count, state) => setText(count, number(data.states[state])));
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
  if (!data.known) {
    return "No readings yet. They appear after the sensors send and the stage sift has run.";
  }
  return "";
}

function figuresOf(data) {
  // The delay that the server measured, and the time from the server to this screen.
  const network = Math.max(0, (Date.now() - data.at) / 1000);
  const { hub_s: hub, page_s: page, total_s: total } = data.delay;
  const inAlert = data.states[ALERT_STATE];
  return [
    {
      key: "homes",
      name: "Homes with readings",
      value: number(data.known),
      more: `of ${number(data.size)}`,
    },
    known(total)
      ? {
          key: "delay",
          name: "Sensor to page",
          value: seconds(total + network),
          more: `hub ${seconds(hub)}, page ${seconds(page + network)}`,
        }
      : { key: "delay", name: "Sensor to page", value: DASH, more: "no recent reading" },
    {
      key: "in",
      name: "Readings sent",
      value: rate(data.rates.sensors),
      unit: "/s",
      more: "to hub sensors",
    },
    {
      key: "kept",
      name: "Readings kept",
      value: rate(data.rates.activity),
      unit: "/s",
      more: data.unreadable ? `${number(data.unreadable)} invalid` : "in hub activity",
    },
    {
      key: "alert",
      name: "Homes in alert",
      value: number(inAlert),
      more: "in the last hour",
      bad: inAlert > 0,
    },
    { key: "day", name: "Alerts", value: number(data.alerts_day), more: "in the last day" },
  ];
}

function showFigures(data) {
  keepRows(
    find("homes-figures"),
    figuresOf(data),
    (figure) => figure.key,
    (figure) =>
      make(
        "li",
        { id: `figure-${figure.key}` },
        make("span", { class: "name" }),
        make("span", { class: "value" }),
        make("span", { class: "unit" }),
        make("span", { class: "more" }),
      ),
    (item, figure) => {
      setText(item.querySelector(".name"), figure.name);
      setText(item.querySelector(".value"), figure.value);
      setText(item.querySelector(".unit"), figure.unit ?? "");
      setText(item.querySelector(".more"), figure.more);
      setClass(item, figure.bad ? "bad" : "");
    },
  );
}

function showAlerts(data) {
  if (isFirst) alerts = [];
  const added = new Set(data.alerts.map((alert) => alert.id));
  const earlier = alerts.filter((alert) => !added.has(alert.id));
  alerts = [...data.alerts, ...earlier].slice(0, ALERTS_MAX);
  find("alerts-empty").hidden = alerts.length > 0;
  setText(find("alerts-count"), alertsText(data.alerts_day));
  keepRows(find("alerts"), alerts, (alert) => alert.id, buildAlert, updateAlert);
}

function alertsText(total) {
  if (total > alerts.length) return `the newest ${alerts.length} of ${number(total)}`;
  return alerts.length ? plural(alerts.length, "alert") : "";
}

function buildAlert(alert) {
  const open = { type: "button", class: "link-button", onclick: () => choose(alert.home) };
  const tone = URGENT_ALERTS.has(alert.kind) ? "bad" : "warn";
  return make(
    "li",
    { class: isFirst ? "" : "fresh" },
    make("span", { class: `pill ${tone}` }),
    make("span", {}, make("button", open)),
    make("time"),
    make("span", { class: "text" }),
  );
}

function updateAlert(item, alert) {
  setText(item.querySelector(".pill"), alert.kind);
  setText(item.querySelector("button"), alert.home);
  setText(item.querySelector("time"), time(alert.at));
  setText(item.querySelector(".text"), `${alert.text} · ${alert.region}`);
}

// A row of data.minutes has the start, a count for each kind of sensor, and the alerts.
function showMinutes(data) {
  if (isFirst) minutes = new Map();
  for (const row of data.minutes) minutes.set(row[0], row);
  const rows = [...minutes.values()].sort((a, b) => a[0] - b[0]).slice(-MINUTES_MAX);
  minutes = new Map(rows.map((row) => [row[0], row]));
  const charted = rows.slice(firstMinute(rows));
  chart.show(charted.map((row) => [...row.slice(0, CHART_KINDS + 1), row.at(-1)]));
  const last = rows.at(-2); // the last minute is not complete yet
  if (last) setText(find("minutes-text"), minuteText(last));
}

// The index of the first minute to show: the first with readings.
function firstMinute(rows) {
  const first = rows.findIndex((row) => row.slice(1).some((count) => count > 0));
  if (first < 0) return Math.max(0, rows.length - EMPTY_MINUTES);
  return Math.max(0, Math.min(first, rows.length - MINUTES_MIN));
}

function minuteText(row) {
  const kinds = words.kinds.slice(0, CHART_KINDS);
  const counts = kinds.map((kind, index) => `${number(row[index + 1])} ${kind}`);
  return `In the last full minute: ${counts.join(", ")}, ${number(row.at(-1))} alerts.`;
}
