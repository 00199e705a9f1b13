// Colours of hosts and sensors, distinct in both themes and with most colour deficiencies.
const HOST_COLOURS = [
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
const assigned = new Map(); // host -> colour

// A host keeps its colour while the page is open.
export function hostColour(host) {
  if (!host) return "transparent";
  if (!assigned.has(host)) assigned.set(host, HOST_COLOURS[assigned.size % HOST_COLOURS.length]);
  return assigned.get(host);
}

export function setHostColour(element, host) {
  const background = hostColour(host);
  if (element.dataset.colour === background) return;
  element.dataset.colour = background;
  element.style.background = background;
}
