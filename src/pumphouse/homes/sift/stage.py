"""The first stage, `sift`: reads the hub `sensors`, writes the readings that matter to `activity`.

What it needs, and why:

* Throughput: every reading of every home passes through. Batches are large, JSON is parsed in the
  JVM, unused columns are not decoded, and Python receives only readings that are kept.
* A checkpoint, to resume from. No reading is lost; after a crash one batch may be written twice,
  and those activities have the same (home, sensor, seq) as before.
* No second reader in its consumer group: two would write everything twice.

Invalid records go to the hub `deadletter` unchanged, with the reason and their position. Duplicates
are found by state (duplicates.py), never by a watermark: a late reading may report a fire. A home's
readings share a partition, because it is their key, so duplicates are searched per partition. A
duplicate of a reading that is not kept is dropped for the same reason as the first.

    sensors -> validate_columns -> select_relevant -> Sifter (validate_body, admit_new)
                                                      ^^^^^^ this module
            -> delivery.py -> activity, deadletter
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from pumphouse.homes.duplicates import NOTHING, Mask, SequenceWindows, admit_new
from pumphouse.homes.exact_validation import ALL_REASONS, validate_body
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import ACTIVITY_HUB, DEADLETTER_HUB, SENSORS_HUB
from pumphouse.homes.sift.delivery import DROPPED, KEPT, POSTED, REPEATED, post_to
from pumphouse.homes.spark_settings import STATE_SETTINGS, session_settings
from pumphouse.homes.validation import select_relevant, validate_columns
from pumphouse.spark.worker import freeze_imported_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "sift"
EVERY = {"processingTime": "2 seconds"}
NEEDED = "body BINARY, partition STRING, sequenceNumber BIGINT, enqueuedTime TIMESTAMP"
GLANCED, DONE = "glanced", "posted"  # names of what is counted on the way
OUT = "partition STRING, sequence BIGINT, home STRING, fate STRING, late BOOLEAN, body BINARY"
OUT_NAMES = ("partition", "sequence", "home", "fate", "late", "body")
STATE_SCHEMA = StructType([StructField("seen", BinaryType())])


@dataclass(frozen=True, slots=True)
class SiftSettings:
    """`tasks` and `buckets` belong to the state: a checkpoint keeps those of its first start."""

    start: str = "earliest"  # where to begin if there is no checkpoint yet
    events_max: int = 200_000  # of a batch
    partitions_per_task: int = 8
    tasks: int = 2  # that look for repeats
    buckets: int = 16  # of partitions, each with one value of state
    ahead_max_s: float | None = 3600.0  # a clock further ahead is wrong; None for simulated time
    late_s: float = 120.0  # later than this is counted as late; it is kept all the same

    @property
    def ahead_max_ms(self) -> int | None:
        return None if self.ahead_max_s is None else round(self.ahead_max_s * 1000)


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the readings of a batch: seen = kept + dropped + repeated + bad."""

    seen: int
    kept: int
    dropped: int
    repeated: int
    bad: int
    late: int
    reasons: Mapping[str, int]


NUMBERS = ("seen", "kept", "dropped", "repeated", "bad", "late")


def start(
    spark: SparkSession,
    namespace: HomesNamespace,
    checkpoint: str,
    settings: SiftSettings | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """The running query, which goes on from `checkpoint`."""
    settings = settings or SiftSettings()
    source = namespace.hub_options(
        SENSORS_HUB,
        NAME,
        startingPosition=settings.start,
        maxEventsPerTrigger=settings.events_max,
        partitionsPerTask=settings.partitions_per_task,
    )
    events = spark.readStream.format("eventhubs").schema(NEEDED).options(**source).load()
    post = post_to(namespace.hub_options(ACTIVITY_HUB), namespace.hub_options(DEADLETTER_HUB))
    posted = sifted(events, settings).mapInArrow(post, POSTED).observe(DONE, *posted_counts())
    # Nothing is left to write: each task has posted its rows before it ends.
    writer = posted.writeStream.queryName(NAME).format("noop").outputMode("append")
    writer = writer.option("checkpointLocation", checkpoint)
    with session_settings(
        spark, {**STATE_SETTINGS, "spark.sql.shuffle.partitions": str(settings.tasks)}
    ):
        return writer.trigger(**(trigger or EVERY)).start()


def sifted(events: DataFrame, settings: SiftSettings) -> DataFrame:
    """What becomes of all that is not boring; the boring ones are counted, and gone."""
    ahead_ms, late_ms = settings.ahead_max_ms, round(settings.late_s * 1000)
    glanced = validate_columns(events, ahead_ms, late_ms).observe(GLANCED, *seen_counts())
    looked = select_relevant(glanced)
    # By partition: readings of a home come by the one of its key, and go on to one. So they stay in
    # order, however much a batch holds. Else `watch` would see some homes hours before others while
    # a small town catches up, and take those for silent.
    bucket = f.pmod(f.col("partition").cast("int"), f.lit(settings.buckets))
    keyed = looked.select(bucket.alias("bucket"), "*")
    return keyed.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=Sifter(ahead_ms, late_ms),
        outputStructType=OUT,
        outputMode="Append",
        timeMode="None",
    )


