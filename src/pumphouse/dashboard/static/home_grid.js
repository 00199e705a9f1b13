// The grid of all homes: a canvas for each region, a cell for each home. It can be navigated with
// the keyboard, and the home under the cursor is shown as text.
import { find, make, setText, colour } from "./dom.js";
import { number } from "./format.js";

const TROUBLE_STATE = 4; // cells of this state and above are enlarged
const ALERT_STATE = 6;
const STATE_BITS = 3; // of a changed home: number << 3 | state
const GAP_FROM_PX = 5; // larger cells have a gap between them
const ENLARGED_PX = 5;
const CURSOR_PX = 7;
const ASPECT = 1.35; // of a tile

export class HomeGrid {
  constructor(words, onChoose) {
    this.words = words;
    this.onChoose = onChoose;
    this.states = new Uint8Array(0);
    this.tiles = words.regions.map((name, region) => this.buildTile(name, region));
    find("home-grid").replaceChildren(...this.tiles.map((tile) => tile.figure));
    this.cursor = null; // number of the home under the cursor
    this.readColours();
    new ResizeObserver(() => this.drawAll()).observe(find("home-grid"));
  }

  buildTile(name, region) {
    const count = make("b");
    const label = `Homes of ${name}`;
    const canvas = make("canvas", { tabindex: region ? -1 : 0, role: "img", "aria-label": label });
    const caption = make("figcaption", {}, make("span", {}, name), count);
    const figure = make("figure", {}, canvas, caption);
    const tile = { name, region, canvas, count, figure };
    canvas.addEventListener("pointermove", (event) => this.point(tile, event));
    canvas.addEventListener("pointerleave", () => this.moveCursor(null));
    canvas.addEventListener("click", (event) => {
      this.point(tile, event);
      this.choose();
    });
    canvas.addEventListener("keydown", (event) => this.handleKey(tile, event));
    canvas.addEventListener("focus", () => {
      if (this.cursor === null || this.regionOf(this.cursor) !== region) this.moveCursor(region);
    });
    return tile;
  }

  get regions() {
    return this.words.regions.length;
  }

  // Consecutive homes are in consecutive regions.
  regionOf(home) {
    return home % this.regions;
  }

  homeAt(index, region) {
    return index * this.regions + region;
  }

  homesOf(region) {
    return Math.max(0, Math.ceil((this.states.length - region) / this.regions));
  }

  readColours() {
    this.css = this.words.states.map((_, state) => colour(`--s${state}`));
    this.pixels = this.css.map(pixelOf);
    this.ink = colour("--ink");
  }

  repaint() {
    this.readColours();
    this.drawAll();
  }

  drawAll() {
    for (const tile of this.tiles) this.draw(tile);
  }

  setAll(states) {
    this.states = states;
    this.drawAll();
    this.showCursor();
  }

  setChanged(packed) {
    const regions = new Set();
    for (const change of packed) {
      const home = change >>> STATE_BITS;
      this.states[home] = change & ((1 << STATE_BITS) - 1);
      regions.add(this.regionOf(home));
    }
    for (const region of regions) this.draw(this.tiles[region]);
    if (regions.size) this.showCursor();
  }

  layoutOf(tile) {
    const homes = this.homesOf(tile.region);
    const width = Math.floor(tile.canvas.clientWidth * devicePixelRatio);
    if (!homes || !width) return null;
    const across = Math.max(1, Math.ceil(Math.sqrt(homes * ASPECT)));
    // A cell has at least two pixels; with many homes the tile grows taller instead.
    const cell = Math.max(Math.round(2 * devicePixelRatio), Math.floor(width / across));
    const columns = Math.floor(width / cell);
    return { homes, width, cell, columns, height: Math.ceil(homes / columns) * cell };
  }

  draw(tile) {
    const layout = this.layoutOf(tile);
    if (!layout) return;
    const { width, height } = layout;
    const { canvas } = tile;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const context = canvas.getContext("2d");
    context.putImageData(this.drawCells(context, tile, layout), 0, 0);
    this.enlargeTrouble(context, tile, layout);
    if (this.cursor !== null && this.regionOf(this.cursor) === tile.region) {
      this.drawCursor(context, layout);
    }
  }

  drawCells(context, tile, { homes, width, cell, columns, height }) {
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const gap = cell >= GAP_FROM_PX ? Math.max(1, Math.round(cell / 8)) : 0;
    const side = cell - gap;
    for (let index = 0; index < homes; index++) {
      const pixel = this.pixels[this.states[this.homeAt(index, tile.region)]];
      const left = (index % columns) * cell;
      const top = Math.floor(index / columns) * cell;
      for (let y = top; y < top + side; y++) {
        pixels.fill(pixel, y * width + left, y * width + left + side);
      }
    }
    return image;
  }

