// The card of one alert: its rule, its steps with their times, the activities around it, and the
// buttons that acknowledge and close it.
import { find, make, setText, setClass, keepRows, post } from "./dom.js";
import { time, clockWithMs, seconds, known, DASH } from "./format.js";
import { Table, columnMeanings } from "./table.js";

const NAME_KEY = "pumphouse-name";
const TONES = { open: "bad", acknowledged: "warn", closed: "good" };
const ACTIVITY_COLUMNS = [
  { name: "at", title: "Time", meaning: "When the reading was taken." },
  { name: "sensor", title: "Sensor", meaning: "The kind of sensor." },
  { name: "text", title: "Value", meaning: "The value of the reading." },
  { name: "mode", title: "Mode", meaning: "The mode of the alarm panel." },
  { name: "why", title: "Why kept", meaning: "The reason for which the stage sift kept it." },
];

export class AlertCard {
  constructor(onHome) {
    this.onHome = onHome;
    this.id = null;
    this.built = false;
    find("alert-hide").addEventListener("click", () => this.hide());
    find("alert-acknowledge").addEventListener("click", () => this.change("acknowledge"));
    find("alert-close").addEventListener("click", () => this.change("close"));
    find("alert-change").addEventListener("submit", (event) => event.preventDefault());
    find("alert-by").value = storedName();
  }

  build() {
    this.kind = make("strong");
    this.pill = make("span", { class: "pill" });
    const toHome = { type: "button", class: "link-button", onclick: () => this.onHome(this.home) };
    this.homeButton = make("button", toHome);
    this.region = make("span", { class: "empty" });
    this.text = make("p");
    this.rule = make("p", { class: "hint" });
    this.trace = make("p", { class: "hint trace" });
    this.steps = make("ol", { class: "steps", "aria-label": "Steps" });
    const cells = {
      at: (activity) => time(activity.at),
      sensor: (activity) => activity.sensor,
      text: (activity) => activity.text,
      mode: (activity) => activity.mode,
      why: (activity) => activity.why,
    };
    this.activities = new Table(ACTIVITY_COLUMNS, cells, { rowHeader: "at" });
    this.noActivities = make("p", { class: "empty" });
    const label = "Activities around the alert";
    const scroll = { class: "scroll tall", tabindex: 0, role: "region", "aria-label": label };
    const help = make("details", { class: "what" }, make("summary", {}, "What is this?"));
    help.append(make("dl", {}, ...columnMeanings(ACTIVITY_COLUMNS)));
    find("alert").replaceChildren(
      make("div", { class: "home-head" }, this.kind, this.pill, this.homeButton, this.region),
      this.text,
      this.rule,
      make("h3", {}, "Steps"),
      this.steps,
      this.trace,
      make("div", { class: "head" }, make("h3", {}, "Activities within ten minutes"), help),
      make("div", scroll, make("table", {}, this.activities.head(), this.activities.body)),
      this.noActivities,
    );
    this.built = true;
  }

  async open(id) {
    this.id = id;
    setText(find("alert-error"), "");
    try {
      const response = await fetch(`/api/alert?id=${encodeURIComponent(id)}`);
      const details = await response.json();
      if (!response.ok) throw new Error(details.error);
      if (this.id === id) this.show(details);
    } catch (error) {
      find("alert-card").hidden = false;
      setText(find("alert-error"), `Cannot show the alert: ${error.message}.`);
    }
  }

  // Shows the alert again if it is one of those that changed.
  update(changed) {
    if (this.id !== null && changed.some((alert) => alert.id === this.id)) this.open(this.id);
  }

  hide() {
    this.id = null;
    find("alert-card").hidden = true;
  }

  show({ alert, rule, steps, trace, activities, can_change: canChange }) {
    if (!this.built) this.build();
    this.home = alert.home;
    find("alert-card").hidden = false;
    setText(this.kind, alert.kind);
    setText(this.pill, alert.state);
    setClass(this.pill, `pill ${TONES[alert.state]}`);
    setText(this.homeButton, alert.home);
    setText(this.region, alert.region);
    setText(this.text, `${alert.text}, since ${time(alert.since)}.`);
    setText(this.rule, `Rule: ${rule || "unknown"}`);
    this.showSteps(steps);
    this.trace.hidden = !trace;
    setText(this.trace, trace ? `Trace ${trace}` : "");
    this.activities.show(
      activities,
      (activity) => `${activity.sensor} ${activity.seq}`,
      (row, activity) => setClass(row, activity.raised ? "bad" : ""),
    );
    const none = "None is known. The activities are read from the database of the records.";
    setText(this.noActivities, activities.length ? "" : none);
    find("alert-change").hidden = !canChange || alert.state === "closed";
    find("alert-acknowledge").hidden = alert.state !== "open";
    const readonly = "To acknowledge and close alerts, start the page with --write and --database.";
    setText(find("alert-readonly"), canChange ? "" : readonly);
  }

  showSteps(steps) {
    let before = null;
    const rows = steps.map((step) => {
      const after = known(step.at) && known(before) ? (step.at - before) / 1000 : null;
      if (known(step.at)) before = step.at;
      return { ...step, after };
    });
    keepRows(
      this.steps,
      rows,
      (step) => step.name,
      () => make("li", {}, make("b"), make("time"), make("span", { class: "after" }), make("i")),
      (item, step) => {
        setText(item.querySelector("b"), step.name);
        setText(item.querySelector("time"), known(step.at) ? clockWithMs(step.at) : DASH);
        setText(item.querySelector(".after"), known(step.after) ? sign(step.after) : "");
        setText(item.querySelector("i"), step.note);
        setClass(item, known(step.at) ? "" : "gone");
      },
    );
  }

  async change(action) {
    setText(find("alert-error"), "");
    const by = find("alert-by").value;
    try {
      this.show(await post(`/api/alerts/${action}`, { id: this.id, by }));
      storeName(by);
    } catch (error) {
      setText(find("alert-error"), `Failed: ${error.message}.`);
    }
  }
}

const sign = (value) => (value < 0 ? `−${seconds(-value)}` : `+${seconds(value)}`);

function storedName() {
  try {
    return localStorage.getItem(NAME_KEY) ?? "";
  } catch {
    return "";
  }
}

function storeName(name) {
  try {
    localStorage.setItem(NAME_KEY, name);
  } catch {
    // Without storage the name is kept until the page is closed.
  }
}
