// The few things that every page does with the document. Text is always set as text.
export const find = (id) => document.getElementById(id);

export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Compares as text: 0 and "" are different things.
export function setText(element, value) {
  const text = String(value);
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, value) {
  if (element.className !== value) element.className = value;
}

// Rows of a list that stay the same elements while what they show changes, so that focus and
// selection survive. `update(element, item)` fills one; `build()` makes an empty one.
export function keepRows(parent, items, keyOf, build, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    if (!element) { element = build(item); element.dataset.key = key; }
    old.delete(key);
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let token = null;

// What changes something carries the token of the server that runs now: after a restart it is
// another, and asked for anew.
export async function post(path, body) {
  for (const again of [true, false]) {
    let answer;
    try {
      if (token === null) ({ token } = await (await fetch("/api/about")).json());
      answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json", "x-pumphouse-token": token }, body: JSON.stringify(body) });
    } catch { throw new Error("the page's server does not answer"); }
    if (answer.status === 403 && again) { token = null; continue; }
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.error || `refused with status ${answer.status}`);
    return found;
  }
}

// Asks before something that cannot be taken back. Resolves to true or false.
export function sure(title, text, yes) {
  const dialog = find("sure");
  setText(find("sure-title"), title);
  setText(find("sure-text"), text);
  setText(find("sure-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}