  // Small cells of homes with trouble are drawn larger, so that they are visible among thousands.
  enlargeTrouble(context, tile, { homes, cell, columns }) {
    const side = ENLARGED_PX * devicePixelRatio;
    if (cell >= side) return;
    for (let index = 0; index < homes; index++) {
      const state = this.states[this.homeAt(index, tile.region)];
      if (state < TROUBLE_STATE) continue;
      context.fillStyle = this.css[state];
      context.fillRect(...centred(index, columns, cell, side), side, side);
    }
  }

  drawCursor(context, { cell, columns }) {
    const index = Math.floor(this.cursor / this.regions);
    const side = Math.max(cell, CURSOR_PX * devicePixelRatio);
    context.strokeStyle = this.ink;
    context.lineWidth = Math.max(1.5, devicePixelRatio * 1.5);
    context.strokeRect(...centred(index, columns, cell, side), side, side);
  }

  point(tile, event) {
    const layout = this.layoutOf(tile);
    if (!layout) return;
    const box = tile.canvas.getBoundingClientRect();
    const column = (((event.clientX - box.left) / box.width) * layout.width) / layout.cell;
    const row = (((event.clientY - box.top) / box.height) * layout.height) / layout.cell;
    const index = Math.floor(row) * layout.columns + Math.floor(column);
    const inside = column < layout.columns && index < layout.homes;
    this.moveCursor(inside ? this.homeAt(index, tile.region) : null);
  }

  handleKey(tile, event) {
    const layout = this.layoutOf(tile);
    if (!layout) return;
    const jump = { PageDown: 1, PageUp: -1 }[event.key];
    if (jump) {
      event.preventDefault();
      this.focus((tile.region + jump + this.regions) % this.regions);
      return;
    }
    const index = this.cursor === null ? 0 : Math.floor(this.cursor / this.regions);
    const next = nextIndex(event.key, index, layout);
    if (next === null) return;
    event.preventDefault();
    if (event.key === "Enter" || event.key === " ") this.choose();
    this.moveCursor(this.homeAt(next, tile.region));
  }

  choose() {
    if (this.cursor !== null) this.onChoose(this.cursor);
  }

  focus(region) {
    for (const tile of this.tiles) tile.canvas.tabIndex = tile.region === region ? 0 : -1;
    this.tiles[region].canvas.focus();
  }

  moveCursor(home) {
    if (home === this.cursor) return;
    const homes = [this.cursor, home].filter((cursor) => cursor !== null);
    this.cursor = home;
    const regions = new Set(homes.map((cursor) => this.regionOf(cursor)));
    for (const region of regions) this.draw(this.tiles[region]);
    this.showCursor();
  }

  showCursor() {
    setText(find("home-cursor"), this.cursorText());
  }

  cursorText() {
    const home = this.cursor;
    if (home === null || home >= this.states.length) return "";
    const region = this.words.regions[this.regionOf(home)];
    return `${nameOf(home)} · ${region} · ${this.words.states[this.states[home]].name}`;
  }

  showCounts(regions) {
    regions.forEach((counts, region) => {
      const tile = this.tiles[region];
      const alerts = counts[ALERT_STATE];
      setText(tile.count, alerts ? number(alerts) : "");
      const texts = this.words.states.map((state, index) => `${counts[index]} ${state.name}`);
      const label = `Homes of ${tile.name}: ${texts.join(", ")}`;
      if (tile.canvas.getAttribute("aria-label") !== label) {
        tile.canvas.setAttribute("aria-label", label);
      }
    });
  }
}

export const nameOf = (home) => `h${String(home).padStart(6, "0")}`;

// The index that a key moves to; null for a key without a meaning.
function nextIndex(key, index, { homes, columns }) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  if (step) return Math.min(homes - 1, Math.max(0, index + step));
  return { Home: 0, End: homes - 1, Enter: index, " ": index }[key] ?? null;
}

// The top left corner of a square in the middle of a cell.
function centred(index, columns, cell, side) {
  const margin = (cell - side) / 2;
  return [(index % columns) * cell + margin, Math.floor(index / columns) * cell + margin];
}

// A colour such as #a9c8c4 as one pixel, in the byte order of a canvas.
function pixelOf(text) {
  const value = parseInt(text.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
