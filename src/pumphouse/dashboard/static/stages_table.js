// The table of the Spark stages: a cell for each column name of monitors/stages.py.
import { find, make, setText, setClass } from "./dom.js";
import { number, rate, seconds, time, bytes, known, DASH } from "./format.js";
import { Table, columnMeanings } from "./table.js";

const TONES = { running: "good", stopped: "bad" };

export const STAGE_CELLS = {
  name: (stage) => stage.name,
  state: {
    build: (cell) => {
      const pill = make("span", { class: "pill" });
      cell.append(pill);
      return pill;
    },
    update: (pill, stage) => {
      setText(pill, stage.state);
      setClass(pill, `pill ${TONES[stage.state] || "warn"}`);
      pill.title = stage.error;
    },
  },
  batch: (stage) => number(stage.batch),
  batch_time: (stage) => seconds(known(stage.batch_ms) ? stage.batch_ms / 1000 : null),
  input_rate: (stage) => `${rate(stage.input_rate)}/s`,
  capacity: (stage) => `${rate(stage.processed_rate)}/s`,
  lag: (stage) => {
    const events = number(stage.lag_events);
    return known(stage.lag_s) ? `${events} (${seconds(stage.lag_s)})` : events;
  },
  memory: (stage) => {
    if (!stage.state_rows) return DASH;
    return `${number(stage.state_rows)} rows, ${bytes(stage.state_bytes)}`;
  },
  counts: (stage) => {
    const texts = stage.counted.map(([title, count]) => `${title} ${number(count)}`);
    return texts.join(", ") || DASH;
  },
  restarts: (stage) => number(stage.restarts),
};

export class StagesTable {
  constructor(columns, counts) {
    this.table = new Table(columns, STAGE_CELLS, { rowHeader: "name" });
    find("stages-meaning").replaceChildren(
      ...columnMeanings(columns),
      ...columnMeanings(
        counts.map((count) => ({ ...count, title: `${count.stage}: ${count.title}` })),
      ),
    );
    find("stages").className = "stackable";
    find("stages").replaceChildren(this.table.head(), this.table.body);
  }

  show(status) {
    find("stages-card").hidden = !status;
    if (!status) return;
    setText(find("stages-empty"), this.notice(status));
    this.table.show(status.stages, (stage) => stage.name);
  }

  notice(status) {
    if (status.why) return `No data: ${status.why}.`;
    if (status.old) return `Stale data: the stages last wrote it at ${time(status.at)}.`;
    return "";
  }
}
