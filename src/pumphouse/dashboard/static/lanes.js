// Who owned what over time: a lane for each partition, a colour for each host, a mark for each
// change. The list beside it says the same in words.
import { make, colour, setText } from "./dom.js";
import { hue } from "./palette.js";
import { hourMinute } from "./format.js";

const SPAN_MS = 10 * 60 * 1000;
const LEAST_MS = 60 * 1000;
const LANE = 14;
const LEFT = 30;
const BOTTOM = 18;
const MARKS = { claim: "--good", "hand-off": "--ink", steal: "--bad", expire: "--bad", release: "--muted", "re-claim": "--good" };

export class Lanes {
  constructor(element) {
    this.canvas = make("canvas", { role: "img", "aria-label": "Ownership over time" });
    this.element = element;
    element.append(this.canvas);
    this.runs = new Map(); // partition -> [{at, owner, word}]
    this.partitions = [];
    this.begun = null;
    this.now = null;
    new ResizeObserver(() => this.draw()).observe(element);
  }

  reset(owners, changes, begun) {
    this.runs = new Map(Object.entries(owners).map(([partition, owner]) => [partition, [{ at: 0, owner, word: "" }]]));
    this.begun = begun;
    this.add(changes);
  }

  add(changes) {
    for (const change of changes) {
      if (!this.runs.has(change.partition)) this.runs.set(change.partition, []);
      const run = this.runs.get(change.partition);
      run.push({ at: change.at, owner: change.to, word: change.word });
      while (run.length > 400) run.shift();
    }
  }

  show(partitions, now) {
    this.partitions = partitions;
    this.now = now;
    if (this.begun === null) this.begun = now;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.partitions.length || !this.now) return;
    const scale = devicePixelRatio;
    const height = this.partitions.length * LANE + BOTTOM;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const span = Math.min(SPAN_MS, Math.max(LEAST_MS, this.now - this.begun));
    const from = this.now - span;
    const x = (at) => LEFT + Math.max(0, (at - from) / span) * (width - LEFT);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.partitions.forEach((partition, lane) => this.lane(context, partition, lane, x, from, width));
    this.axis(context, x, from, span, width, height);
    setLabel(this.canvas, this.told());
  }

  lane(context, partition, lane, x, from, width) {
    const top = lane * LANE + 2;
    context.fillStyle = colour("--soft");
    context.fillRect(LEFT, top, width - LEFT, LANE - 4);
    context.fillStyle = colour("--muted");
    context.textAlign = "right";
    context.fillText(partition, LEFT - 7, top + (LANE - 4) / 2);
    const run = this.runs.get(partition) || [];
    run.forEach((piece, place) => {
      const end = place + 1 < run.length ? run[place + 1].at : this.now;
      if (end < from || !piece.owner) return;
      context.fillStyle = hue(piece.owner);
      context.fillRect(x(piece.at), top, Math.max(1, x(end) - x(piece.at)), LANE - 4);
    });
    for (const piece of run) if (piece.word && piece.at >= from) this.mark(context, piece.word, x(piece.at), top + (LANE - 4) / 2);
  }

  // Shapes differ too, not only colours: claim ▲, hand-off ●, steal ◆, expire ✕, release ▽.
  mark(context, word, x, y) {
    const r = 3.6;
    const steps = { claim: [[0, -r], [r, r], [-r, r]], "re-claim": [[0, -r], [r, r], [-r, r]], steal: [[0, -r - 1], [r + 1, 0], [0, r + 1], [-r - 1, 0]], release: [[-r, -r], [r, -r], [0, r]] }[word];
    const at = Math.max(x, LEFT + 4);
    context.beginPath();
    if (word === "expire") { context.moveTo(at - r, y - r); context.lineTo(at + r, y + r); context.moveTo(at + r, y - r); context.lineTo(at - r, y + r); context.strokeStyle = colour(MARKS[word]); context.lineWidth = 2; context.stroke(); return; }
    if (steps) { steps.forEach(([dx, dy], place) => (place ? context.lineTo(at + dx, y + dy) : context.moveTo(at + dx, y + dy))); context.closePath(); } else context.arc(at, y, r - 0.3, 0, 7);
    context.fillStyle = colour(MARKS[word] || "--ink");
    context.fill();
    context.strokeStyle = colour("--card");
    context.lineWidth = 1;
    context.stroke();
  }

  axis(context, x, from, span, width, height) {
    const step = span <= 2 * 60000 ? 15000 : span <= 5 * 60000 ? 60000 : 120000;
    context.fillStyle = colour("--muted");
    context.textAlign = "center";
    let last = LEFT;
    for (let at = Math.ceil(from / step) * step; at <= this.now; at += step) {
      if (x(at) - last < 44 || x(at) > width - 16) continue;
      last = x(at);
      const text = step < 60000 ? new Date(at).toTimeString().slice(0, 8) : hourMinute(at);
      context.fillText(text, x(at), height - 7);
    }
  }

  told() {
    const owners = this.partitions.map((partition) => {
      const run = this.runs.get(partition) || [];
      return `${partition}: ${(run.length && run[run.length - 1].owner) || "nobody"}`;
    });
    return `Ownership over time. Now ${owners.join(", ")}`;
  }
}

function setLabel(canvas, text) {
  if (canvas.getAttribute("aria-label") !== text) canvas.setAttribute("aria-label", text);
}
