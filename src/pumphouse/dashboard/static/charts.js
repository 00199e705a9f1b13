// Line charts over time, drawn by uPlot in the colours of the page.
import { colour } from "./dom.js";
import { rate as number, hourMinute, time, known } from "./format.js";

const HEIGHT = 190;

export class Chart {
  // series: [{label, stroke, scale?, fill?}]; rows: [[ms, ...values]]
  constructor(element, series, { right = false, seconds = false } = {}) {
    this.element = element;
    this.series = series;
    this.right = right; // whether there is a second scale on the right
    this.seconds = seconds; // whether times are shown with seconds
    this.rows = [];
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(element);
  }

  timeText(second) {
    return this.seconds ? time(second * 1000) : hourMinute(second * 1000);
  }

  axis(scale, overrides = {}) {
    return {
      scale,
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
      ...overrides,
    };
  }

  axes() {
    const times = (_, ticks) => ticks.map((tick) => this.timeText(tick));
    const axes = [
      this.axis("x", { values: times, space: this.seconds ? 90 : 60, size: 30 }),
      this.axis("y", { values: (_, ticks) => ticks.map(number), size: 56 }),
    ];
    if (this.right) {
      const values = (_, ticks) =>
        ticks.map((tick) => (Number.isInteger(tick) ? number(tick) : ""));
      axes.push(this.axis("right", { side: 1, grid: { show: false }, values, size: 62 }));
    }
    return axes;
  }

  options() {
    const range = (_, least, most) => [0, Math.max(1, most * 1.1)];
    const series = this.series.map((line) => ({
      ...line,
      width: 1.75,
      points: { show: false },
      spanGaps: false,
      scale: line.scale || "y",
      value: (_, value) => number(value),
    }));
    const timeOf = (_, second) => (known(second) ? this.timeText(second) : "");
    return {
      width: this.width(),
      height: HEIGHT,
      pxAlign: 0,
      axes: this.axes(),
      scales: { x: { time: true }, y: { range }, right: { range } },
      legend: { live: true },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      series: [{ label: "time", value: timeOf }, ...series],
    };
  }

  width() {
    return Math.max(240, Math.floor(this.element.clientWidth));
  }

  show(rows) {
    this.rows = rows;
    if (!this.element.clientWidth) return;
    const seconds = rows.map((row) => row[0] / 1000);
    const values = this.series.map((_, index) => rows.map((row) => row[index + 1]));
    const data = [seconds, ...values];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.element);
    const { left } = this.plot.cursor;
    // Without a pointer on the chart the legend shows the newest values.
    if (left < 0 || left === undefined) this.plot.setLegend({ idx: rows.length - 1 }, false);
  }

  resize() {
    if (!this.element.clientWidth) return;
    if (!this.plot) {
      if (this.rows.length) this.show(this.rows);
      return;
    }
    if (this.plot.width !== this.width()) {
      this.plot.setSize({ width: this.width(), height: HEIGHT });
    }
  }

  repaint() {
    if (this.plot) {
      this.plot.destroy();
      this.plot = null;
    }
    if (this.rows.length) this.show(this.rows);
  }
}
