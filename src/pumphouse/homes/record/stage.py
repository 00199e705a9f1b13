"""The third stage, `record`: stores each activity and alert once, in Parquet files and a database.

What it needs, and why:

* Batches: a file and a transaction cost the same for one row as for a thousand.
* A checkpoint, to resume from. Spark repeats the batch in which a crash happened. So the position
  is stored in the same transaction as the rows, and both stores recognise new rows by the position.
* One writer per partition: the source reads with an epoch, so an older driver that still runs is
  evicted. If it writes nevertheless, the transaction and the manifest refuse the write.
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
from pumphouse.homes.alert_spans import export_spans, is_tracing
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record.archive import Archive, read_manifest
from pumphouse.homes.record.database import Database, open_database
from pumphouse.homes.record.delta import DeltaArchive, open_delta
from pumphouse.homes.record.folder import open_folder
from pumphouse.homes.record.metrics import RecordMetrics
from pumphouse.homes.record.positions import BatchId, Positions, end_positions
from pumphouse.homes.record.tables import TABLES
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from pumphouse.homes.trace_text import TRACE, read_text, text_of
from pumphouse.logs import line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pumphouse.homes")

GROUP = "record"
TRIGGER = {"processingTime": "3 seconds"}
COLUMNS = "body binary, partition string, sequenceNumber long, enqueuedTime timestamp"
# Only alerts are stored with their trace: activities are a thousand times as many.
COLUMNS_OF = {
    ACTIVITY_HUB: COLUMNS,
    ALERTS_HUB: f"{COLUMNS}, properties MAP<STRING, STRING>",
}
# The fields of both hubs; those that a body does not have are null.
BODY = (
    "id STRING, home STRING, kind STRING, sensor STRING, seq BIGINT, at BIGINT, value DOUBLE,"
    " since BIGINT, mode STRING, battery INT, fault STRING, why STRING, region STRING, text STRING"
)
PARQUET, DELTA = "parquet", "delta"  # storage formats
HUB = "hub"
PROBE = "_probe"
TIDY_EVERY = 8  # batches between two merges of files
END_MS = 253_402_300_800_000  # the year 10000: a datetime cannot represent it
KEY_BYTES_MAX = 200  # the longest text in an index


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The stores, either of which may be None, and the size of a batch."""

    storage: str | None = None
    database: str | None = None
    start: str = "earliest"
    events_max: int = 200_000
    partitions_per_task: int = 16
    kinds: Kinds = DEFAULT
    storage_format: str = PARQUET


@dataclass(frozen=True, slots=True)
class Recorded:
    """The totals since the start; delays are of the last batch with rows.

    The fields are keys of status.json; stage_counts.py defines each number.
    """

    rows: int = 0
    duplicates: int = 0
    behind_watermark: int = 0
    unreadable: int = 0
    known: int = 0
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
    """Start the query. `recorder.recorded` has the totals."""
    recorder = recorder or Recorder.open(settings)
    rows = read(spark, namespace, settings)
    writer = rows.writeStream.queryName("record").foreachBatch(recorder.take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or TRIGGER)).start()


def check(settings: RecordSettings) -> None:
    """Raise if a store is unusable. Called before the start: a stage that fails is restarted."""
    if settings.storage is not None:
        check_folder(settings.storage, settings.storage_format)
    if settings.database is not None:
        open_database(settings.database).close()


def check_folder(storage: str, storage_format: str = PARQUET) -> None:
    folder = open_folder(storage)
    try:
        folder.write(PROBE, b"")
        folder.delete(PROBE)
    except OSError as failed:
        raise OptionError(
            f"{folder} cannot be used for records: {failed}. Choose another with --storage"
        ) from None
    if storage_format == DELTA:
        open_delta(storage)
    else:
        read_manifest(folder)


def read(spark: SparkSession, namespace: HomesNamespace, settings: RecordSettings) -> DataFrame:
    """Both hubs as one stream of rows: the fields of the body and the position of the event."""
    from pyspark.sql import functions as f

    from pumphouse.homes.validation import trace_column

    frames = []
    for hub in (ACTIVITY_HUB, ALERTS_HUB):
        options = namespace.hub_options(
            hub,
            GROUP,
            startingPosition=settings.start,
            maxEventsPerTrigger=settings.events_max,
            partitionsPerTask=settings.partitions_per_task,
        )
        source = spark.readStream.format("eventhubs").schema(COLUMNS_OF[hub])
        events = source.options(**options).load()
        body = f.from_json(f.col("body").cast("string"), BODY)
        origin = (
            f.lit(hub).alias(HUB),
            f.col("partition"),
            f.col("sequenceNumber").alias("sequence"),
            f.unix_millis("enqueuedTime").alias("enqueued"),
            trace_column() if hub == ALERTS_HUB else f.lit(None).cast("string").alias(TRACE),
        )
        frames.append(events.select(*origin, body.alias("row")).select(*ORIGIN, "row.*"))
    return frames[0].unionAll(frames[1])


ORIGIN = (HUB, "partition", "sequence", "enqueued", TRACE)


