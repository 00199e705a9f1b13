"""The second stage: activities from `activity`, and what somebody should look at to `alerts`.

What it needs, and why:
- the last 24 hours: a window is forgotten after hours, a sensor is silent by what it said before.
  They are in Spark's state (RocksDB), one compact value for each partition (`past`).
- no checkpoint: state that is a day old at most is rebuilt from the hub, which holds that day.
  Every start reads from 24 hours ago with a fresh checkpoint folder, so new rules see the whole
  day, and a lost or half-written folder costs nothing but that time.
- partitions that never move (`assignment=fixed:N`, if several applications share the work): a
  partition that came from elsewhere would come without its day. An application keeps its name when
  it starts again, and with the name its partitions.
- each alert once, also after a restart: the same incident has the same id, and what is in the hub
  `alerts` already is read at the start (of each partition, if they are shared: `raised`) and not
  raised again. What a killed run still had under way, and what a task that Spark runs again has
  sent, may come twice: with the same id, so whoever reads alerts drops them by that.

    activity -> heard -> Watcher (rules) -> alerts
                ^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pandas as pd
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from pumphouse.homes.exact_validation import EARLIEST_MS, LATEST_MS
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERT_DDL,
    ALERT_KINDS,
    ALERTS_HUB,
    KINDS,
    MODES,
    VERSION,
    Alert,
    encode_alert,
)
from pumphouse.homes.spark_settings import STATE_SETTINGS, session_settings
from pumphouse.homes.validation import HOME
from pumphouse.homes.watch import history as past
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.history import EMPTY, ActivityColumns, PartitionHistory, UInt64s
from pumphouse.homes.watch.raised_alerts import AlertsReader, alerts_reader
from pumphouse.homes.watch.sharing import Sharing
from pumphouse.spark.worker import freeze_imported_modules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "watch"
EVERY = {"processingTime": "1 second"}
NEEDED = "body BINARY, partition STRING"
# Of an activity; what is not asked for is not parsed.
HEARD = "v INT, home STRING, sensor STRING, at BIGINT, value DOUBLE, since BIGINT, mode STRING"
OUT = "id STRING, home STRING, body BINARY"
NO_FINGERPRINTS = np.empty(0, np.uint64)  # has raised anything
STATE_SCHEMA = StructType([StructField("past", BinaryType())])


@dataclass(frozen=True, slots=True)
class WatchSettings:
    back: str = "24h"  # how far back every start reads
    events_max: int = 400_000  # of a batch
    partitions_per_task: int = 8
    tasks: int = 2  # that apply the rules
    grace_s: float = 300.0  # how late readings may be before a sensor counts as silent
    sharing: Sharing | None = None  # with other applications


def start(
    spark: SparkSession,
    namespace: HomesNamespace,
    checkpoint: str,
    settings: WatchSettings | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """The running query. `checkpoint` is a folder for the fresh one that every start makes."""
    settings = settings or WatchSettings()
    events = spark.readStream.format("eventhubs").schema(NEEDED)
    events = events.options(**source_options(namespace, settings))
    alerts = watched(heard(events.load()), watcher_of(spark, namespace, settings))
    writer = outgoing(alerts).writeStream.queryName(NAME).format("eventhubs")
    writer = writer.options(**namespace.hub_options(ALERTS_HUB)).outputMode("append")
    writer = writer.option("checkpointLocation", fresh(own(checkpoint, settings.sharing)))
    with session_settings(
        spark, {**STATE_SETTINGS, "spark.sql.shuffle.partitions": str(settings.tasks)}
    ):
        return writer.trigger(**(trigger or EVERY)).start()


def watcher_of(spark: SparkSession, namespace: HomesNamespace, settings: WatchSettings) -> Watcher:
    """Who knows what has been raised already; alone we ask once, for all partitions are ours."""
    grace_ms = round(settings.grace_s * 1000)
    if settings.sharing is None:
        return Watcher(grace_ms, raised_before(spark, namespace))
    return Watcher(
        grace_ms, NO_FINGERPRINTS, alerts_reader(namespace.hub_options(ALERTS_HUB), NAME)
    )


def source_options(namespace: HomesNamespace, settings: WatchSettings) -> dict[str, str]:
    shared = settings.sharing
    return namespace.hub_options(
        ACTIVITY_HUB,
        NAME,
        startingPosition=f"time:-{settings.back}",
        maxEventsPerTrigger=settings.events_max,
        # Owned partitions are read by tasks of their own.
        partitionsPerTask=None if shared else settings.partitions_per_task,
        store=shared and shared.store,
        assignment=shared and shared.assignment,
        host=shared and shared.host,
        tenantCheckpoints=False if shared else None,
    )


def own(checkpoint: str, shared: Sharing | None) -> str:
    """A folder for each application: whoever starts clears away what is in it."""
    return f"{checkpoint.rstrip('/')}/hosts/{shared.host}" if shared else checkpoint


def fresh(checkpoint: str) -> str:
    """A new folder; those of earlier runs are removed where they are on this machine."""
    if "://" in checkpoint:
        return f"{checkpoint.rstrip('/')}/{NAME}-{uuid4().hex}"
    folder = Path(checkpoint)
    for old in folder.glob(f"{NAME}-*"):
        shutil.rmtree(old, ignore_errors=True)
    return str(folder / f"{NAME}-{uuid4().hex}")


# -- reading --------------------------------------------------------------------------------------


def heard(events: DataFrame) -> DataFrame:
    """Activities as numbers; what is none is left out: the sift has judged them all, but anybody
    may write into a hub, and one body must not stop the stage."""
    told = events.select("partition", f.from_json(f.col("body").cast("string"), HEARD).alias("r"))
    numbers = told.where(f.col("r.home").rlike(HOME)).select(
        "partition",
        f.col("r.home").substr(2, 6).try_cast("int").alias("number"),
        place_in(KINDS, "r.sensor").alias("kind"),
        "r.at",
        "r.value",
        "r.since",
        place_in(MODES, "r.mode").alias("mode"),
        "r.v",
    )
    whole = numbers.where(f.col("v") == VERSION).where("kind >= 0 and mode >= 0")
    known = whole.drop("v").where("number is not null and since is not null")
    return known.where(f.col("at").between(EARLIEST_MS, LATEST_MS - 1))


def place_in(words: tuple[str, ...], column: str) -> Column:
    return f.array_position(f.array(*map(f.lit, words)), f.col(column)).cast("int") - 1


def raised_before(spark: SparkSession, namespace: HomesNamespace) -> UInt64s:
    """Marks of the alerts that the hub holds."""
    events = spark.read.format("eventhubs").schema("body BINARY")
    found = events.options(**namespace.hub_options(ALERTS_HUB, NAME, partitionsPerTask=64)).load()
    told = found.select(f.from_json(f.col("body").cast("string"), ALERT_DDL).alias("a"))
    rows = told.select("a.kind", "a.home", "a.sensor", "a.since").where("since is not null")
    rows = rows.where(f.col("home").rlike(HOME))
    alerts = [Alert(r.home, r.kind, r.sensor, 0, r.since, "", "") for r in rows.collect()]
    return rules.fingerprints_of(
        [one for one in alerts if one.kind in ALERT_KINDS and one.sensor in KINDS]
    )


# -- judging --------------------------------------------------------------------------------------


def watched(numbers: DataFrame, watcher: Watcher) -> DataFrame:
    """Alerts. By partition: that is where a home's readings are in order, and whose time counts."""
    return numbers.groupBy("partition").transformWithStateInPandas(
        statefulProcessor=watcher,
        outputStructType=OUT,
        outputMode="Append",
        timeMode="None",
    )


