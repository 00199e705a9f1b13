// The card of one consumer group: hosts, ownership table, ownership timeline and rates.
import { make, setText, setClass, keepRows, post, confirmed } from "./dom.js";
import { number, rate, seconds, time, plural } from "./format.js";
import { Chart } from "./charts.js";
import { OwnershipTimeline } from "./ownership_timeline.js";
import { OwnershipTable } from "./ownership_table.js";
import { RowChoice } from "./row_choice.js";
import { columnMeanings } from "./table.js";
import { SERIES, setHostColour } from "./palette.js";

const CHANGES_MAX = 60;
const POINTS_MAX = 900;
const HOSTS_FOLDED = 12; // more hosts are shown on demand
const STATE_TONES = {
  stable: "good",
  moving: "warn",
  uneven: "warn",
  stopped: "bad",
  stuck: "bad",
  unowned: "bad",
};
const LABELS = { "hand-off": "hand-over" }; // shown in place of names in the data
const KILL_TEXT =
  "It ends at once. Other hosts claim its partitions after its leases have expired, and handle " +
  "the events since its last checkpoint again.";

export class GroupCard {
  constructor(key, words) {
    this.key = key;
    this.words = words;
    this.points = [];
    this.title = make("h2", { id: `${key}-title` });
    this.state = make("span", { class: "pill" });
    this.summary = make("p", { class: "summary" });
    this.trouble = make("div", { class: "notice", hidden: true, role: "status" });
    this.hosts = make("ul", { class: "hosts", "aria-label": "Hosts" });
    this.noHosts = make("p", { class: "empty" }, "No host is running. The events stay in the hub.");
    const add = { type: "button", class: "small", onclick: () => this.act("add", {}) };
    this.addRow = make("div", { class: "row" }, make("button", add, "Add a host"));
    this.error = make("p", { class: "error", role: "alert" });
    this.table = new OwnershipTable(key, words);
    this.choice = new RowChoice(key, () => this.showRows());
    this.hostsFolded = true;
    const allHosts = { type: "button", class: "small", hidden: true };
    this.hostsButton = make("button", { ...allHosts, onclick: () => this.toggleHosts() });
    this.changes = make("ol", { class: "changes", "aria-label": "Changes", tabindex: 0 });
    this.noChanges = make("p", { class: "empty" }, "No changes since the page was started.");
    this.build();
  }

  build() {
    const timelineBox = make("div", { class: "timeline" });
    const chartBox = make("div", { class: "chart" });
    const scroll = {
      class: "scroll",
      tabindex: 0,
      role: "region",
      "aria-label": "Ownership table",
    };
    const timeline = [
      make("h3", {}, "Owners over time"),
      timelineBox,
      this.changes,
      this.noChanges,
    ];
    const chart = [make("h3", {}, "Events per second, and lag"), chartBox];
    this.element = make(
      "article",
      { class: "card group", "aria-labelledby": `${this.key}-title`, "data-group": this.key },
      make("div", { class: "head" }, this.title, this.state, this.help()),
      this.summary,
      this.trouble,
      this.hosts,
      this.hostsButton,
      this.noHosts,
      this.addRow,
      this.error,
      this.choice.element,
      make("div", scroll, this.table.element),
      make("div", { class: "split" }, make("div", {}, ...timeline), make("div", {}, ...chart)),
    );
    this.timeline = new OwnershipTimeline(timelineBox);
    const series = [
      { label: "in /s", stroke: SERIES[0] },
      { label: "out /s", stroke: SERIES[2] },
      { label: "lag", stroke: SERIES[1], scale: "right", dash: [4, 3] },
    ];
    this.chart = new Chart(chartBox, series, { right: true, seconds: true });
  }

  help() {
    const { columns, statuses, states, changes } = this.words;
    const list = (meanings, textOf = (meaning) => meaning) =>
      Object.entries(meanings).flatMap(([name, meaning]) => [
        make("dt", {}, LABELS[name] || name),
        make("dd", {}, textOf(meaning)),
      ]);
    const sections = [
      ["Columns", columnMeanings(columns)],
      ["Status: the partition …", list(statuses, (status) => status.meaning)],
      ["States of the group", list(states)],
      ["Changes", list(changes)],
    ];
    const parts = sections.flatMap(([title, items]) => [
      make("h3", {}, title),
      make("dl", {}, ...items),
    ]);
    return make("details", { class: "what" }, make("summary", {}, "What is this?"), ...parts);
  }

  showHistory(history) {
    const start = history.points.length ? history.points[0][0] : null;
    this.timeline.reset(history.owners, history.changes, start);
    this.changes.replaceChildren();
    this.points = history.points;
    this.addChanges(history.changes);
  }

  show(group, now) {
    const title = group.title ? ` · ${group.title}` : "";
    setText(this.title, `${group.hub} / ${group.group}${title}`);
    setText(this.state, group.status);
    this.state.title = group.meaning;
    setClass(this.state, `pill ${STATE_TONES[group.status] || ""}`);
    this.trouble.hidden = !group.trouble;
    const trouble = group.trouble ? `Cannot read this group: ${group.trouble}. Retrying.` : "";
    setText(this.trouble, trouble);
    if (group.lines.length) setText(this.summary, summary(group));
    this.showHosts(group);
    this.timeline.add(group.changes);
    this.addChanges(group.changes);
    this.group = group;
    this.now = now;
    this.showRows();
    this.addPoint(group.point);
    this.chart.show(this.points);
  }

