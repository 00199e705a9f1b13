// The Fleet page: for each consumer group its hosts, its ownership table, its lanes and rates; the
// Spark stages; faults.
import { find, make, setText, setClass, keepRows, post, sure } from "./dom.js";
import { number, rate, seconds, time, bytes, known, plural, DASH } from "./format.js";
import { Chart } from "./charts.js";
import { Lanes } from "./lanes.js";
import { Stream } from "./stream.js";
import { SERIES, dye } from "./palette.js";
import * as faults from "./faults.js";

const LEFT = new Set(["Stage", "State", "Counted"]);
const HAPPENED = 60;
const POINTS = 900;
let words, about, stream;
const cards = new Map();

export function enter(given, onState) {
  about = given;
  if (!words) { words = about.words; buildStages(); faults.build(about); }
  stream = new Stream("/stream/fleet", { history: showHistory, fleet: show }, onState);
  faults.enter();
}

export function leave() { stream.close(); faults.leave(); }

export function repaint() { for (const card of cards.values()) card.repaint(); }

function showHistory(data) {
  if (!cards.size) find("groups").replaceChildren();
  for (const [key, history] of Object.entries(data)) card(key).history(history);
}

function card(key) {
  if (!cards.has(key)) {
    cards.set(key, new GroupCard(key));
    find("groups").append(cards.get(key).element);
  }
  return cards.get(key);
}

function show(data) {
  for (const group of data.groups) card(group.key).show(group, data.at);
  if (!data.groups.length) find("groups").replaceChildren(make("p", { class: "empty" }, "No consumer group is watched. Start the page with --group."));
  showStages(data.stages, data.at);
}

class GroupCard {
  constructor(key) {
    this.key = key;
    this.points = [];
    this.title = make("h2", { id: `${key}-title` });
    this.state = make("span", { class: "pill" });
    this.summary = make("p", { class: "summary" });
    this.trouble = make("div", { class: "notice", hidden: true, role: "status" });
    this.hosts = make("ul", { class: "hosts", "aria-label": "Hosts" });
    this.nobody = make("p", { class: "empty" }, "No host takes part. Its events wait in the hub.");
    this.add = make("button", { type: "button", class: "small", onclick: () => this.act("add", {}) }, "Add a host");
    this.error = make("p", { class: "error", role: "alert" });
    this.rows = make("tbody");
    this.table = this.buildTable();
    const lanesBox = make("div", { class: "lanes" });
    this.happened = make("ol", { class: "happened", "aria-label": "What happened", tabindex: 0 });
    this.quiet = make("p", { class: "empty" }, "Nothing has changed hands since the page looks.");
    const chartBox = make("div", { class: "chart" });
    this.element = make("article", { class: "card group", "aria-labelledby": `${key}-title`, "data-group": key },
      make("div", { class: "head" }, this.title, this.state, this.meaning()), this.summary,
      this.trouble, this.hosts, this.nobody, make("div", { class: "row" }, this.add), this.error,
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ownership table" }, this.table),
      make("div", { class: "split" },
        make("div", {}, make("h3", {}, "Who owned what"), lanesBox, this.happened, this.quiet),
        make("div", {}, make("h3", {}, "Events per second, and lag"), chartBox)));
    this.lanes = new Lanes(lanesBox);
    this.chart = new Chart(chartBox, [
      { label: "in /s", stroke: SERIES[0] },
      { label: "out /s", stroke: SERIES[2] },
      { label: "lag", stroke: SERIES[1], scale: "right", dash: [4, 3] },
    ], { right: true, seconds: true });
  }

  meaning() {
    const lists = [[words.columns, (text) => text], [words.verdicts, (one) => one.meaning], [words.states, (text) => text], [words.changes, (text) => text]];
    const titles = ["Columns", "Verdicts: the partition …", "The group is …", "What happened"];
    const parts = lists.flatMap(([list, tell], place) => [make("h3", {}, titles[place]), make("dl", {}, ...Object.entries(list).flatMap(([name, meaning]) => [make("dt", {}, name), make("dd", {}, tell(meaning))]))]);
    return make("details", { class: "what" }, make("summary", {}, "What is this?"), ...parts);
  }

  buildTable() {
    const numeric = new Set(["Epoch", "Checkpoint", "End", "Lag", "Lag time", "In", "Out"]);
    this.names = Object.keys(words.columns);
    const head = this.names.map((name) => make("th", { scope: "col", title: words.columns[name], class: numeric.has(name) ? "num" : "" }, name));
    this.numeric = numeric;
    return make("table", { class: "stackable ownership" }, make("caption", { class: "sr" }, "Who owns which partition"), make("thead", {}, make("tr", {}, ...head)), this.rows);
  }

