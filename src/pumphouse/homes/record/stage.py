"""The third stage, `record`: stores each activity and alert once, in Parquet files and a database.

What it needs, and why:

* Batches: a file and a transaction cost the same for one row as for a thousand.
* A checkpoint, to resume from. The position is stored in the same transaction as the rows, because
  Spark repeats the batch in which a crash happened; both stores recognise new rows by it.
* One writer per partition: the source reads with an epoch, so an older driver that still runs is
  evicted. If one gets through, the transaction and the manifest refuse its write.
* All rows on the driver: a transaction needs one connection. The stages before drop most readings,
  the rows arrive as Arrow, and `events_max` bounds a batch.

    activity, alerts (hubs) -> from_json -> driver: Archive.append, Database.store
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import OptionError
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record.archive import Archive, read_manifest
from pumphouse.homes.record.database import TABLES, Database, open_database
from pumphouse.homes.record.folder import open_folder
from pumphouse.homes.record.positions import Positions, common_positions, end_positions
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pumphouse.homes")

GROUP = "record"
TRIGGER = {"processingTime": "2 seconds"}
COLUMNS = "body binary, partition string, sequenceNumber long, enqueuedTime timestamp"
# One shape for the bodies of both hubs: what one has and the other has not is null.
BODY = (
    "id STRING, home STRING, kind STRING, sensor STRING, seq BIGINT, at BIGINT, value DOUBLE,"
    " since BIGINT, mode STRING, battery INT, fault STRING, why STRING, region STRING, text STRING"
)
HUB = "hub"
PROBE = "_probe"
TIDY_EVERY = 8  # batches
END_MS = 253_402_300_800_000  # the year 10000
KEY_MAX = 200  # bytes


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Where to, and how much at once. Without storage or database, only into the other."""

    storage: str | None = None
    database: str | None = None
    start: str = "earliest"
    events_max: int = 200_000
    partitions_per_task: int = 16


@dataclass(frozen=True, slots=True)
class Recorded:
    """What has been recorded since the start; delays are of the last batch with rows."""

    rows: int = 0
    repeats: int = 0
    late: int = 0
    unreadable: int = 0
    known: int = 0  # rows that came again after a failure; many of them: the hub is a new one
    delay_p50_ms: float = 0.0
    delay_p99_ms: float = 0.0


def start(
    spark: SparkSession,
    namespace: HomesNamespace,
    checkpoint: str | Path,
    settings: RecordSettings,
    trigger: Mapping[str, Any] | None = None,
    recorder: Recorder | None = None,
) -> StreamingQuery:
    """Record until the query is stopped. `recorder.recorded` tells what was stored."""
    recorder = recorder or Recorder.open(settings)
    rows = read(spark, namespace, settings)
    writer = rows.writeStream.queryName("record").foreachBatch(recorder.take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or TRIGGER)).start()


def check(settings: RecordSettings) -> None:
    """Whether both places take records: an error before anything has started, not in a loop."""
    if settings.storage is not None:
        check_folder(settings.storage)
    if settings.database is not None:
        open_database(settings.database).close()


def check_folder(storage: str) -> None:
    folder = open_folder(storage)
    try:
        folder.write(PROBE, b"")
        folder.delete(PROBE)
    except OSError as failed:
        raise OptionError(f"{folder} cannot be used for records: {failed}") from None
    read_manifest(folder)


def read(spark: SparkSession, namespace: HomesNamespace, settings: RecordSettings) -> DataFrame:
    """Both hubs as one stream of rows: what stood in the body, and where that lay."""
    from pyspark.sql import functions as f

    frames = []
    for hub in (ACTIVITY_HUB, ALERTS_HUB):
        options = namespace.hub_options(
            hub,
            GROUP,
            startingPosition=settings.start,
            maxEventsPerTrigger=settings.events_max,
            partitionsPerTask=settings.partitions_per_task,
            includeProperties=False,
            includeSystemProperties=False,
        )
        events = spark.readStream.format("eventhubs").schema(COLUMNS).options(**options).load()
        body = f.from_json(f.col("body").cast("string"), BODY)
        where = (
            f.lit(hub).alias(HUB),
            f.col("partition"),
            f.col("sequenceNumber").alias("sequence"),
            f.unix_millis("enqueuedTime").alias("enqueued"),
        )
        frames.append(events.select(*where, body.alias("row")).select(*WHERE, "row.*"))
    return frames[0].unionAll(frames[1])


