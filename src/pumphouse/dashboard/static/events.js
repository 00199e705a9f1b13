// The Events page: a tail with filter and position, and sample events to send.
import { find, make, setText, post } from "./dom.js";
import { number, time, plural } from "./format.js";
import { Stream } from "./stream.js";

const ROWS_MAX = 300;
let about, stream, reportState;
let paused = false;
let waiting = [];
let counters = null;

export function enter(settings, onState) {
  reportState = onState;
  if (!about) {
    about = settings;
    build();
  }
  read();
}

export function leave() {
  stop();
}

export function repaint() {}

function build() {
  for (const id of ["tail-hub", "send-hub"]) {
    find(id).replaceChildren(...about.hubs.map((hub) => make("option", { value: hub }, hub)));
  }
  find("tail-group").value = about.events_group;
  find("send-card").hidden = !about.write;
  find("tail").addEventListener("submit", (event) => {
    event.preventDefault();
    read();
  });
  find("tail-pause").addEventListener("click", pause);
  find("tail-clear").addEventListener("click", clear);
  find("send").addEventListener("submit", send);
}

function stop() {
  if (stream) stream.close();
  stream = null;
}

function read() {
  stop();
  clear();
  counters = { seen: 0, matched: 0, left_out: 0 };
  setText(find("tail-state"), "Opening …");
  const path = `/stream/events?${query()}`;
  stream = new Stream(path, { tail: show, ended }, (state) => {
    if (state === "lost") showRefusal(path);
    reportState(state);
  });
}

function query() {
  const fields = [...new FormData(find("tail")).entries()];
  const trimmed = fields.map(([name, value]) => [name, value.trim()]);
  return new URLSearchParams(trimmed.filter(([, value]) => value));
}

// An EventSource does not report why it was refused, so the same path is fetched for the reason.
async function showRefusal(path) {
  const controller = new AbortController();
  try {
    const response = await fetch(path, { signal: controller.signal });
    if (response.ok) {
      controller.abort();
      return;
    }
    const { error } = await response.json();
    stop();
    reportState("live");
    setText(find("tail-state"), `Cannot read: ${error}.`);
  } catch {
    // The server does not respond; the banner shows it.
  }
}

function ended(data) {
  stop();
  setText(find("tail-state"), `Reading has ended: ${data.why}.`);
}

function show(data) {
  counters = data;
  waiting.push(...data.events);
  if (waiting.length > ROWS_MAX) waiting = waiting.slice(-ROWS_MAX);
  showState();
  if (!paused) flush();
}

function showState() {
  const parts = [`${number(counters.seen)} read`];
  if (counters.matched !== counters.seen) parts.push(`${number(counters.matched)} match`);
  if (counters.left_out) parts.push(`${number(counters.left_out)} skipped: too many to show`);
  if (paused && waiting.length) parts.push(`${plural(waiting.length, "event")} waiting`);
  setText(find("tail-state"), parts.join(" · "));
  find("tail-empty").hidden = find("tail-rows").children.length > 0 || waiting.length > 0;
}

function flush() {
  const body = find("tail-rows");
  body.prepend(...waiting.map(buildRow).reverse());
  waiting = [];
  while (body.children.length > ROWS_MAX) body.lastChild.remove();
  find("tail-empty").hidden = body.children.length > 0;
}

// One cell for each column of the header in index.html.
function buildRow(event) {
  const summary = make("summary", {}, event.body + (event.cut ? " …" : ""));
  const body = make("details", {}, summary, ...details(event));
  return make(
    "tr",
    {},
    make("td", { class: "partition" }, event.partition),
    make("td", { class: "num sequence" }, number(event.sequence)),
    make("td", { class: "enqueued" }, time(event.at)),
    make("td", { class: "key" }, event.key || "–"),
    make("td", { class: "body" }, body),
  );
}

function details(event) {
  const parts = [`offset ${event.offset}`, plural(event.size, "byte")];
  const properties = Object.entries(event.properties).map(([name, value]) => `${name}=${value}`);
  if (properties.length) parts.push(properties.join(", "));
  const elements = [make("p", { class: "sub" }, parts.join(" · "))];
  const text = event.json ? formatted(event.body) : null;
  if (text !== null) elements.unshift(make("pre", {}, text));
  return elements;
}

// A body that this browser cannot parse is shown as it is. It must not end the page.
function formatted(body) {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return null;
  }
}

function pause() {
  paused = !paused;
  find("tail-pause").setAttribute("aria-pressed", paused);
  setText(find("tail-pause"), paused ? "Continue" : "Pause");
  if (!paused) flush();
  showState();
}

function clear() {
  waiting = [];
  find("tail-rows").replaceChildren();
  find("tail-empty").hidden = false;
}

async function send(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  const sample = {
    hub: form.get("hub"),
    key: form.get("key").trim(),
    partition: form.get("partition").trim(),
    count: Number(form.get("count")),
    body: form.get("body"),
  };
  setText(find("send-error"), "");
  setText(find("send-state"), "sending …");
  try {
    const { sent } = await post("/api/send", sample);
    const text = `${plural(sent, "event")} sent to ${sample.hub} at ${time(Date.now())}`;
    setText(find("send-state"), text);
  } catch (error) {
    setText(find("send-state"), "");
    setText(find("send-error"), `Cannot send: ${error.message}.`);
  }
}
