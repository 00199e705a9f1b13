// Which rows of a long table are shown: a search, an order, and whether the table is folded.
import { make, setText } from "./dom.js";
import { number, plural } from "./format.js";

export const FOLDED_ROWS = 16; // a table with more rows can be folded

const descending = (name) => (a, b) => (b[name] ?? -1) - (a[name] ?? -1);
const ORDERS = {
  partition: { title: "Partition", compare: () => 0 }, // the order of the server
  lag: { title: "Lag", compare: descending("lag") },
  lag_s: { title: "Lag time", compare: descending("lag_s") },
  attention: { title: "Needs attention", compare: (a, b) => Number(b.bad) - Number(a.bad) },
};

// Words that must all occur in the partition, the owner, its successor or the status.
export function matches(line, text) {
  const fields = `${line.partition} ${line.owner} ${line.successor} ${line.status}`.toLowerCase();
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  // A number is the whole name of a partition: 7 is not 17.
  return words.every((word) =>
    /^\d+$/.test(word) ? line.partition === word : fields.includes(word),
  );
}

export class RowChoice {
  constructor(key, onChange) {
    this.onChange = onChange;
    this.folded = true;
    this.order = null; // until the user chooses: by lag if the table is long
    this.text = make("input", { type: "search", placeholder: "partition, owner or status" });
    this.text.autocomplete = "off";
    this.text.addEventListener("input", () => this.onChange());
    const options = Object.entries(ORDERS).map(([value, { title }]) =>
      make("option", { value }, title),
    );
    this.select = make("select", {}, ...options);
    this.select.addEventListener("change", () => {
      this.order = this.select.value;
      this.onChange();
    });
    const toggle = { type: "button", class: "small", onclick: () => this.toggle() };
    this.button = make("button", { ...toggle, "aria-controls": `${key}-table` }, "Show all");
    this.state = make("span", { class: "empty", role: "status" });
    this.element = make(
      "div",
      { class: "form row-choice", hidden: true, role: "search", "aria-label": "Partitions" },
      make("label", {}, "Search partitions ", this.text),
      make("label", {}, "Sort by ", this.select),
      this.button,
      this.state,
    );
  }

  toggle() {
    this.folded = !this.folded;
    this.onChange();
  }

  // The rows to show.
  choose(lines) {
    const isLong = lines.length > FOLDED_ROWS;
    this.element.hidden = !isLong;
    if (!isLong) return lines;
    const order = this.order ?? "lag";
    if (this.select.value !== order) this.select.value = order;
    const found = lines.filter((line) => matches(line, this.text.value));
    const sorted = found.sort(ORDERS[order].compare); // stable: equal rows keep their order
    const shown = this.folded ? sorted.slice(0, FOLDED_ROWS) : sorted;
    this.showState(lines, found, shown);
    return shown;
  }

  showState(lines, found, shown) {
    const all = `Show all ${number(found.length)}`;
    setText(this.button, this.folded ? all : `Show ${FOLDED_ROWS} only`);
    this.button.setAttribute("aria-expanded", !this.folded);
    this.button.hidden = found.length <= FOLDED_ROWS;
    const bad = lines.filter((line) => line.bad).length;
    const attention = bad ? `, ${number(bad)} need attention` : "";
    setText(
      this.state,
      `${number(shown.length)} of ${plural(lines.length, "partition")}${attention}`,
    );
  }
}