  history(data) {
    this.lanes.reset(data.owners, data.changes, data.points.length ? data.points[0][0] : null);
    this.happened.replaceChildren();
    this.points = data.points;
    this.told(data.changes);
  }

  show(group, now) {
    setText(this.title, `${group.hub} / ${group.group}${group.title ? ` · ${group.title}` : ""}`);
    setText(this.state, group.state);
    this.state.title = group.meaning;
    setClass(this.state, `pill ${{ stable: "good", moving: "warn", uneven: "warn", nobody: "bad" }[group.state] || ""}`);
    this.trouble.hidden = !group.trouble;
    setText(this.trouble, group.trouble ? `This group cannot be looked at: ${group.trouble}. Trying again.` : "");
    if (group.lines.length) setText(this.summary, `${plural(group.hosts.length, "host")}, ${share(group.share)} partitions each · lag ${number(group.lag)} (${seconds(group.lag_s)}) · in ${rate(group.in)}/s · out ${rate(group.out)}/s`);
    this.showHosts(group);
    this.showLines(group);
    this.lanes.add(group.changes);
    this.told(group.changes);
    this.lanes.show(group.lines.map((line) => line.partition), now);
    const point = group.point;
    if (point && (!this.points.length || point[0] > this.points[this.points.length - 1][0])) this.points.push(point);
    if (this.points.length > POINTS) this.points = this.points.slice(-POINTS);
    this.chart.show(this.points);
  }

  showHosts(group) {
    const processes = group.processes;
    this.add.parentElement.hidden = processes === null;
    const live = new Map(group.hosts.map((host) => [host.name, host]));
    const hosts = (processes || []).map((one) => ({ ...one, mine: true, live: live.get(one.name) }));
    const mine = new Set(hosts.map((one) => one.name));
    for (const host of group.hosts) if (!mine.has(host.name)) hosts.push({ name: host.name, state: "", mine: false, live: host });
    this.nobody.hidden = hosts.length > 0;
    keepRows(this.hosts, hosts, (one) => one.name, (one) => this.buildHost(one), (item, one) => this.updateHost(item, one));
  }

  buildHost(one) {
    const stop = make("button", { type: "button", class: "small", title: "It finishes its batches, checkpoints and hands its partitions on", onclick: () => this.act("stop", one) }, "Stop");
    const kill = make("button", { type: "button", class: "small danger", title: "It ends without a word: its leases have to run out", onclick: () => this.kill(one) }, "Kill");
    stop.setAttribute("aria-label", `Stop ${one.name}`);
    kill.setAttribute("aria-label", `Kill ${one.name}`);
    const name = make("span", { class: "name" }, make("span", { class: "swatch", "aria-hidden": "true" }), make("span"));
    return make("li", {}, name, make("div", { class: "parts" }), make("div", { class: "row" }, stop, kill, make("span", { class: "empty" })));
  }

  updateHost(item, one) {
    dye(item.querySelector(".swatch"), one.name);
    setText(item.querySelector(".name").lastChild, one.name);
    const owned = one.live ? one.live.partitions : [];
    setText(item.querySelector(".parts"), one.live ? (owned.length ? `${plural(owned.length, "partition")}: ${owned.join(" ")}` : "takes part, owns nothing yet") : "owns nothing");
    const row = item.lastElementChild;
    row.hidden = !one.mine;
    const running = one.state === "running";
    row.children[0].hidden = row.children[1].hidden = !running;
    setText(row.children[2], running ? `pid ${one.pid}` : one.mine ? `${one.state} at ${time(one.since)}${one.said ? `: ${one.said}` : ""}` : "");
    setClass(item, one.mine && !["running", "stopping"].includes(one.state) ? "gone" : "");
  }

  async kill(one) {
    if (await sure(`Kill ${one.name}?`, `It ends at once and cannot say so. Others take its partitions when its leases have run out, and handle again what it had not checkpointed.`, "Kill")) this.act("kill", one);
  }

  async act(word, one) {
    setText(this.error, "");
    try { await post(`/api/hosts/${word}`, { key: this.key, name: one.name }); } catch (failed) { setText(this.error, `That could not be done: ${failed.message}.`); }
  }

  showLines(group) {
    keepRows(this.rows, group.lines, (line) => line.partition, () => this.buildLine(), (row, line) => this.updateLine(row, line, group));
  }

