// Helpers for the document. Text is always set as text, never as HTML.
export const find = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets the text only if it differs, so that a selection in an unchanged text survives.
export function setText(element, value) {
  const text = String(value);
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, value) {
  if (element.className !== value) element.className = value;
}

// Shows a list of items and reuses the elements of the previous list, so that focus and selection
// survive. `build(item)` makes an element, `update(element, item)` fills it.
export function keepRows(parent, items, keyOf, build, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    if (!element) {
      element = build(item);
      element.dataset.key = key;
    }
    old.delete(key);
    update(element, item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  for (const element of old.values()) element.remove();
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

let token = null;

// Posts a change with the token of the server. A restarted server has another token: it refuses the
// old one with status 403. The new token is then fetched, and the change is posted again.
export async function post(path, body) {
  for (const retry of [true, false]) {
    const response = await postOnce(path, body);
    if (response.status === 403 && retry) {
      token = null;
      continue;
    }
    const fields = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(fields.error || `refused with status ${response.status}`);
    return fields;
  }
}

async function postOnce(path, body) {
  try {
    if (token === null) ({ token } = await (await fetch("/api/about")).json());
    const headers = { "content-type": "application/json", "x-pumphouse-token": token };
    return await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new Error("no response from the server of the page");
  }
}

// Asks for confirmation of a change that cannot be undone. Resolves to true or false.
export function confirmed(title, text, yes) {
  const dialog = find("confirm");
  setText(find("confirm-title"), title);
  setText(find("confirm-text"), text);
  setText(find("confirm-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    const close = () => resolve(dialog.returnValue === "yes");
    dialog.addEventListener("close", close, { once: true });
  });
}
