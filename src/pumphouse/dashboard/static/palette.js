// Colours of hosts and sensors, distinct in both themes and with most colour deficiencies.
const HUES = [
  "#3a86b7",
  "#d08a2c",
  "#5a9e5f",
  "#b0588f",
  "#8a78c2",
  "#b5574a",
  "#4aa3a0",
  "#8d8a3e",
  "#6b8fd1",
  "#a3744c",
];
export const SERIES = ["#3a86b7", "#d08a2c", "#5a9e5f", "#b0588f", "#8a78c2", "#4aa3a0", "#8d8a3e"];
const hues = new Map();

// A host keeps its colour while the page is open.
export function hue(host) {
  if (!host) return "transparent";
  if (!hues.has(host)) hues.set(host, HUES[hues.size % HUES.length]);
  return hues.get(host);
}

export function dye(element, host) {
  const background = hue(host);
  if (element.dataset.hue === background) return;
  element.dataset.hue = background;
  element.style.background = background;
}