  buildLine() {
    const cells = this.names.map((name, place) => make(place ? "td" : "th", { class: `${this.numeric.has(name) ? "num " : ""}c-${name.toLowerCase().replace(" ", "-")}`, "data-label": name, scope: place ? null : "row" }));
    cells[1].append(make("span", { class: "owner" }, make("span", { class: "swatch", "aria-hidden": "true" }), make("span")));
    cells[3].append(make("meter", { min: 0, max: 1, "aria-hidden": "true" }), make("span"));
    cells[10].append(make("span", { class: "pill" }));
    return make("tr", {}, ...cells);
  }

  updateLine(row, line, group) {
    const cell = row.children;
    const left = line.lease_left_s;
    setText(cell[0], line.partition);
    dye(cell[1].querySelector(".swatch"), line.owner);
    setText(cell[1].querySelector(".owner").lastChild, (line.owner || "nobody") + (line.successor ? ` → ${line.successor}` : ""));
    setText(cell[2], line.epoch || DASH);
    const meter = cell[3].firstChild;
    meter.hidden = !known(left) || left <= 0;
    meter.value = known(left) ? Math.max(0, left) / group.lease_s : 0;
    setText(cell[3].lastChild, !known(left) ? DASH : left > 0 ? seconds(left) : `expired ${seconds(-left)}`);
    setText(cell[4], number(line.checkpoint));
    setText(cell[5], number(line.end));
    setText(cell[6], number(line.lag));
    setText(cell[7], seconds(line.lag_s));
    setText(cell[8], rate(line.in));
    setText(cell[9], rate(line.out));
    const pill = cell[10].firstChild;
    setText(pill, line.verdict);
    pill.title = `The partition ${words.verdicts[line.verdict].meaning}.`;
    setClass(pill, `pill ${line.bad ? "bad" : line.verdict === "moving" ? "warn" : "good"}`);
    setClass(row, line.bad ? "bad" : "");
  }

  told(changes) {
    for (const change of changes) this.happened.prepend(make("li", { class: "fresh", "data-word": change.word }, make("time", {}, time(change.at)), make("span", {}, `${change.text}, epoch ${change.epoch}`)));
    while (this.happened.children.length > HAPPENED) this.happened.lastChild.remove();
    this.quiet.hidden = this.happened.children.length > 0;
  }

  repaint() { this.lanes.draw(); this.chart.repaint(); }
}

const share = ([fewest, most]) => (fewest === most ? number(most) : `${number(fewest)} to ${number(most)}`);

const STAGE_CELLS = {
  Stage: (one) => one.name, State: (one) => one.state, Batch: (one) => number(one.batch),
  "Batch time": (one) => seconds(known(one.batch_ms) ? one.batch_ms / 1000 : null),
  "Input rate": (one) => `${rate(one.input_rate)}/s`, Capacity: (one) => `${rate(one.processed_rate)}/s`,
  Lag: (one) => (known(one.lag_s) ? `${number(one.lag_events)} (${seconds(one.lag_s)})` : number(one.lag_events)),
  Memory: (one) => (one.state_rows ? `${number(one.state_rows)} rows, ${bytes(one.state_bytes)}` : DASH),
  Counted: (one) => Object.entries(one.counts).map(([name, count]) => `${name.replaceAll("_", " ")} ${number(count)}`).join(", ") || DASH,
  Restarts: (one) => number(one.restarts),
};

function buildStages() {
  const columns = words.stage_columns;
  const names = Object.keys(columns);
  find("stages-meaning").replaceChildren(...names.flatMap((name) => [make("dt", {}, name), make("dd", {}, columns[name])]));
  const head = names.map((name) => make("th", { scope: "col", title: columns[name], class: LEFT.has(name) ? "" : "num" }, name));
  find("stages").className = "stackable";
  find("stages").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody"));
}

function showStages(found, now) {
  find("stages-card").hidden = !found;
  if (!found) return;
  const empty = find("stages-empty");
  const written = found.at ? `written at ${time(found.at)}` : "";
  const text = found.why ? `Nothing to show: ${found.why}.` : found.old ? `These figures are old (${written}): the stages no longer write them.` : "";
  setText(empty, text);
  const names = Object.keys(words.stage_columns);
  keepRows(find("stages").tBodies[0], found.stages, (one) => one.name,
    () => make("tr", {}, ...names.map((name) => (name === "State" ? make("td", { "data-label": name }, make("span", { class: "pill" })) : make(name === "Stage" ? "th" : "td", { "data-label": name, scope: name === "Stage" ? "row" : null, class: LEFT.has(name) ? "" : "num" })))),
    (row, one) => names.forEach((name, place) => {
      const cell = name === "State" ? row.children[place].firstChild : row.children[place];
      setText(cell, STAGE_CELLS[name](one));
      if (name === "State") { setClass(cell, `pill ${{ running: "good", stopped: "bad" }[one.state] || "warn"}`); cell.title = one.error; }
    }));
}
