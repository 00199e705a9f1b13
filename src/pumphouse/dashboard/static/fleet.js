// The Fleet page: a card for each consumer group, the Spark stages, and faults.
import { find, make } from "./dom.js";
import { GroupCard } from "./group_card.js";
import { StagesTable } from "./stages_table.js";
import { Stream } from "./stream.js";
import * as faults from "./faults.js";

let words, stages, stream;
const cards = new Map();

export function enter(about, onState) {
  if (!words) {
    words = about.words;
    stages = new StagesTable(words.stage_columns, words.stage_counts);
    faults.build(about);
  }
  stream = new Stream("/stream/fleet", { history: showHistory, fleet: show }, onState);
  faults.enter();
}

export function leave() {
  stream.close();
  faults.leave();
}

export function repaint() {
  for (const card of cards.values()) card.repaint();
}

function showHistory(data) {
  if (!cards.size) find("groups").replaceChildren();
  for (const [key, history] of Object.entries(data)) cardOf(key).showHistory(history);
}

function cardOf(key) {
  if (!cards.has(key)) {
    cards.set(key, new GroupCard(key, words));
    find("groups").append(cards.get(key).element);
  }
  return cards.get(key);
}

function show(data) {
  for (const group of data.groups) cardOf(group.key).show(group, data.at);
  if (!data.groups.length) {
    const text = "No consumer group is configured. Start the page with --group.";
    find("groups").replaceChildren(make("p", { class: "empty" }, text));
  }
  stages.show(data.stages);
}
