// Faults on purpose: what can be chosen, what is planned, and taking it away.
import { find, make, setText, keepRows, post } from "./dom.js";

const LOOK_MS = 3000;
let about, timer;

export function build(given) {
  about = given;
  find("faults-card").hidden = !about.write;
  if (!about.write) return;
  find("fault-hub").replaceChildren(...about.hubs.map((hub) => make("option", { value: hub }, hub)));
  find("fault").addEventListener("submit", plan);
}

export function enter() {
  if (!about.write) return;
  look();
  timer = setInterval(look, LOOK_MS);
}

export function leave() { clearInterval(timer); }

async function look() {
  let found;
  try { found = await (await fetch("/api/faults")).json(); } catch { return; }
  if (found.error) { setText(find("fault-error"), `The hub plays no faults: ${found.error}.`); return; }
  const select = find("fault-action");
  if (!select.options.length) select.replaceChildren(...Object.entries(found.choices).map(([name, text]) => make("option", { value: name }, `${name}: ${text}`)));
  keepRows(find("planned"), found.planned, (one) => one.id,
    (one) => make("li", {}, make("span"), make("button", { type: "button", class: "small", onclick: () => cancel(one.id) }, "Take away")),
    (item, one) => setText(item.firstChild, tell(one)));
}

function tell(one) {
  const where = [one.hub && `hub ${one.hub}`, one.partition && `partition ${one.partition}`, one.group && `group ${one.group}`].filter(Boolean).join(", ");
  const often = one.times ? `, ${one.times} more times` : "";
  return `${one.action} on ${one.moment}${where ? ` of ${where}` : ""}${often}${one.action === "delay" ? `, ${one.seconds} s` : ""}`;
}

async function plan(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  await act("plan", { action: form.get("action"), hub: form.get("hub"), partition: form.get("partition"), seconds: Number(form.get("seconds")) });
}

const cancel = (id) => act("cancel", { id });

async function act(word, body) {
  setText(find("fault-error"), "");
  try { await post(`/api/faults/${word}`, body); } catch (failed) { setText(find("fault-error"), `That could not be done: ${failed.message}.`); }
  look();
}
