// Fault injection: choose a fault, list the active faults, remove them.
import { find, make, setText, keepRows, post } from "./dom.js";
import { plural } from "./format.js";

const REFRESH_MS = 3000;
let about, timer;

export function build(settings) {
  about = settings;
  find("faults-card").hidden = !about.write;
  if (!about.write) return;
  const hubs = about.hubs.map((hub) => make("option", { value: hub }, hub));
  find("fault-hub").replaceChildren(...hubs);
  find("fault").addEventListener("submit", inject);
}

export function enter() {
  if (!about.write) return;
  refresh();
  timer = setInterval(refresh, REFRESH_MS);
}

export function leave() {
  clearInterval(timer);
}

async function refresh() {
  let faults;
  try {
    faults = await (await fetch("/api/faults")).json();
  } catch {
    return;
  }
  if (faults.error) {
    setText(find("fault-error"), `Cannot read the faults of the hub: ${faults.error}.`);
    return;
  }
  showChoices(faults.choices);
  keepRows(
    find("planned"),
    faults.planned,
    (fault) => fault.id,
    (fault) => buildFault(fault),
    (item, fault) => setText(item.querySelector(".text"), faultText(fault)),
  );
}

function showChoices(choices) {
  const select = find("fault-action");
  if (select.options.length) return;
  const options = Object.entries(choices).map(([name, text]) =>
    make("option", { value: name }, `${name}: ${text}`),
  );
  select.replaceChildren(...options);
}

function buildFault(fault) {
  const remove = { type: "button", class: "small", onclick: () => cancel(fault.id) };
  return make("li", {}, make("span", { class: "text" }), make("button", remove, "Remove"));
}

function faultText(fault) {
  const target = [
    fault.hub && `hub ${fault.hub}`,
    fault.partition && `partition ${fault.partition}`,
    fault.group && `group ${fault.group}`,
  ].filter(Boolean);
  const parts = [`${fault.action} on ${fault.moment}`];
  if (target.length) parts[0] += ` of ${target.join(", ")}`;
  if (fault.times) parts.push(plural(fault.times, "more time"));
  if (fault.action === "delay") parts.push(`${fault.seconds} s`);
  return parts.join(", ");
}

async function inject(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  await change("plan", {
    action: form.get("action"),
    hub: form.get("hub"),
    partition: form.get("partition"),
    seconds: Number(form.get("seconds")),
  });
}

const cancel = (id) => change("cancel", { id });

async function change(action, body) {
  setText(find("fault-error"), "");
  try {
    await post(`/api/faults/${action}`, body);
  } catch (error) {
    setText(find("fault-error"), `Failed: ${error.message}.`);
  }
  refresh();
}