  // The table and the timeline have the same partitions; the timeline has them in their own order.
  showRows() {
    const { group } = this;
    const rows = this.choice.choose(group.lines);
    this.table.show(group, rows);
    const shown = new Set(rows);
    const partitions = group.lines.filter((line) => shown.has(line)).map((line) => line.partition);
    this.timeline.show(partitions, this.now);
  }

  toggleHosts() {
    this.hostsFolded = !this.hostsFolded;
    this.showHosts(this.group);
  }

  // The hosts to show, and the button that shows the others.
  foldHosts(hosts) {
    const isLong = hosts.length > HOSTS_FOLDED;
    this.hostsButton.hidden = !isLong;
    const text = this.hostsFolded
      ? `Show all ${number(hosts.length)} hosts`
      : `Show ${HOSTS_FOLDED} hosts only`;
    setText(this.hostsButton, text);
    this.hostsButton.setAttribute("aria-expanded", !this.hostsFolded);
    return isLong && this.hostsFolded ? hosts.slice(0, HOSTS_FOLDED) : hosts;
  }

  addPoint(point) {
    const last = this.points.at(-1);
    if (point && (!last || point[0] > last[0])) this.points.push(point);
    if (this.points.length > POINTS_MAX) this.points = this.points.slice(-POINTS_MAX);
  }

  // Hosts that the page controls, and live hosts that were started elsewhere.
  showHosts(group) {
    const processes = group.processes;
    this.addRow.hidden = processes === null;
    const live = new Map(group.hosts.map((host) => [host.name, host]));
    const controlled = (processes || []).map((process) => ({
      ...process,
      controlled: true,
      live: live.get(process.name),
    }));
    const names = new Set(controlled.map((host) => host.name));
    const others = group.hosts
      .filter((host) => !names.has(host.name))
      .map((host) => ({ name: host.name, state: "", controlled: false, live: host }));
    const hosts = [...controlled, ...others];
    this.noHosts.hidden = hosts.length > 0;
    keepRows(
      this.hosts,
      this.foldHosts(hosts),
      (host) => host.name,
      (host) => this.buildHost(host),
      (item, host) => this.updateHost(item, host),
    );
  }

  buildHost(host) {
    const stop = make(
      "button",
      {
        type: "button",
        class: "small stop",
        title: "Finish its batches, checkpoint and release its partitions",
        "aria-label": `Stop ${host.name}`,
        onclick: () => this.act("stop", host),
      },
      "Stop",
    );
    const kill = make(
      "button",
      {
        type: "button",
        class: "small danger kill",
        title: "End at once; its leases stay until they expire",
        "aria-label": `Kill ${host.name}`,
        onclick: () => this.kill(host),
      },
      "Kill",
    );
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    return make(
      "li",
      {},
      make("span", { class: "name" }, swatch, make("span", { class: "host-name" })),
      make("div", { class: "parts" }),
      make("div", { class: "row" }, stop, kill, make("span", { class: "empty host-state" })),
    );
  }

  updateHost(item, host) {
    const part = (selector) => item.querySelector(selector);
    const running = host.state === "running";
    setHostColour(part(".swatch"), host.name);
    setText(part(".host-name"), host.name);
    setText(part(".parts"), ownedText(host));
    part(".row").hidden = !host.controlled;
    part(".stop").hidden = part(".kill").hidden = !running;
    setText(part(".host-state"), stateText(host));
    const ended = host.controlled && !["running", "stopping"].includes(host.state);
    setClass(item, ended ? "gone" : "");
  }

  async kill(host) {
    if (await confirmed(`Kill ${host.name}?`, KILL_TEXT, "Kill")) this.act("kill", host);
  }

  async act(action, host) {
    setText(this.error, "");
    try {
      await post(`/api/hosts/${action}`, { key: this.key, name: host.name });
    } catch (error) {
      setText(this.error, `Failed: ${error.message}.`);
    }
  }

  addChanges(changes) {
    for (const change of changes) {
      const text = make("span", {}, `${change.text}, epoch ${change.epoch}`);
      const item = { class: "fresh", "data-kind": change.kind };
      this.changes.prepend(make("li", item, make("time", {}, time(change.at)), text));
    }
    while (this.changes.children.length > CHANGES_MAX) this.changes.lastChild.remove();
    this.noChanges.hidden = this.changes.children.length > 0;
  }

  repaint() {
    this.timeline.draw();
    this.chart.repaint();
  }
}

function summary(group) {
  const [fewest, most] = group.share;
  const share = fewest === most ? number(most) : `${number(fewest)} to ${number(most)}`;
  return [
    `${plural(group.hosts.length, "host")}, ${share} partitions each`,
    `lag ${number(group.lag)} (${seconds(group.lag_s)})`,
    `in ${rate(group.in)}/s`,
    `out ${rate(group.out)}/s`,
  ].join(" · ");
}

function ownedText(host) {
  if (!host.live) return "owns no partition";
  const owned = host.live.partitions;
  if (!owned.length) return "running, owns no partition yet";
  return `${plural(owned.length, "partition")}: ${owned.join(" ")}`;
}

function stateText(host) {
  if (host.state === "running") return `pid ${host.pid}`;
  if (!host.controlled) return "";
  return `${host.state} at ${time(host.since)}${host.error ? `: ${host.error}` : ""}`;
}
