// The Events page: a tail with filter and position, and sending a sample.
import { find, make, setText, post } from "./dom.js";
import { number, time, plural } from "./format.js";
import { Stream } from "./stream.js";

const ROWS = 300;
let about, stream, tell;
let paused = false;
let waiting = [];
let last = null;

export function enter(given, onState) {
  tell = onState;
  if (!about) { about = given; build(); }
  read();
}

export function leave() { stop(); }
export function repaint() {}

function build() {
  for (const id of ["tail-hub", "send-hub"]) find(id).replaceChildren(...about.hubs.map((hub) => make("option", { value: hub }, hub)));
  find("tail-group").value = about.events_group;
  find("send-card").hidden = !about.write;
  find("tail").addEventListener("submit", (event) => { event.preventDefault(); read(); });
  find("tail-pause").addEventListener("click", pause);
  find("tail-clear").addEventListener("click", clear);
  find("send").addEventListener("submit", send);
}

function stop() {
  if (stream) stream.close();
  stream = null;
}

// A tail that broke is begun anew: what was shown stays, so that nothing seems to vanish.
function read() {
  stop();
  clear();
  last = { seen: 0, matched: 0, left_out: 0 };
  setText(find("tail-state"), "Opening …");
  const form = new FormData(find("tail"));
  const query = new URLSearchParams([...form.entries()].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
  const source = new Stream(`/stream/events?${query}`, { tail: show, ended }, (word) => { if (word === "lost") refused(query); tell(word); });
  stream = source;
}

// The browser does not tell why a stream was refused; asking once more does.
async function refused(query) {
  const gone = new AbortController();
  try {
    const answer = await fetch(`/stream/events?${query}`, { signal: gone.signal });
    if (answer.ok) { gone.abort(); return; }
    const { error } = await answer.json();
    stop();
    tell("live");
    setText(find("tail-state"), `This cannot be read: ${error}.`);
  } catch { /* the server is away: the banner says so */ }
}

function ended(data) {
  stop();
  setText(find("tail-state"), `Reading has ended: ${data.why}.`);
}

function show(data) {
  last = data;
  waiting.push(...data.events);
  if (waiting.length > ROWS) waiting = waiting.slice(-ROWS);
  state();
  if (!paused) flush();
}

function state() {
  const parts = [`${number(last.seen)} read`];
  if (last.matched !== last.seen) parts.push(`${number(last.matched)} match`);
  if (last.left_out) parts.push(`${number(last.left_out)} were too fast to show`);
  if (paused && waiting.length) parts.push(`${plural(waiting.length, "event")} wait`);
  setText(find("tail-state"), parts.join(" · "));
  find("tail-empty").hidden = find("tail-rows").children.length > 0 || waiting.length > 0;
}

function flush() {
  const body = find("tail-rows");
  body.prepend(...waiting.map(row).reverse());
  waiting = [];
  while (body.children.length > ROWS) body.lastChild.remove();
  find("tail-empty").hidden = body.children.length > 0;
}

function row(event) {
  const text = event.body + (event.cut ? " …" : "");
  const properties = Object.entries(event.properties);
  const more = [];
  if (event.json && !event.cut) more.push(make("pre", {}, JSON.stringify(JSON.parse(event.body), null, 2)));
  more.push(make("p", { class: "sub" }, `offset ${event.offset} · ${plural(event.size, "byte")}${properties.length ? ` · ${properties.map(([name, value]) => `${name}=${value}`).join(", ")}` : ""}`));
  return make("tr", {}, make("td", {}, event.partition), make("td", { class: "num" }, number(event.sequence)), make("td", {}, time(event.at)), make("td", {}, event.key || "–"), make("td", { class: "body" }, make("details", {}, make("summary", {}, text), ...more)));
}

function pause() {
  paused = !paused;
  find("tail-pause").setAttribute("aria-pressed", paused);
  setText(find("tail-pause"), paused ? "Go on" : "Pause");
  if (!paused) flush();
  state();
}

function clear() {
  waiting = [];
  find("tail-rows").replaceChildren();
  find("tail-empty").hidden = false;
}

async function send(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  setText(find("send-error"), "");
  setText(find("send-state"), "sending …");
  try {
    const { sent } = await post("/api/send", { hub: form.get("hub"), key: form.get("key").trim(), partition: form.get("partition").trim(), count: Number(form.get("count")), body: form.get("body") });
    setText(find("send-state"), `${plural(sent, "event")} sent to ${form.get("hub")} at ${time(Date.now())}`);
  } catch (failed) {
    setText(find("send-state"), "");
    setText(find("send-error"), `That could not be sent: ${failed.message}.`);
  }
}
