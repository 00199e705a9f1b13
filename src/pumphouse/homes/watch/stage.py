"""The second stage, `watch`: reads activities from `activity`, writes alerts to `alerts`.

What it needs, and why:

* A history of 24 hours: an open window raises an alert after hours, and a silent sensor some time
  after its last reading. It is in Spark's state (RocksDB), one compact value for each partition.
* No checkpoint from an earlier run: state of one day can be rebuilt from the hub. Every start reads
  from 24 hours ago with a new checkpoint folder. So changed rules process the whole day, and the
  loss of a folder costs only a second reading of that day.
* Partitions that never move (`assignment=fixed:N`, if several applications share the work): a
  partition from another application would have no state. An application that restarts with the
  same host name gets the same partitions.
* Break-ins and fires are left to `sift`, which raises them a stage earlier, if both are set so
  (SiftSettings.alarms). Every start still checks those of the last day, and raises missing ones.
* Each alert once, also after a restart: the same incident has the same id. The stage reads the
  alerts in the hub at its start, and does not raise them a second time. An application that shares
  partitions reads them when it acquires a partition (raised_alerts.py). Alerts in flight when a run
  is killed, and those of a task that Spark repeats, may arrive twice with the same id: readers of
  alerts deduplicate by it.

    activity -> activity_columns -> Watcher (rules) -> alerts
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pandas as pd
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from pumphouse.homes.exact_validation import EARLIEST_MS, LATEST_MS
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    MODES,
    VERSION,
    Alert,
    encode_alert,
    home_id,
)
from pumphouse.homes.spark_settings import STATE_SETTINGS, session_settings
from pumphouse.homes.state.compression import compress_state, expand_state
from pumphouse.homes.trace_text import TRACE, trace_properties
from pumphouse.homes.validation import HOME, index_in, trace_column
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.history import (
    NEVER,
    ActivityColumns,
    Mask,
    PartitionHistory,
    UInt64s,
    from_bytes,
    starting_with,
)
from pumphouse.homes.watch.raised_alerts import (
    AlertsReader,
    Ends,
    alerts_reader,
    raised_fingerprints,
    read_ends,
)
from pumphouse.homes.watch.sharing import Sharing
from pumphouse.spark.worker import freeze_imported_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "watch"
# Most of the cost is per batch. The alerts of this stage are due after minutes or hours; those that
# one reading decides are raised by `sift`.
TRIGGER = {"processingTime": "5 seconds"}
COLUMNS = "body BINARY, partition STRING, sequenceNumber BIGINT, properties MAP<STRING, STRING>"
# The fields of an activity that the rules need; Spark parses no others.
ACTIVITY_FIELDS = (
    "v INT, home STRING, sensor STRING, at BIGINT, value DOUBLE, since BIGINT, mode STRING"
)
OUTPUT = "id STRING, home STRING, body BINARY, trace MAP<STRING, STRING>"
Traces = Mapping[tuple[str, str, int], str]
NO_FINGERPRINTS = np.empty(0, np.uint64)
STATE_SCHEMA = StructType([StructField("past", BinaryType())])


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """The settings of `watch`."""

    back: str = "24h"  # how far back every start reads
    events_max: int = 400_000  # per batch
    partitions_per_task: int = 8
    tasks: int = 2  # tasks that apply the rules
    grace_s: float = 300.0  # how late readings may be before a sensor is silent
    sharing: Sharing | None = None  # with other applications
    alarms: bool = True  # raise break-ins and fires; False: `sift` raises them (SiftSettings)
    kinds: Kinds = DEFAULT


def start(
    spark: SparkSession,
    namespace: HomesNamespace,
    checkpoint: str,
    settings: WatchSettings | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start the query. Every start makes a new checkpoint in the folder `checkpoint`."""
    settings = settings or WatchSettings()
    events = spark.readStream.format("eventhubs").schema(COLUMNS)
    events = events.options(**source_options(namespace, settings))
    numbers = activity_columns(events.load(), settings.kinds)
    alerts = watched(numbers, make_watcher(spark, namespace, settings))
    writer = as_events(alerts).writeStream.queryName(NAME).format("eventhubs")
    writer = writer.options(**namespace.hub_options(ALERTS_HUB)).outputMode("append")
    writer = writer.option("dedupProperties", "false")  # an alert has an id of its own
    writer = writer.option(
        "checkpointLocation", new_checkpoint(host_folder(checkpoint, settings.sharing))
    )
    with session_settings(
        spark, {**STATE_SETTINGS, "spark.sql.shuffle.partitions": str(settings.tasks)}
    ):
        return writer.trigger(**(trigger or TRIGGER)).start()


