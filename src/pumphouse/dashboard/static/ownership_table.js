// The cells of the ownership table, by the column names of views/fleet.py.
import { make, setText, setClass } from "./dom.js";
import { number, rate, seconds, known, DASH } from "./format.js";
import { setHostColour } from "./palette.js";
import { Table } from "./table.js";

// group() returns the group that is shown; statuses maps a status to its meaning.
export function ownershipCells(group, statuses) {
  return {
    partition: (line) => line.partition,
    owner: {
      build: (cell) => {
        const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
        const name = make("span");
        cell.append(make("span", { class: "owner" }, swatch, name));
        return { swatch, name };
      },
      update: ({ swatch, name }, line) => {
        setHostColour(swatch, line.owner);
        const successor = line.successor ? ` → ${line.successor}` : "";
        setText(name, (line.owner || "none") + successor);
      },
    },
    epoch: (line) => line.epoch || DASH,
    lease_left_s: {
      build: (cell) => {
        const meter = make("meter", { min: 0, max: 1, "aria-hidden": "true" });
        const text = make("span");
        cell.append(meter, text);
        return { meter, text };
      },
      update: ({ meter, text }, line) => {
        const left = line.lease_left_s;
        meter.hidden = !known(left) || left <= 0;
        meter.value = known(left) ? Math.max(0, left) / group().lease_s : 0;
        setText(text, leaseText(left));
      },
    },
    checkpoint: (line) => number(line.checkpoint),
    end: (line) => number(line.end),
    lag: (line) => number(line.lag),
    lag_s: (line) => seconds(line.lag_s),
    in: (line) => rate(line.in),
    out: (line) => rate(line.out),
    status: {
      build: (cell) => {
        const pill = make("span", { class: "pill" });
        cell.append(pill);
        return pill;
      },
      update: (pill, line) => {
        setText(pill, line.status);
        pill.title = `The partition ${statuses[line.status].meaning}.`;
        setClass(pill, `pill ${statusTone(line)}`);
      },
    },
  };
}

function leaseText(left) {
  if (!known(left)) return DASH;
  return left > 0 ? seconds(left) : `expired ${seconds(-left)}`;
}

function statusTone(line) {
  if (line.bad) return "bad";
  return line.status === "moving" ? "warn" : "good";
}

export class OwnershipTable {
  constructor(key, words) {
    this.group = null;
    const cells = ownershipCells(() => this.group, words.statuses);
    this.table = new Table(words.columns, cells, { rowHeader: "partition" });
    this.element = make(
      "table",
      { class: "stackable ownership", id: `${key}-table` },
      make("caption", { class: "sr" }, "Owner, lag and health of every partition"),
      this.table.head(),
      this.table.body,
    );
  }

  // `lines` are the rows of the group to show, in their order.
  show(group, lines) {
    this.group = group;
    this.table.show(
      lines,
      (line) => line.partition,
      (row, line) => setClass(row, line.bad ? "bad" : ""),
    );
  }
}