class Watcher(StatefulProcessor):
    """Hands what was heard, and what is remembered, to the rules. Time is that of the readings, so
    no timer of Spark's is needed: what has become due is found whenever the partition speaks.

    `known` has been raised before the start; `look` tells what has been raised by the moment at
    which a partition becomes ours.
    """

    def __init__(self, grace_ms: int, known: UInt64s, look: AlertsReader | None = None) -> None:
        self.grace_ms, self.known, self.look = grace_ms, known, look
        self.found: PartitionHistory | None = (
            None  # by the look; one is enough for all partitions of a task
        )

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("past", STATE_SCHEMA)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        packed = self.state.get()
        before = self.first() if packed is None else past.from_bytes(packed[0])
        found, after = rules.apply_rules(
            before, as_heard(pd.concat(rows)), self.grace_ms, self.known
        )
        self.state.update((after.to_bytes(),))
        if len(found):  # Spark cannot convert a frame without rows
            yield as_frame(found.as_alerts())

    def first(self) -> PartitionHistory:
        """The past of a partition that we have never seen."""
        if self.found is None:
            self.found = EMPTY if self.look is None else rules.history_of_alerts(self.look())
        return self.found

    def close(self) -> None:
        freeze_imported_modules()


def as_frame(alerts: list[Alert]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": [one.id for one in alerts],
            "home": [one.home for one in alerts],
            "body": [encode_alert(one) for one in alerts],
        }
    )


def as_heard(rows: pd.DataFrame) -> ActivityColumns:
    return ActivityColumns(
        number=rows["number"].to_numpy(np.int32),
        kind=rows["kind"].to_numpy(np.int32),
        at=rows["at"].to_numpy(np.int64),
        value=rows["value"].to_numpy(np.float64),
        since=rows["since"].to_numpy(np.int64),
        mode=rows["mode"].to_numpy(np.int32),
    )


def outgoing(alerts: DataFrame) -> DataFrame:
    """As the sink wants them; the id is outside of the body too, for those who drop repeats."""
    identity = f.create_map(f.lit("id"), f.col("id")).alias("properties")
    return alerts.select("body", f.col("home").alias("partitionKey"), identity)
