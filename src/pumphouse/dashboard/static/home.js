// One home: its sensors now, its last day as a strip, its alerts.
import { find, make, setText, setClass, keepRows, colour } from "./dom.js";
import { time, ago, hourMinute } from "./format.js";
import { Stream } from "./stream.js";

const LEVEL_COLOURS = ["--s0", "--s1", "--s2", "--s4", "--s5"];
const TONES = ["", "good", "good", "warn", "warn", "bad"];

export class HomeCard {
  constructor(words, onState) {
    this.words = words;
    this.onState = onState;
    this.shown = null;
  }

  open(name) {
    this.close();
    this.name = name;
    this.built = false;
    this.stream = new Stream(`/stream/home/${name}`, { home: (data) => this.show(data) }, () => {});
  }

  close() {
    if (this.stream) this.stream.close();
    this.stream = null;
  }

  build() {
    this.title = make("strong");
    this.pill = make("span", { class: "pill" });
    this.where = make("span", { class: "empty" });
    this.rows = make("tbody");
    this.strip = make("div", { class: "strip", role: "group", "aria-label": "The last day, ten minutes to a step" });
    this.alerts = make("ol", { class: "alerts" });
    this.none = make("p", { class: "empty" }, "No alerts.");
    const head = ["Sensor", "Now", "Since", "Heard", "Battery"].map((name) => make("th", { scope: "col", class: name === "Battery" ? "num" : "" }, name));
    find("home").replaceChildren(
      make("div", { class: "home-head" }, this.title, this.pill, this.where),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sensors now" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), this.rows)),
      make("h3", {}, "The last day"), this.strip,
      make("h3", {}, "Its alerts"), this.alerts, this.none,
    );
    this.canvases = {};
    this.built = true;
  }

  show(data) {
    if (!this.built) this.build();
    this.shown = data;
    setText(this.title, data.home);
    setText(this.pill, data.word);
    setClass(this.pill, `pill ${TONES[data.state]}`);
    const mode = { home: "somebody is home", away: "everybody is away", asleep: "everybody is asleep" }[data.mode];
    setText(this.where, data.heard ? `${data.region} · ${mode}` : `${data.region} · nothing was heard from this home yet`);
    keepRows(this.rows, data.sensors, (one) => one.kind,
      () => make("tr", {}, make("th", { scope: "row" }), make("td"), make("td"), make("td"), make("td", { class: "num" })),
      (row, one) => {
        const cells = row.children;
        setText(cells[0], one.kind);
        setText(cells[1], one.text);
        setText(cells[2], time(one.since));
        setText(cells[3], ago(one.at, data.at));
        setText(cells[4], `${one.battery} %`);
        setClass(row, one.level >= 3 || one.battery <= 15 ? "bad" : "");
      });
    this.paint();
    this.none.hidden = data.alerts.length > 0;
    keepRows(this.alerts, data.alerts, (one) => one.id, () => make("li", { class: "fresh" }, make("span", { class: "pill bad" }), make("span"), make("time"), make("span", { class: "text" })),
      (row, one) => {
        setText(row.children[0], one.kind);
        setText(row.children[1], one.sensor);
        setText(row.children[2], time(one.at));
        setText(row.children[3], one.text);
      });
  }

  paint() {
    if (!this.shown || !this.built) return;
    const { rows, from, slot_ms: step } = this.shown.day;
    const colours = LEVEL_COLOURS.map(colour);
    for (const [kind, digits] of Object.entries(rows)) {
      if (!this.canvases[kind]) {
        const canvas = make("canvas", { role: "img", width: digits.length * 4, height: 16 });
        this.canvases[kind] = canvas;
        this.strip.append(make("span", {}, kind), canvas);
      }
      const canvas = this.canvases[kind];
      const context = canvas.getContext("2d");
      [...digits].forEach((digit, place) => { context.fillStyle = colours[digit]; context.fillRect(place * 4, 0, 4, 16); });
      canvas.setAttribute("aria-label", this.tell(kind, digits, from, step));
      canvas.title = canvas.getAttribute("aria-label");
    }
    if (!this.axis) this.axis = make("div", { class: "axis", "aria-hidden": "true" });
    if (this.axis.parentElement !== this.strip) this.strip.append(make("span"), this.axis);
    const marks = [0, 36, 72, 108, 144].map((slot) => hourMinute(from + slot * step));
    if (this.axis.textContent !== marks.join("")) this.axis.replaceChildren(...marks.map((mark) => make("span", {}, mark)));
  }

  // The strip in words: when the sensor was something else than quiet.
  tell(kind, digits, from, step) {
    const spans = [];
    for (let place = 0; place < digits.length; place++) {
      if (digits[place] < "2") continue;
      const start = place;
      while (place + 1 < digits.length && digits[place + 1] === digits[start]) place++;
      spans.push(`${this.words.levels[digits[start]]} ${hourMinute(from + start * step)} to ${hourMinute(from + (place + 1) * step)}`);
    }
    return `${kind}: ${spans.length ? spans.slice(-6).join("; ") : "quiet or nothing heard all day"}`;
  }
}
