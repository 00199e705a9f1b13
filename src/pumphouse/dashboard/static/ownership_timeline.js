// The owners of each partition over time: a row for each partition, a colour for each host, a mark
// for each change. The list below it has the same changes as text.
import { make, colour } from "./dom.js";
import { hostColour } from "./palette.js";
import { hourMinute } from "./format.js";

const MINUTE_MS = 60 * 1000;
const SPAN_MS = 10 * MINUTE_MS;
const SPAN_MIN_MS = MINUTE_MS;
const ROW_HEIGHT = 14;
const BAR_HEIGHT = ROW_HEIGHT - 4;
const LEFT = 30; // width of the partition names
const BOTTOM = 18; // height of the time axis
const LABEL_GAP = 44;
const CHANGES_MAX = 400; // per partition
const MARK_COLOURS = {
  claim: "--good",
  "hand-off": "--ink",
  steal: "--bad",
  expire: "--bad",
  release: "--muted",
  "re-claim": "--good",
};
// Marks differ by shape and colour: claim and re-claim ▲, hand-over ●, steal ◆, expiry ✕, release ▽.
const R = 3.6; // radius of a mark in pixels
const UP = [
  [0, -R],
  [R, R],
  [-R, R],
];
const DOWN = [
  [-R, -R],
  [R, -R],
  [0, R],
];
const DIAMOND = [
  [0, -R - 1],
  [R + 1, 0],
  [0, R + 1],
  [-R - 1, 0],
];
const MARK_SHAPES = { claim: UP, "re-claim": UP, steal: DIAMOND, release: DOWN };

export class OwnershipTimeline {
  constructor(element) {
    this.canvas = make("canvas", { role: "img", "aria-label": "Owners over time" });
    this.element = element;
    element.append(this.canvas);
    this.changes = new Map(); // partition -> [{at, owner, kind}], oldest first
    this.partitions = [];
    this.start = null;
    this.now = null;
    new ResizeObserver(() => this.draw()).observe(element);
  }

  reset(owners, changes, start) {
    const first = ([partition, owner]) => [partition, [{ at: 0, owner, kind: "" }]];
    this.changes = new Map(Object.entries(owners).map(first));
    this.start = start;
    this.add(changes);
  }

  add(changes) {
    for (const { partition, at, to, kind } of changes) {
      if (!this.changes.has(partition)) this.changes.set(partition, []);
      const list = this.changes.get(partition);
      list.push({ at, owner: to, kind });
      if (list.length > CHANGES_MAX) list.shift();
    }
  }

  show(partitions, now) {
    this.partitions = partitions;
    this.now = now;
    if (this.start === null) this.start = now;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.partitions.length || !this.now) return;
    const height = this.partitions.length * ROW_HEIGHT + BOTTOM;
    const context = this.prepare(width, height);
    const span = Math.min(SPAN_MS, Math.max(SPAN_MIN_MS, this.now - this.start));
    const from = this.now - span;
    const x = (at) => LEFT + Math.max(0, (at - from) / span) * (width - LEFT);
    const view = { context, x, from, span, width, height };
    this.partitions.forEach((partition, row) => this.drawRow(view, partition, row));
    this.drawAxis(view);
    const text = this.text();
    if (this.canvas.getAttribute("aria-label") !== text) {
      this.canvas.setAttribute("aria-label", text);
    }
  }

  prepare(width, height) {
    const scale = devicePixelRatio;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    return context;
  }

  drawRow({ context, x, from, width }, partition, row) {
    const top = row * ROW_HEIGHT + 2;
    const middle = top + BAR_HEIGHT / 2;
    context.fillStyle = colour("--soft");
    context.fillRect(LEFT, top, width - LEFT, BAR_HEIGHT);
    context.fillStyle = colour("--muted");
    context.textAlign = "right";
    context.fillText(partition, LEFT - 7, middle);
    const changes = this.changes.get(partition) || [];
    changes.forEach((change, index) => {
      const end = changes[index + 1]?.at ?? this.now;
      if (end < from || !change.owner) return;
      context.fillStyle = hostColour(change.owner);
      const left = x(change.at);
      context.fillRect(left, top, Math.max(1, x(end) - left), BAR_HEIGHT);
    });
    for (const { kind, at } of changes) {
      if (kind && at >= from) drawMark(context, kind, Math.max(x(at), LEFT + 4), middle);
    }
  }

  drawAxis({ context, x, from, span, width, height }) {
    const step = axisStep(span);
    context.fillStyle = colour("--muted");
    context.textAlign = "center";
    let last = LEFT;
    for (let at = Math.ceil(from / step) * step; at <= this.now; at += step) {
      if (x(at) - last < LABEL_GAP || x(at) > width - 16) continue;
      last = x(at);
      const text = step < MINUTE_MS ? new Date(at).toTimeString().slice(0, 8) : hourMinute(at);
      context.fillText(text, x(at), height - 7);
    }
  }

  text() {
    const owners = this.partitions.map((partition) => {
      const last = this.changes.get(partition)?.at(-1);
      return `${partition}: ${last?.owner || "none"}`;
    });
    return `Owners over time. Now ${owners.join(", ")}`;
  }
}

function axisStep(span) {
  if (span <= 2 * MINUTE_MS) return 15000;
  return span <= 5 * MINUTE_MS ? MINUTE_MS : 2 * MINUTE_MS;
}

function drawMark(context, kind, x, y) {
  const markColour = colour(MARK_COLOURS[kind] || "--ink");
  context.beginPath();
  if (kind === "expire") {
    drawCross(context, x, y, markColour);
    return;
  }
  const shape = MARK_SHAPES[kind];
  if (shape) {
    for (const [dx, dy] of shape) context.lineTo(x + dx, y + dy);
    context.closePath();
  } else {
    context.arc(x, y, R - 0.3, 0, 7);
  }
  context.fillStyle = markColour;
  context.fill();
  context.strokeStyle = colour("--card");
  context.lineWidth = 1;
  context.stroke();
}

function drawCross(context, x, y, markColour) {
  context.moveTo(x - R, y - R);
  context.lineTo(x + R, y + R);
  context.moveTo(x + R, y - R);
  context.lineTo(x - R, y + R);
  context.strokeStyle = markColour;
  context.lineWidth = 2;
  context.stroke();
}