class Sifter(StatefulProcessor):
    """Judges what is not plainly right, and lets the first of equal readings pass. One value of
    state for the homes of a partition: one for each sensor would cost a round trip to the JVM for
    every reading."""

    def __init__(self, ahead_max_ms: int | None, late_ms: int) -> None:
        self.ahead_max_ms, self.late_ms = ahead_max_ms, late_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("seen", STATE_SCHEMA)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        # By namespace: what the shuffle did to the order is undone, and the first is the first.
        batch = pd.concat(rows).sort_values(["partition", "sequence"], ignore_index=True)
        table = {name: batch[name].to_numpy().copy() for name in batch.columns}
        table["fate"], table["late"] = np.full(len(batch), KEPT, object), np.zeros(len(batch), bool)
        for namespace in np.flatnonzero(~table["right"].astype(bool)).tolist():
            self.look_again(table, namespace)
        kept = np.flatnonzero(table["fate"] == KEPT)
        new = self.first_of(table["sensor"][kept], table["seq"][kept])
        table["fate"][kept[~new]] = REPEATED
        yield pd.DataFrame({name: table[name] for name in OUT_NAMES})

    def close(self) -> None:
        freeze_imported_modules()

    def look_again(self, table: dict[str, Any], namespace: int) -> None:
        """Put what the second look says in the namespace of what the first one did not know."""
        body, enqueued = bytes(table["body"][namespace]), int(table["enqueued"][namespace])
        found = validate_body(body, enqueued, self.ahead_max_ms, self.late_ms)
        table["late"][namespace] = found.late
        if found.complaint is not None:
            table["fate"][namespace] = found.complaint
        elif found.body is None:
            table["fate"][namespace] = DROPPED
        else:
            table["home"][namespace], table["body"][namespace] = found.home, found.body
            table["sensor"][namespace], table["seq"][namespace] = found.sensor, found.seq

    def first_of(self, sensors: Any, numbers: Any) -> Mask:
        known = self.state.get()
        seen = NOTHING if known is None else SequenceWindows.from_bytes(known[0])
        new, after = admit_new(seen, sensors.astype(np.int32), numbers.astype(np.int64))
        if new.any():
            self.state.update((after.to_bytes(),))
        return new


# -- counting -------------------------------------------------------------------------------------


def seen_counts() -> list[Any]:
    plain = f.col("right") & f.col("why").isNull()
    late = f.col("right") & f.col("late")
    return [f.count(f.lit(1)).alias("seen"), how_many(plain, "dropped"), how_many(late, "late")]


def posted_counts() -> list[Any]:
    fate = f.col("fate")
    fates = [how_many(fate == one, one) for one in (KEPT, REPEATED, DROPPED, *ALL_REASONS)]
    return [*fates, how_many(f.col("late"), "late")]


def how_many(condition: Any, name: str) -> Any:
    return f.coalesce(f.count_if(condition), f.lit(0)).alias(name)


def counts(progress: Any) -> Counts:
    """What a batch's progress tells, as `query.lastProgress` or a listener gives it."""
    observed = progress["observedMetrics"]
    glanced, done = (as_counts(observed.get(name)) for name in (GLANCED, DONE))
    reasons = {one: done[one] for one in ALL_REASONS if done.get(one)}
    return Counts(
        seen=glanced.get("seen", 0),
        kept=done.get(KEPT, 0),
        dropped=glanced.get("dropped", 0) + done.get(DROPPED, 0),
        repeated=done.get(REPEATED, 0),
        bad=sum(reasons.values()),
        late=glanced.get("late", 0) + done.get("late", 0),
        reasons=reasons,
    )


def total(parts: Iterable[Counts]) -> Counts:
    """Of several batches together."""
    whole, reasons = Counter[str](), Counter[str]()
    for part in parts:
        whole.update({name: getattr(part, name) for name in NUMBERS})
        reasons.update(part.reasons)
    return Counts(**{name: whole[name] for name in NUMBERS}, reasons=dict(reasons))


def as_counts(observed: Any) -> dict[str, int]:
    """A row of Spark, or a dict, or nothing in a batch without rows."""
    if observed is None:
        return {}
    return dict(observed) if isinstance(observed, Mapping) else dict(observed.asDict())
