"""The first stage, `sift`: reads the hub `sensors`, writes the readings that matter to `activity`.

What it needs, and why:

* Throughput: every reading of every home passes through. Batches are large, JSON is parsed in the
  JVM, unused columns are not decoded, and Python receives only readings that are kept.
* A checkpoint, to resume from. No reading is lost; after a crash one batch may be written twice,
  and those activities have the same (home, sensor, seq) as before.
* No second reader in its consumer group: two would write everything twice.

Break-ins and fires, which one reading decides, are raised here (alarms.py), because `watch` would
raise them a stage later. Their alerts are sent before their activities: when `watch` reads an
activity, its alert is in the hub.

Invalid records go to the hub `deadletter` unchanged, with the reason and their position. Duplicates
are found by state (duplicates.py). A watermark would drop late readings, and a late reading may
report a fire. The key of a reading is its home, so the readings of a home share a partition, and
duplicates are searched per partition. A reading that is not kept needs no such search: its
duplicates are dropped for the same reason.

    sensors -> validate_columns -> select_relevant -> sifter.py and delivery.py
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module  -> alerts, activity, deadletter
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from pumphouse.homes.exact_validation import ALL_REASONS
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, DEADLETTER_HUB, KINDS, SENSORS_HUB
from pumphouse.homes.sift.buckets import kept_buckets
from pumphouse.homes.sift.delivery import DROPPED, KEPT, REPEATED, delivery_to
from pumphouse.homes.sift.sifter import COUNTS, KIND, LATE, OUTPUT, Deliver, Sifter
from pumphouse.homes.spark_settings import STATE_SETTINGS, session_settings
from pumphouse.homes.validation import select_relevant, validate_columns
from pumphouse.homes.watch.raised_alerts import raised_fingerprints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pumphouse.homes.watch.history import UInt64s

NAME = "sift"
# The longest wait of an alert. Spark starts batches at multiples of the interval. Many devices and
# programs send at full seconds: with an interval of a second each of their readings would just miss
# a batch, and wait for a whole second.
TRIGGER = {"processingTime": "1100 milliseconds"}
COLUMNS = (
    "body BINARY, partition STRING, sequenceNumber BIGINT, enqueuedTime TIMESTAMP, "
    "properties MAP<STRING, STRING>"
)
VALIDATED_COUNTS, DELIVERED_COUNTS = "validated", "delivered"  # names of observed metrics


@dataclass(frozen=True, slots=True)
class SiftSettings:
    """The settings of `sift`. A checkpoint keeps the `tasks` and `buckets` of its first start."""

    start: str = "earliest"  # position without a checkpoint
    events_max: int = 200_000  # per batch
    partitions_per_task: int = 8
    tasks: int = 2  # that search for duplicates
    # Of partitions; each has one value of state, which costs time in every batch. With 6 buckets,
    # each of two tasks gets about half of 16 partitions; with 4, one task gets three quarters.
    buckets: int = 6
    ahead_max_s: float | None = 3600.0  # a clock further ahead is invalid; None for simulated time
    late_s: float = 120.0  # a later reading is counted as late, and processed as usual
    alarms: bool = False  # raise break-ins and fires; then `watch` must leave them to sift
    kinds: Kinds = DEFAULT

    @property
    def ahead_max_ms(self) -> int | None:
        return None if self.ahead_max_s is None else round(self.ahead_max_s * 1000)


@dataclass(frozen=True, slots=True)
class Counts:
    """The readings of a batch by outcome: the sum of activities, dropped, duplicates, malformed.

    The fields are keys of status.json; stage_counts.py defines each number.
    """

    readings: int
    activities: int
    dropped: int
    duplicates: int
    malformed: int
    late: int
    reasons: Mapping[str, int]
    kinds: Mapping[str, int] = field(default_factory=dict)  # valid ones, by kind of sensor


def start(
    spark: SparkSession,
    namespace: HomesNamespace,
    checkpoint: str,
    settings: SiftSettings | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start the query, which resumes from `checkpoint`."""
    settings = settings or SiftSettings()
    source = namespace.hub_options(
        SENSORS_HUB,
        NAME,
        startingPosition=settings.start,
        maxEventsPerTrigger=settings.events_max,
        partitionsPerTask=settings.partitions_per_task,
    )
    events = spark.readStream.format("eventhubs").schema(COLUMNS).options(**source).load()
    settings = replace(settings, buckets=kept_buckets(spark, checkpoint, settings.buckets))
    hubs = (ALERTS_HUB, ACTIVITY_HUB, DEADLETTER_HUB)
    deliver = delivery_to(*map(namespace.hub_options, hubs))
    known = None
    if settings.alarms:
        known = raised_fingerprints(spark, namespace, settings.kinds)
    delivered = sifted(events, settings, deliver, known)
    delivered = delivered.observe(DELIVERED_COUNTS, f.collect_list(COUNTS).alias(COUNTS))
    # No sink: each task has delivered its rows when it ends.
    writer = delivered.writeStream.queryName(NAME).format("noop").outputMode("append")
    writer = writer.option("checkpointLocation", checkpoint)
    with session_settings(
        spark, {**STATE_SETTINGS, "spark.sql.shuffle.partitions": str(settings.tasks)}
    ):
        return writer.trigger(**(trigger or TRIGGER)).start()


