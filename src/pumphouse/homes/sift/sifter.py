"""What `sift` does with the readings of a bucket of partitions, in a task: the stateful part.

relevant readings -> Sifter (validate_body, admit_new, raise_alarms) -> delivery.py, counts
                     ^^^^^^ this module, in an executor

The task sends its results itself, so that they need not pass through the JVM to another process.
Spark gets only counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from pumphouse.homes.duplicates import admit_new
from pumphouse.homes.exact_validation import validate_body
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import MODES, Reading, encode_alert, home_of, kind_of
from pumphouse.homes.sift.alarms import pack_state, raise_alarms, unpack_state
from pumphouse.homes.sift.delivery import DROPPED, KEPT, REPEATED, OutgoingEvents
from pumphouse.homes.state.compression import compress_state, expand_state
from pumphouse.homes.watch.alerts import Alerts
from pumphouse.homes.watch.history import ActivityColumns, UInt64s
from pumphouse.spark.worker import freeze_imported_modules

KIND = "kind_"  # begins the names of the counts of each kind of sensor
LATE = "late"
COUNTS = "counts"
# One text and not a column for each count: Spark compiles an aggregation of all columns again in
# every task.
OUTPUT = f"{COUNTS} STRING"
# The name "seen" is part of the checkpoint (the state and its field): it must not change.
STATE_SCHEMA = StructType([StructField("seen", BinaryType())])

Table = dict[str, Any]  # columns of numpy by name
Deliver = Callable[[OutgoingEvents], None]


class Sifter(StatefulProcessor):
    """Validates the remaining readings exactly, keeps the first of equal readings, and raises
    alerts. All homes of a bucket share one value of state: one per sensor would cost a round trip
    to the JVM for every reading.

    `known` are the fingerprints of alerts raised before the start; None: raise no alerts. `deliver`
    gets the results of all buckets of a task at its end.
    """

    def __init__(
        self,
        ahead_max_ms: int | None,
        late_ms: int,
        known: UInt64s | None,
        deliver: Deliver,
        kinds: Kinds = DEFAULT,
    ) -> None:
        self.ahead_max_ms, self.late_ms, self.known = ahead_max_ms, late_ms, known
        self.deliver, self.kinds = deliver, kinds
        self.outgoing = OutgoingEvents()

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("seen", STATE_SCHEMA)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        batch = pd.concat(rows)
        # Restores the order of the hub, which the shuffle has changed: of equal readings, the first
        # one in the hub is kept.
        partitions = batch["partition"].to_numpy().astype(np.int32)
        order = np.lexsort((batch["sequence"].to_numpy(), partitions))
        table = {name: batch[name].to_numpy()[order] for name in batch.columns}
        # The columns of a reading that is certainly valid; its kind is counted already.
        table["outcome"] = np.full(len(batch), KEPT, object)
        table["late"] = np.zeros(len(batch), bool)
        table["kind"] = np.full(len(batch), None, object)
        table["alert"] = np.full(len(batch), None, object)
        for row in np.flatnonzero(~table["valid"].astype(bool)).tolist():
            self.validate(table, row)
        self.evaluate(table)
        self.outgoing.add(table)
        yield pd.DataFrame({COUNTS: [json.dumps(counts_of(table))]})

    def close(self) -> None:
        """The end of the task: Spark stores the new state only if this succeeds."""
        if self.outgoing:
            outgoing, self.outgoing = self.outgoing, OutgoingEvents()
            self.deliver(outgoing)
        freeze_imported_modules()

    def validate(self, table: Table, row: int) -> None:
        """Validate a body exactly, and write the result into its row."""
        body, enqueued = bytes(table["body"][row]), int(table["enqueued"][row])
        result = validate_body(body, enqueued, self.ahead_max_ms, self.late_ms, self.kinds)
        table["late"][row] = result.late
        if result.problem is not None:
            table["outcome"][row] = result.problem
            return
        table["kind"][row] = self.kinds.names[kind_of(result.sensor)]
        if result.body is None or result.reading is None:
            table["outcome"][row] = DROPPED
        else:
            table["home"][row], table["body"][row] = result.home, result.body
            table["sensor"][row], table["seq"][row] = result.sensor, result.seq
            set_values(table, row, result.reading)

    def evaluate(self, table: Table) -> None:
        """Find duplicates and alerts by the state, and store the new state."""
        stored = self.state.get()
        packed = b"" if stored is None else expand_state(stored[0])
        windows, history = unpack_state(packed, self.kinds)
        kept = np.flatnonzero(table["outcome"] == KEPT)
        sensors, numbers = table["sensor"][kept], table["seq"][kept]
        new, windows = admit_new(windows, sensors.astype(np.int32), numbers.astype(np.int64))
        table["outcome"][kept[~new]] = REPEATED
        if not new.any():
            return
        if self.known is None:
            self.state.update((compress_state(pack_state(windows, None)),))
            return
        activities = as_columns(table, kept[new])
        alerts, history = raise_alarms(history, activities, self.known, self.kinds)
        write_alerts(table, kept[new], activities, alerts, self.kinds)
        self.state.update((compress_state(pack_state(windows, history)),))


def counts_of(table: Table) -> dict[str, int]:
    """The number of rows of each outcome, without the details of an invalid record, of late rows,
    and of each kind of sensor; without those that are 0."""
    counts = Counter[str](text.partition(":")[0] for text in table["outcome"].tolist())
    counts.update(KIND + name for name in table["kind"].tolist() if name is not None)
    if late := int(table["late"].sum()):
        counts[LATE] = late
    return dict(counts)


def set_values(table: Table, row: int, reading: Reading) -> None:
    table["at"][row], table["since"][row] = reading.at, reading.since
    table["value"][row] = np.nan if reading.value is None else reading.value
    table["mode"][row] = MODES.index(reading.mode)


def as_columns(table: Table, rows: Any) -> ActivityColumns:
    sensor = table["sensor"][rows].astype(np.int32)
    return ActivityColumns(
        number=home_of(sensor),
        kind=kind_of(sensor),
        at=table["at"][rows].astype(np.int64),
        value=table["value"][rows].astype(np.float64),
        since=table["since"][rows].astype(np.int64),
        mode=table["mode"][rows].astype(np.int32),
    )


def write_alerts(
    table: Table, rows: Any, activities: ActivityColumns, alerts: Alerts, kinds: Kinds
) -> None:
    """Write each alert into the row of the reading that raised it."""
    columns = (alerts.number, alerts.sensor, alerts.at)
    raised_by = zip(*(column.tolist() for column in columns), strict=True)
    for (number, sensor, at), alert in zip(raised_by, alerts.as_alerts(kinds), strict=True):
        is_reading = (activities.number == number) & (activities.kind == sensor)
        row = rows[np.flatnonzero(is_reading & (activities.at == at))[0]]
        table["alert"][row] = encode_alert(alert)
