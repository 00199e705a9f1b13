// The picture of all homes: one canvas for each region, one cell for each home. It can be walked
// through with the keyboard, and what is under the cursor is also said in words.
import { find, make, setText, colour } from "./dom.js";
import { number } from "./format.js";

const WORRYING = 4; // states from here on: trouble, alert
const GAP_FROM = 5; // cells of at least so many pixels have a gap between them

export class TownPicture {
  constructor(words, onChoose) {
    this.words = words;
    this.onChoose = onChoose;
    this.states = new Uint8Array(0);
    this.tiles = words.regions.map((name, region) => this.tile(name, region));
    find("town").replaceChildren(...this.tiles.map((tile) => tile.figure));
    this.cursor = null;
    this.colours();
    new ResizeObserver(() => this.paintAll()).observe(find("town"));
  }

  tile(name, region) {
    const count = make("b");
    const canvas = make("canvas", { tabindex: region ? -1 : 0, role: "img", "aria-label": `Homes of ${name}` });
    const caption = make("figcaption", {}, make("span", {}, name), count);
    const figure = make("figure", {}, canvas, caption);
    const tile = { name, region, canvas, count, figure };
    canvas.addEventListener("pointermove", (event) => this.point(tile, event));
    canvas.addEventListener("pointerleave", () => this.place(null));
    canvas.addEventListener("click", (event) => { this.point(tile, event); if (this.cursor !== null) this.onChoose(this.cursor); });
    canvas.addEventListener("keydown", (event) => this.key(tile, event));
    canvas.addEventListener("focus", () => { if (this.cursor === null || this.cursor % this.regions !== region) this.place(region); });
    return tile;
  }

  get regions() { return this.words.regions.length; }
  homesOf(region) { return Math.max(0, Math.ceil((this.states.length - region) / this.regions)); }

  colours() {
    this.css = this.words.states.map((_, state) => colour(`--s${state}`));
    this.paint = this.css.map(rgb);
    this.ink = colour("--ink");
  }

  repaint() { this.colours(); this.paintAll(); }
  paintAll() { for (const tile of this.tiles) this.draw(tile); }

  whole(states) { this.states = states; this.paintAll(); this.say(); }

  change(packed) {
    const touched = new Set();
    for (const one of packed) {
      const home = one >>> 3;
      this.states[home] = one & 7;
      touched.add(home % this.regions);
    }
    for (const region of touched) this.draw(this.tiles[region]);
    if (touched.size) this.say();
  }

  layout(tile) {
    const homes = this.homesOf(tile.region);
    const width = Math.floor(tile.canvas.clientWidth * devicePixelRatio);
    if (!homes || !width) return null;
    const across = Math.max(1, Math.ceil(Math.sqrt(homes * 1.35)));
    // Not below what an eye can see: the tile then grows taller instead.
    const cell = Math.max(Math.round(2 * devicePixelRatio), Math.floor(width / across));
    const columns = Math.floor(width / cell);
    return { homes, width, cell, columns, height: Math.ceil(homes / columns) * cell };
  }

  draw(tile) {
    const layout = this.layout(tile);
    if (!layout) return;
    const { homes, width, cell, columns, height } = layout;
    const { canvas } = tile;
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const gap = cell >= GAP_FROM ? Math.max(1, Math.round(cell / 8)) : 0;
    for (let place = 0; place < homes; place++) {
      const paint = this.paint[this.states[place * this.regions + tile.region]];
      const left = (place % columns) * cell;
      const top = Math.floor(place / columns) * cell;
      for (let y = top; y < top + cell - gap; y++) pixels.fill(paint, y * width + left, y * width + left + cell - gap);
    }
    context.putImageData(image, 0, 0);
    this.blow(context, tile, layout);
    if (this.cursor !== null && this.cursor % this.regions === tile.region) this.ring(context, layout);
  }

  // Among thousands of cells, those that need somebody are drawn larger than they are.
  blow(context, tile, { homes, cell, columns }) {
    const side = 5 * devicePixelRatio;
    if (cell >= side) return;
    for (let place = 0; place < homes; place++) {
      const state = this.states[place * this.regions + tile.region];
      if (state < WORRYING) continue;
      context.fillStyle = this.css[state];
      const x = (place % columns) * cell + (cell - side) / 2;
      const y = Math.floor(place / columns) * cell + (cell - side) / 2;
      context.fillRect(x, y, side, side);
    }
  }

  ring(context, { cell, columns }) {
    const place = Math.floor(this.cursor / this.regions);
    const side = Math.max(cell, 7 * devicePixelRatio);
    const x = (place % columns) * cell + (cell - side) / 2;
    const y = Math.floor(place / columns) * cell + (cell - side) / 2;
    context.strokeStyle = this.ink;
    context.lineWidth = Math.max(1.5, devicePixelRatio * 1.5);
    context.strokeRect(x, y, side, side);
  }

  point(tile, event) {
    const layout = this.layout(tile);
    if (!layout) return;
    const box = tile.canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * layout.width / layout.cell);
    const y = Math.floor(((event.clientY - box.top) / box.height) * layout.height / layout.cell);
    const place = y * layout.columns + x;
    this.place(x < layout.columns && place < layout.homes ? place * this.regions + tile.region : null);
  }

  key(tile, event) {
    const layout = this.layout(tile);
    if (!layout) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: layout.columns, ArrowUp: -layout.columns }[event.key];
    const jump = { PageDown: 1, PageUp: -1 }[event.key];
    let place = this.cursor === null ? 0 : Math.floor(this.cursor / this.regions);
    if (step) place = Math.min(layout.homes - 1, Math.max(0, place + step));
    else if (event.key === "Home") place = 0;
    else if (event.key === "End") place = layout.homes - 1;
    else if (event.key === "Enter" || event.key === " ") { if (this.cursor !== null) this.onChoose(this.cursor); }
    else if (jump) { event.preventDefault(); this.focus((tile.region + jump + this.regions) % this.regions); return; }
    else return;
    event.preventDefault();
    this.place(place * this.regions + tile.region);
  }

  focus(region) {
    for (const tile of this.tiles) tile.canvas.tabIndex = tile.region === region ? 0 : -1;
    this.tiles[region].canvas.focus();
  }

  place(home) {
    if (home === this.cursor) return;
    const regions = [this.cursor, home].filter((one) => one !== null).map((one) => one % this.regions);
    this.cursor = home;
    for (const region of new Set(regions)) this.draw(this.tiles[region]);
    this.say();
  }

  say() {
    const home = this.cursor;
    const text = home === null || home >= this.states.length ? "" : `${nameOf(home)} · ${this.words.regions[home % this.regions]} · ${this.words.states[this.states[home]].word}`;
    setText(find("town-cursor"), text);
  }

  counts(regions) {
    regions.forEach((counts, region) => {
      const alerts = counts[5];
      const tile = this.tiles[region];
      setText(tile.count, alerts ? number(alerts) : "");
      const told = this.words.states.map((state, place) => `${counts[place]} ${state.word}`).join(", ");
      const label = `Homes of ${tile.name}: ${told}`;
      if (tile.canvas.getAttribute("aria-label") !== label) tile.canvas.setAttribute("aria-label", label);
    });
  }
}

export const nameOf = (home) => `h${String(home).padStart(6, "0")}`;

// A colour such as #a9c8c4 as one pixel, in the byte order that canvases have everywhere.
function rgb(text) {
  const value = parseInt(text.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
