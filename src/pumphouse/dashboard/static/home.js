// The card of one home: current sensor values, the last day as a strip, and alerts.
import { find, make, setText, setClass, keepRows, colour } from "./dom.js";
import { time, ago, hourMinute } from "./format.js";
import { Stream } from "./stream.js";
import { Table } from "./table.js";

const LEVEL_COLOURS = ["--s0", "--s1", "--s2", "--s4", "--s6"];
const STATE_TONES = ["", "good", "good", "warn", "warn", "bad", "bad"];
const MODES = { home: "at home", away: "away", asleep: "asleep" };
const ACTIVE_LEVEL = 2; // levels from here on are mentioned in the text of the strip
const FAULT_LEVEL = 3;
const LOW_BATTERY = 15;
const SLOT_WIDTH = 4;
const STRIP_HEIGHT = 16;
const AXIS_SLOTS = [0, 36, 72, 108, 144];

const SENSOR_COLUMNS = [
  { name: "kind", title: "Sensor" },
  { name: "text", title: "Now" },
  { name: "since", title: "Since" },
  { name: "at", title: "Updated" },
  { name: "battery", title: "Battery", numeric: true },
];

export class HomeCard {
  constructor(words, onAlert) {
    this.words = words;
    this.onAlert = onAlert;
    this.data = null;
  }

  open(name) {
    this.close();
    this.name = name;
    this.built = false;
    const handlers = { home: (data) => this.show(data) };
    this.stream = new Stream(`/stream/home/${name}`, handlers, () => {});
  }

  close() {
    if (this.stream) this.stream.close();
    this.stream = null;
  }

  build() {
    this.title = make("strong");
    this.pill = make("span", { class: "pill" });
    this.subtitle = make("span", { class: "empty" });
    this.sensors = new Table(SENSOR_COLUMNS, this.sensorCells(), { rowHeader: "kind" });
    const label = "The last day in steps of ten minutes";
    this.strip = make("div", { class: "strip", role: "group", "aria-label": label });
    this.alerts = make("ol", { class: "alerts" });
    this.noAlerts = make("p", { class: "empty" }, "No alerts.");
    this.axis = make("div", { class: "axis", "aria-hidden": "true" });
    this.canvases = {};
    const scroll = { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sensors now" };
    find("home").replaceChildren(
      make("div", { class: "home-head" }, this.title, this.pill, this.subtitle),
      make("div", scroll, make("table", {}, this.sensors.head(), this.sensors.body)),
      make("h3", {}, "The last day"),
      this.strip,
      make("h3", {}, "Alerts of this home"),
      this.alerts,
      this.noAlerts,
    );
    this.built = true;
  }

  sensorCells() {
    return {
      kind: (sensor) => sensor.kind,
      text: (sensor) => sensor.text,
      since: (sensor) => time(sensor.since),
      at: (sensor) => ago(sensor.at, this.data.at),
      battery: (sensor) => `${sensor.battery} %`,
    };
  }

  show(data) {
    if (!this.built) this.build();
    this.data = data;
    setText(this.title, data.home);
    setText(this.pill, data.state_name);
    setClass(this.pill, `pill ${STATE_TONES[data.state]}`);
    const mode = data.last_reading ? MODES[data.mode] : "no activity of this home yet";
    setText(this.subtitle, `${data.region} · ${mode}`);
    this.sensors.show(
      data.sensors,
      (sensor) => sensor.kind,
      (row, sensor) => setClass(row, isBad(sensor) ? "bad" : ""),
    );
    this.paint();
    this.showAlerts(data.alerts);
  }

  showAlerts(alerts) {
    this.noAlerts.hidden = alerts.length > 0;
    keepRows(
      this.alerts,
      alerts,
      (alert) => alert.id,
      (alert) => this.buildAlert(alert),
      (item, alert) => {
        setText(item.querySelector(".pill"), alert.kind);
        setText(item.querySelector(".sensor"), alert.sensor);
        setText(item.querySelector("time"), time(alert.at));
        setText(item.querySelector(".details"), alert.text || "Details");
        setText(item.querySelector(".state"), alert.state === "open" ? "" : ` · ${alert.state}`);
      },
    );
  }

  buildAlert(alert) {
    const details = { type: "button", class: "link-button details" };
    details.onclick = () => this.onAlert(alert.id);
    return make(
      "li",
      { class: "fresh" },
      make("span", { class: "pill bad" }),
      make("span", { class: "sensor" }),
      make("time"),
      make("span", { class: "text" }, make("button", details), make("span", { class: "state" })),
    );
  }

  paint() {
    if (!this.data || !this.built) return;
    const { rows, from, slot_ms: step } = this.data.day;
    const colours = LEVEL_COLOURS.map(colour);
    for (const [kind, levels] of Object.entries(rows)) {
      const canvas = this.canvasOf(kind, levels.length);
      const context = canvas.getContext("2d");
      [...levels].forEach((level, slot) => {
        context.fillStyle = colours[level];
        context.fillRect(slot * SLOT_WIDTH, 0, SLOT_WIDTH, STRIP_HEIGHT);
      });
      const text = this.stripText(kind, levels, from, step);
      canvas.setAttribute("aria-label", text);
      canvas.title = text;
    }
    if (this.axis.parentElement !== this.strip) this.strip.append(make("span"), this.axis);
    const times = AXIS_SLOTS.map((slot) => hourMinute(from + slot * step));
    if (this.axis.textContent !== times.join("")) {
      this.axis.replaceChildren(...times.map((text) => make("span", {}, text)));
    }
  }

  canvasOf(kind, slots) {
    if (!this.canvases[kind]) {
      const size = { width: slots * SLOT_WIDTH, height: STRIP_HEIGHT };
      this.canvases[kind] = make("canvas", { role: "img", ...size });
      this.strip.append(make("span", {}, kind), this.canvases[kind]);
    }
    return this.canvases[kind];
  }

  // The strip as text: the spans in which the sensor was not quiet.
  stripText(kind, levels, from, step) {
    const spans = [];
    for (let slot = 0; slot < levels.length; slot++) {
      if (Number(levels[slot]) < ACTIVE_LEVEL) continue;
      const start = slot;
      while (levels[slot + 1] === levels[start]) slot++;
      const begin = hourMinute(from + start * step);
      const end = hourMinute(from + (slot + 1) * step);
      spans.push(`${this.words.levels[levels[start]]} ${begin} to ${end}`);
    }
    const text = spans.length ? spans.slice(-6).join("; ") : "quiet or no data all day";
    return `${kind}: ${text}`;
  }
}

const isBad = (sensor) => sensor.level >= FAULT_LEVEL || sensor.battery <= LOW_BATTERY;