def make_watcher(
    spark: SparkSession, namespace: HomesNamespace, settings: WatchSettings
) -> Watcher:
    """The processor, with the alerts raised so far. Applications that share partitions read the
    alerts later, in their tasks."""
    grace_ms = round(settings.grace_s * 1000)
    ends_reader = partial(read_ends, namespace.hub_options(ACTIVITY_HUB))
    if settings.sharing is None:
        ends = None if settings.alarms else ends_reader()
        known = raised_fingerprints(spark, namespace, settings.kinds)
        return Watcher(grace_ms, known, ends=ends, kinds=settings.kinds)
    alerts = alerts_reader(namespace.hub_options(ALERTS_HUB), NAME, settings.kinds)
    reader = None if settings.alarms else ends_reader
    return Watcher(grace_ms, NO_FINGERPRINTS, alerts, reader, kinds=settings.kinds)


def source_options(namespace: HomesNamespace, settings: WatchSettings) -> dict[str, str]:
    shared = settings.sharing
    return namespace.hub_options(
        ACTIVITY_HUB,
        NAME,
        startingPosition=f"time:-{settings.back}",
        maxEventsPerTrigger=settings.events_max,
        # Of shared partitions, each one that is owned has a task of its own.
        partitionsPerTask=None if shared else settings.partitions_per_task,
        store=shared and shared.store,
        assignment=shared and shared.assignment,
        host=shared and shared.host,
        tenantCheckpoints=False if shared else None,
    )


def host_folder(checkpoint: str, shared: Sharing | None) -> str:
    """A folder for each application, because every start removes what is in its folder."""
    return f"{checkpoint.rstrip('/')}/hosts/{shared.host}" if shared else checkpoint


def new_checkpoint(checkpoint: str) -> str:
    """A new folder. Folders of earlier runs are removed if they are on this machine."""
    if "://" in checkpoint:
        return f"{checkpoint.rstrip('/')}/{NAME}-{uuid4().hex}"
    folder = Path(checkpoint)
    for old in folder.glob(f"{NAME}-*"):
        shutil.rmtree(old, ignore_errors=True)
    return str(folder / f"{NAME}-{uuid4().hex}")


# -- reading --------------------------------------------------------------------------------------


def activity_columns(events: DataFrame, kinds: Kinds = DEFAULT) -> DataFrame:
    """Activities as columns of numbers, without invalid ones. `sift` has validated all, but any
    program may write to the hub, and one body must not stop the stage."""
    parsed = events.select(
        "partition",
        f.col("sequenceNumber").alias("sequence"),
        f.from_json(f.col("body").cast("string"), ACTIVITY_FIELDS).alias("r"),
        trace_column(),
    )
    numbers = parsed.where(f.col("r.home").rlike(HOME)).select(
        "partition",
        "sequence",
        f.col("r.home").substr(2, 6).try_cast("int").alias("number"),
        index_in(kinds.names, "r.sensor").alias("kind"),
        "r.at",
        "r.value",
        "r.since",
        index_in(MODES, "r.mode").alias("mode"),
        "r.v",
        TRACE,
    )
    valid = numbers.where(f.col("v") == VERSION).where("kind >= 0 and mode >= 0")
    complete = valid.drop("v").where("number is not null and since is not null")
    return complete.where(f.col("at").between(EARLIEST_MS, LATEST_MS - 1))


# -- applying the rules ---------------------------------------------------------------------------


def watched(numbers: DataFrame, watcher: Watcher) -> DataFrame:
    """The alerts, computed per partition: the readings of a home are in order only there."""
    return numbers.groupBy("partition").transformWithStateInPandas(
        statefulProcessor=watcher,
        outputStructType=OUTPUT,
        outputMode="Append",
        timeMode="None",
    )