def sifted(
    events: DataFrame, settings: SiftSettings, deliver: Deliver, known: UInt64s | None = None
) -> DataFrame:
    """The outcomes of the readings that may matter, counted; the others are counted and dropped.

    `known` are the alerts raised so far; None if alerts are not raised here.
    """
    ahead_ms, late_ms = settings.ahead_max_ms, round(settings.late_s * 1000)
    validated = validate_columns(events, ahead_ms, late_ms, settings.kinds).observe(
        VALIDATED_COUNTS, *validated_metrics(settings.kinds)
    )
    relevant = select_relevant(validated, settings.kinds)
    # Grouped by partition, the readings of a home keep the order of the hub in batches of any size.
    # With another grouping, while `sift` catches up, `watch` would receive the readings of some
    # homes hours before those of others, and would report the others as silent.
    bucket = f.pmod(f.col("partition").cast("int"), f.lit(settings.buckets))
    keyed = relevant.select(bucket.alias("bucket"), "*")
    return keyed.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=Sifter(ahead_ms, late_ms, known, deliver, settings.kinds),
        outputStructType=OUTPUT,
        outputMode="Append",
        timeMode="None",
    )


# -- counting -------------------------------------------------------------------------------------


def validated_metrics(kinds: Kinds) -> list[Any]:
    dropped = f.col("valid") & f.col("why").isNull()
    late = f.col("valid") & f.col("late")
    valid_of = {name: f.col("valid") & (f.col("sensor") == name) for name in kinds.names}
    by_kind = [count_of(condition, KIND + name) for name, condition in valid_of.items()]
    readings = f.count(f.lit(1)).alias("readings")
    return [readings, count_of(dropped, "dropped"), count_of(late, "late"), *by_kind]


def count_of(condition: Any, name: str) -> Any:
    return f.count_if(condition).alias(name)


def counts(progress: Any) -> Counts:
    """The counts of a batch, from `query.lastProgress` or the progress given to a listener."""
    observed = progress["observedMetrics"]
    validated = as_dict(observed.get(VALIDATED_COUNTS))
    delivered = sum_of(as_dict(observed.get(DELIVERED_COUNTS)).get(COUNTS, ()))
    reasons = {name: delivered[name] for name in ALL_REASONS if delivered[name]}
    return Counts(
        readings=validated.get("readings", 0),
        activities=delivered[KEPT],
        dropped=validated.get("dropped", 0) + delivered[DROPPED],
        duplicates=delivered[REPEATED],
        malformed=sum(reasons.values()),
        late=validated.get(LATE, 0) + delivered[LATE],
        reasons=reasons,
        kinds=dict.fromkeys(KINDS, 0) | counts_by_kind(validated, delivered),
    )


def counts_by_kind(*observed: Mapping[str, int]) -> dict[str, int]:
    """The readings of each kind of sensor, in the observed metrics together."""
    names = [name for name in dict.fromkeys(chain(*observed)) if name.startswith(KIND)]
    return {name.removeprefix(KIND): sum(each.get(name, 0) for each in observed) for name in names}


def sum_of(texts: Iterable[str]) -> Counter[str]:
    """The counts of all buckets, each a JSON object."""
    total = Counter[str]()
    for text in texts:
        total.update(json.loads(text))
    return total


def as_dict(observed: Any) -> dict[str, Any]:
    """Observed metrics as a dict: from a Spark row, a dict, or None for a batch without rows."""
    if observed is None:
        return {}
    return dict(observed) if isinstance(observed, Mapping) else dict(observed.asDict())