class Recorder:
    """Stores batches on the driver."""

    def __init__(
        self,
        archive: Archive | DeltaArchive | None,
        open_database: Callable[[], Database] | None,
        clock: Clock,
        metrics: RecordMetrics | None = None,
    ) -> None:
        self._archive = archive
        self._open_database = open_database
        self._database: Database | None = None
        self._clock = clock
        self._batches = 0
        self._lock = threading.Lock()
        self._metrics = metrics
        self.recorded = Recorded()

    @classmethod
    def open(
        cls,
        settings: RecordSettings,
        clock: Clock | None = None,
        metrics: RecordMetrics | None = None,
    ) -> Recorder:
        clock = clock or SystemClock()
        archive = open_archive(settings, clock)
        if archive is not None:
            archive.sweep()
        url, kinds = settings.database, settings.kinds
        opener = None if url is None else lambda: open_database(url, kinds)
        return cls(archive, opener, clock, metrics)

    def take(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark with each batch; after a crash, maybe twice with the same batch."""
        with self._lock:
            self.store(frame.toArrow(), batch_id_of(frame, batch))

    def store(self, rows: pa.Table, batch_id: BatchId | None = None) -> None:
        if not rows.num_rows:
            return
        hubs = split_by_hub(rows)
        reached = {hub: end_positions(table) for hub, table in hubs.items()}
        readable = {hub: table.filter(is_readable(hub, table)) for hub, table in hubs.items()}
        unreadable = rows.num_rows - sum(table.num_rows for table in readable.values())
        if unreadable:
            todo = "find the program that writes other records to activity or alerts"
            log.warning("%s", line("rows_skipped", rows=unreadable, todo=todo))
        result = self._store_in_both(readable, reached, traces_of(rows), batch_id)
        delays = delay_percentiles(rows, now_ms(self._clock))
        self.recorded = added(self.recorded, result, unreadable, delays)

    def _opened_database(self) -> Database | None:
        if self._database is None and self._open_database is not None:
            self._database = self._open_database()
            self._database.reads_back = self._metrics is not None or is_tracing()
        return self._database

    def _store_in_both(
        self,
        hubs: Mapping[str, pa.Table],
        reached: Positions,
        traces: Mapping[str, str],
        batch_id: BatchId | None,
    ) -> Recorded:
        result = Recorded()
        database = self._opened_database()
        if database is not None:
            stored = database.store(hubs, reached, now_ms(self._clock), traces)
            result = Recorded(stored.rows, stored.duplicates, stored.behind_watermark)
            if self._metrics is not None:  # at once: the archive may fail
                self._metrics.record(stored.stored, now_ms(self._clock))
            if stored.stored.traced and is_tracing():
                export_spans(stored.stored.traced, now_ms(self._clock))
        if self._archive is not None:
            rows = self._archive.append(hubs, reached, batch_id)
            result = replace(result, rows=max(result.rows, rows))
            self._batches += 1
            if self._batches % TIDY_EVERY == 0:
                self._archive.tidy()
        received = sum(rows.num_rows for rows in hubs.values())
        return replace(result, known=received - result.rows)

    def probe(self) -> None:
        """Ask the database for its positions. A running batch asks it too, and is not disturbed."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if (database := self._opened_database()) is not None:
                database.positions()
        except BaseException:
            self._close_database()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._close_database()

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def open_archive(settings: RecordSettings, clock: Clock) -> Archive | DeltaArchive | None:
    if settings.storage is None:
        return None
    if settings.storage_format == DELTA:
        return open_delta(settings.storage)
    return Archive(open_folder(settings.storage), lambda: now_ms(clock))


def batch_id_of(frame: DataFrame, batch: int) -> BatchId | None:
    """The batch of the running query. The id of a query is in its checkpoint."""
    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if query is None else BatchId(query, batch)


def traces_of(rows: pa.Table) -> dict[str, str]:
    """The valid trace contexts of alerts, by the id of the alert."""
    if TRACE not in rows.column_names or rows[TRACE].null_count == rows.num_rows:
        return {}
    traced = rows.filter(pc.is_valid(rows[TRACE]))
    pairs = zip(traced["id"].to_pylist(), traced[TRACE].to_pylist(), strict=True)
    contexts = ((alert, read_text(text)) for alert, text in pairs if alert is not None)
    return {alert: text_of(context) for alert, context in contexts if context is not None}


def split_by_hub(rows: pa.Table) -> dict[str, pa.Table]:
    """The rows of each hub, with the columns of its table."""
    hubs = {}
    for hub, table in TABLES.items():
        of_hub = rows.filter(pc.equal(rows[HUB], hub))
        if of_hub.num_rows:
            hubs[hub] = of_hub.select(list(table.columns))
    return hubs


def is_readable(hub: str, rows: pa.Table) -> pa.Array:
    """Which rows the table accepts. Any other row would fail its batch on every retry."""
    columns = TABLES[hub].columns
    required = [name for name, kind in columns.items() if "NOT NULL" in kind]
    checks = [pc.is_valid(rows[name]) for name in required]
    checks += [
        pc.less_equal(pc.binary_length(rows[name]), KEY_BYTES_MAX) for name in text_keys(hub)
    ]
    checks += [pc.greater_equal(rows["at"], 0), pc.less(rows["at"], END_MS)]
    return reduce(pc.and_, (pc.fill_null(check, False) for check in checks))


def text_keys(hub: str) -> list[str]:
    """The text columns in an index, which limits their length."""
    table = TABLES[hub]
    return [name for name in {*table.identity, "home"} if table.columns[name].startswith("TEXT")]


def delay_percentiles(rows: pa.Table, now: int) -> tuple[float, float]:
    """The time from the hub to the stores in ms: median and 99th percentile."""
    p50, p99 = np.percentile(now - rows["enqueued"].to_numpy(), [50, 99])
    return float(p50), float(p99)


def added(
    before: Recorded, batch: Recorded, unreadable: int, delays: tuple[float, float]
) -> Recorded:
    """The totals after a batch."""
    return Recorded(
        before.rows + batch.rows,
        before.duplicates + batch.duplicates,
        before.behind_watermark + batch.behind_watermark,
        before.unreadable + unreadable,
        before.known + batch.known,
        *delays,
    )