class Watcher(StatefulProcessor):
    """Applies the rules to new activities and the history of their partition. Time is event time,
    so Spark's timers are not needed: alerts become due when the partition receives activities.

    `known` are the fingerprints of alerts raised before the start. `read_alerts` is called when
    this application acquires a partition; it reads the alerts raised before.

    If `sift` raises break-ins and fires, `ends` are the ends of the partitions before the alerts
    were read, or `read_ends` reads them. The alerts of activities up to these ends were raised
    before, so those that are missing are raised here: each start checks the day again. The
    alerts of later activities are left to `sift`.
    """

    def __init__(
        self,
        grace_ms: int,
        known: UInt64s,
        read_alerts: AlertsReader | None = None,
        read_ends: Callable[[], Ends] | None = None,
        ends: Ends | None = None,
        kinds: Kinds = DEFAULT,
    ) -> None:
        self.kinds = kinds
        self.grace_ms, self.known, self.read_alerts = grace_ms, known, read_alerts
        self.read_ends, self.ends = read_ends, ends
        self.initial: PartitionHistory | None = None  # shared by the partitions of a task

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("past", STATE_SCHEMA)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        packed = self.state.get()
        before = (
            self.initial_history(key[0])
            if packed is None
            else from_bytes(expand_state(packed[0]), self.kinds)
        )
        table = pd.concat(rows)
        activities, delegated = as_columns(table), delegated_of(table, before)
        alerts, after = rules.apply_rules(
            before, activities, self.grace_ms, self.known, delegated, self.kinds
        )
        self.state.update((compress_state(after.to_bytes()),))
        if len(alerts):  # Spark cannot convert a frame without rows
            yield as_frame(alerts.as_alerts(self.kinds), traces_of(table, self.kinds))

    def initial_history(self, partition: str) -> PartitionHistory:
        """The history of a partition without state."""
        if self.initial is None:
            if self.read_ends is not None:
                self.ends = self.read_ends()
            alerts = None if self.read_alerts is None else self.read_alerts()
            self.initial = rules.history_of_alerts(alerts or (), self.kinds)
        # A partition that is not among the ends was added later.
        own_until = None if self.ends is None else self.ends.get(partition, -1)
        return starting_with(self.initial, own_until)

    def close(self) -> None:
        freeze_imported_modules()


def delegated_of(rows: pd.DataFrame, history: PartitionHistory) -> Mask | None:
    """The activities whose alarms `sift` raises; None: it raises none."""
    if history.own_until[0] == NEVER:
        return None
    delegated: Mask = rows["sequence"].to_numpy(np.int64) > history.own_until[0]
    return delegated


def traces_of(rows: pd.DataFrame, kinds: Kinds = DEFAULT) -> Traces:
    """The trace of each reading that has one, by home, sensor and time."""
    traced = rows[rows[TRACE].notna()]
    columns = (traced[name].tolist() for name in ("number", "kind", "at", TRACE))
    return {
        (home_id(number), kinds.names[kind], at): trace
        for number, kind, at, trace in zip(*columns, strict=True)
    }


def as_frame(alerts: list[Alert], traces: Traces) -> pd.DataFrame:
    """The rows of alerts. An alert has the trace of the reading that raised it."""
    raised_by = [(alert.home, alert.sensor, alert.at) for alert in alerts]
    return pd.DataFrame(
        {
            "id": [alert.id for alert in alerts],
            "home": [alert.home for alert in alerts],
            "body": [encode_alert(alert) for alert in alerts],
            "trace": [trace_properties(traces.get(reading)) for reading in raised_by],
        }
    )


def as_columns(rows: pd.DataFrame) -> ActivityColumns:
    return ActivityColumns(
        number=rows["number"].to_numpy(np.int32),
        kind=rows["kind"].to_numpy(np.int32),
        at=rows["at"].to_numpy(np.int64),
        value=rows["value"].to_numpy(np.float64),
        since=rows["since"].to_numpy(np.int64),
        mode=rows["mode"].to_numpy(np.int32),
    )


def as_events(alerts: DataFrame) -> DataFrame:
    """Alerts as rows for the sink. Readers deduplicate by the id, so it is a property too."""
    identity = f.create_map(f.lit("id"), f.col("id"))
    properties = f.map_concat(identity, TRACE).alias("properties")
    return alerts.select("body", f.col("home").alias("partitionKey"), properties)
