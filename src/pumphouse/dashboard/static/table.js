// Tables whose header and cells come from one list of columns: {name, title, meaning, numeric}.
// `cells` has an entry for each column name: a function from row data to text, or an object
// {build(cell), update(parts, data)} for a cell with elements of its own.
import { make, setText, keepRows } from "./dom.js";

export class Table {
  constructor(columns, cells, { rowHeader, className = "" }) {
    this.columns = columns;
    this.cells = cells;
    this.rowHeader = rowHeader; // the name of the column that names the row
    this.className = className;
    this.body = make("tbody");
    this.parts = new WeakMap(); // row element -> {column name: cell parts}
  }

  head() {
    const titles = this.columns.map(({ title, meaning, numeric }) =>
      make("th", { scope: "col", title: meaning, class: numeric ? "num" : "" }, title),
    );
    return make("thead", {}, make("tr", {}, ...titles));
  }

  show(rows, keyOf, updateRow = () => {}) {
    keepRows(
      this.body,
      rows,
      keyOf,
      () => this.buildRow(),
      (row, data) => {
        this.updateRow(row, data);
        updateRow(row, data);
      },
    );
  }

  buildRow() {
    const row = make("tr");
    const parts = {};
    for (const column of this.columns) {
      const cell = this.buildCell(column);
      row.append(cell);
      parts[column.name] = this.cells[column.name].build?.(cell) ?? cell;
    }
    this.parts.set(row, parts);
    return row;
  }

  buildCell({ name, title, numeric }) {
    const isHeader = name === this.rowHeader;
    const attributes = { class: `${numeric ? "num " : ""}c-${name.replaceAll("_", "-")}` };
    attributes["data-label"] = title;
    if (isHeader) attributes.scope = "row";
    return make(isHeader ? "th" : "td", attributes);
  }

  updateRow(row, data) {
    const parts = this.parts.get(row);
    for (const { name } of this.columns) {
      const cell = this.cells[name];
      if (cell.update) cell.update(parts[name], data);
      else setText(parts[name], cell(data));
    }
  }
}

// A definition list with the title and the meaning of every column.
export function columnMeanings(columns) {
  return columns.flatMap(({ title, meaning }) => [make("dt", {}, title), make("dd", {}, meaning)]);
}