WHERE = (HUB, "partition", "sequence", "enqueued")


class Recorder:
    """The driver's end: takes a batch, and has stored it when it returns."""

    def __init__(
        self,
        archive: Archive | None,
        open_db: Callable[[], Database] | None,
        clock: Clock,
    ) -> None:
        self._archive = archive
        self._open_db = open_db
        self._database: Database | None = None
        self._clock = clock
        self._batches = 0
        self._alone = threading.Lock()
        self.recorded = Recorded()

    @classmethod
    def open(cls, settings: RecordSettings, clock: Clock | None = None) -> Recorder:
        clock = clock or SystemClock()
        archive = None
        if settings.storage is not None:
            archive = Archive(open_folder(settings.storage), lambda: now_ms(clock))
            archive.sweep()
        url = settings.database
        return cls(archive, None if url is None else lambda: open_database(url), clock)

    def take(self, frame: DataFrame, batch: int) -> None:
        """What Spark calls with each batch; after a crash, perhaps with one that it called with."""
        with self._alone:
            self.store(frame.toArrow())

    def store(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        hubs = split(rows)
        reached = {hub: end_positions(found) for hub, found in hubs.items()}
        readable = {hub: found.filter(is_readable(hub, found)) for hub, found in hubs.items()}
        unreadable = rows.num_rows - sum(found.num_rows for found in readable.values())
        if unreadable:
            log.warning("record unreadable=%d: no body of version 1; left out", unreadable)
        counted = self._put(readable, reached)
        self.recorded = told(self.recorded, counted, unreadable, delays(rows, now_ms(self._clock)))

    def reached(self) -> Positions:
        """Up to where everything is stored, in both places."""
        database = self._open()
        found = [] if database is None else [database.positions()]
        found += [] if self._archive is None else [self._archive.positions]
        return common_positions(found)

    def _open(self) -> Database | None:
        if self._database is None and self._open_db is not None:
            self._database = self._open_db()
        return self._database

    def _put(self, hubs: Mapping[str, pa.Table], reached: Positions) -> Recorded:
        counted = Recorded()
        database = self._open()
        if database is not None:
            stored = database.store(hubs, reached)
            counted = Recorded(stored.rows, stored.repeats, stored.late)
        if self._archive is not None:
            rows = self._archive.append(hubs, reached)
            counted = replace(counted, rows=max(counted.rows, rows))
            self._batches += 1
            if self._batches % TIDY_EVERY == 0:
                self._archive.tidy()
        came = sum(rows.num_rows for rows in hubs.values())
        return replace(counted, known=came - counted.rows)

    def close(self) -> None:
        with self._alone:
            if self._database is not None:
                self._database.close()
                self._database = None


def split(rows: pa.Table) -> dict[str, pa.Table]:
    """The rows of each hub, with the columns of its table."""
    found = {}
    for hub, table in TABLES.items():
        mine = rows.filter(pc.equal(rows[HUB], hub))
        if mine.num_rows:
            found[hub] = mine.select(list(table.columns))
    return found


def is_readable(hub: str, rows: pa.Table) -> pa.Array:
    """Whether a row has what its table cannot do without: one that has not would fail its batch,
    again and again."""
    columns = TABLES[hub].columns
    needed = [name for name, kind in columns.items() if "NOT NULL" in kind]
    good = [pc.is_valid(rows[name]) for name in needed]
    good += [pc.less_equal(pc.binary_length(rows[name]), KEY_MAX) for name in keys_of(hub)]
    good += [pc.greater_equal(rows["at"], 0), pc.less(rows["at"], END_MS)]  # else it has no date
    return reduce(pc.and_, (pc.fill_null(one, False) for one in good))


def keys_of(hub: str) -> list[str]:
    """The texts that are in an index, which does not take any length."""
    table = TABLES[hub]
    return [one for one in {*table.identity, "home"} if table.columns[one].startswith("TEXT")]


def delays(rows: pa.Table, now: int) -> tuple[float, float]:
    """From the hub's intake until now, when it is stored: median and 99th percentile."""
    waited = now - rows["enqueued"].to_numpy()
    half, most = np.percentile(waited, [50, 99])
    return float(half), float(most)


def told(before: Recorded, now: Recorded, unreadable: int, waited: tuple[float, float]) -> Recorded:
    return Recorded(
        before.rows + now.rows,
        before.repeats + now.repeats,
        before.late + now.late,
        before.unreadable + unreadable,
        before.known + now.known,
        *waited,
    )
