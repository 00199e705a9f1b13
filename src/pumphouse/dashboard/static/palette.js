// Colours of hosts and of sensors, told apart in light and dark and by most who see few colours.
const HUES = ["#3a86b7", "#d08a2c", "#5a9e5f", "#b0588f", "#8a78c2", "#b5574a", "#4aa3a0", "#8d8a3e", "#6b8fd1", "#a3744c"];
export const SERIES = ["#3a86b7", "#d08a2c", "#5a9e5f", "#b0588f", "#8a78c2", "#4aa3a0", "#8d8a3e"];
const given = new Map();

// A host keeps its colour for as long as the page is open.
export function hue(host) {
  if (!host) return "transparent";
  if (!given.has(host)) given.set(host, HUES[given.size % HUES.length]);
  return given.get(host);
}

export function dye(element, host) {
  const wanted = hue(host);
  if (element.dataset.hue !== wanted) { element.dataset.hue = wanted; element.style.background = wanted; }
}
