// Lines over time, drawn by uPlot in the colours of the page.
import { colour } from "./dom.js";
import { rate as number, hourMinute, time, known } from "./format.js";

const HEIGHT = 190;

export class Chart {
  // series: [{label, stroke, scale?, fill?}]; rows: [[ms, ...values]]
  constructor(element, series, { right = false, seconds = false } = {}) {
    this.element = element;
    this.series = series;
    this.right = right;
    this.seconds = seconds;
    this.rows = [];
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(element);
  }

  axis(scale, more = {}) {
    return { scale, stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif", ...more };
  }

  options() {
    const axes = [
      this.axis("x", { values: (_, marks) => marks.map((mark) => (this.seconds ? time(mark * 1000) : hourMinute(mark * 1000))), space: this.seconds ? 90 : 60, size: 30 }),
      this.axis("y", { values: (_, marks) => marks.map(number), size: 56 }),
    ];
    if (this.right) axes.push(this.axis("right", { side: 1, grid: { show: false }, values: (_, marks) => marks.map((mark) => (Number.isInteger(mark) ? number(mark) : "")), size: 62 }));
    const range = (_, least, most) => [0, Math.max(1, most * 1.1)];
    return {
      width: this.width(), height: HEIGHT, pxAlign: 0, axes,
      scales: { x: { time: true }, y: { range }, right: { range } },
      legend: { live: true },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      series: [
        { label: "time", value: (_, at) => (!known(at) ? "" : this.seconds ? time(at * 1000) : hourMinute(at * 1000)) },
        ...this.series.map((one) => ({ ...one, width: 1.75, points: { show: false }, spanGaps: false, scale: one.scale || "y", value: (_, value) => number(value) })),
      ],
    };
  }

  width() { return Math.max(240, Math.floor(this.element.clientWidth)); }

  show(rows) {
    this.rows = rows;
    if (!this.element.clientWidth) return;
    const data = [rows.map((row) => row[0] / 1000), ...this.series.map((_, place) => rows.map((row) => row[place + 1]))];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.element);
    // Nobody points at the chart: the legend tells the newest.
    if (this.plot.cursor.left < 0 || this.plot.cursor.left === undefined) this.plot.setLegend({ idx: this.newest(rows) }, false);
  }

  newest(rows) { return rows.length - 1; }

  resize() {
    if (!this.element.clientWidth) return;
    if (!this.plot) { if (this.rows.length) this.show(this.rows); return; }
    if (this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: HEIGHT });
  }

  repaint() {
    if (this.plot) { this.plot.destroy(); this.plot = null; }
    if (this.rows.length) this.show(this.rows);
  }
}
