"""The expected results of simulated readings, computed one reading at a time.

Every raw reading is decoded by the reference functions of the schema, and duplicates are removed
with a set: no Spark, no SQL, no batches. The expected alerts are those that the rules find in all
activities of a partition at once.

    HomeSimulator -> raw_bodies -> expected_activities -> expected_sums, expected_alerts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from pumphouse.errors import BadRecord
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.record import sums
from pumphouse.homes.schema import (
    KINDS,
    MODES,
    PARTITIONS,
    Activity,
    activity_of,
    decode_reading,
    home_number,
)
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.history import EMPTY, ActivityColumns

SMOKE_PPM = 60
Cells = dict[tuple[int, str], list[float]]


def raw_bodies(simulator: HomeSimulator, first: int, minutes: int) -> Iterator[bytes]:
    for minute in range(first, first + minutes):
        yield from simulator.minute(minute).bodies()


def expected_activities(bodies: Iterable[bytes]) -> Iterator[Activity]:
    """The activities of all valid readings, without duplicates."""
    seen = set()
    for body in bodies:
        try:
            activity = activity_of(decode_reading(body))
        except BadRecord:
            continue
        if activity is not None and activity.reading.identity not in seen:
            seen.add(activity.reading.identity)
            yield activity


def measures(activity: Activity) -> tuple[float, ...]:
    read, value = activity.reading, activity.reading.value or 0.0
    opened = read.sensor in ("door", "window") and activity.why == "change" and value == 1
    smoke = read.sensor == "smoke" and value >= SMOKE_PPM
    moved = value if read.sensor == "motion" else 0.0
    return 1.0, moved, opened, smoke, read.fault is not None


def expected_sums(table: sums.SumTable, activities: Iterable[Activity]) -> Cells:
    cells: Cells = defaultdict(lambda: [0.0] * len(sums.MEASURES))
    for activity in activities:
        key = activity.region if table.key == "region" else activity.reading.home
        cell = cells[activity.reading.at // table.span_ms * table.span_ms, key]
        for index, value in enumerate(measures(activity)):
            cell[index] += value
    return dict(cells)


def expected_alert_ids(homes: int, activities: Iterable[Activity], grace_ms: int) -> set[str]:
    """The ids of the alerts that these activities raise."""
    partition_of = partitions_of(np.arange(homes, dtype=np.int32), PARTITIONS)
    by_partition: dict[int, list[Activity]] = defaultdict(list)
    for activity in activities:
        by_partition[int(partition_of[home_number(activity.reading.home)])].append(activity)
    none = np.empty(0, np.uint64)
    results = (
        rules.apply_rules(EMPTY, as_columns(part), grace_ms, none) for part in by_partition.values()
    )
    return {alert.id for alerts, _ in results for alert in alerts.as_alerts()}


def as_columns(activities: list[Activity]) -> ActivityColumns:
    readings = [activity.reading for activity in activities]
    return ActivityColumns(
        number=np.array([home_number(r.home) for r in readings], np.int32),
        kind=np.array([KINDS.index(r.sensor) for r in readings], np.int32),
        at=np.array([r.at for r in readings], np.int64),
        value=np.array([np.nan if r.value is None else r.value for r in readings]),
        since=np.array([r.since for r in readings], np.int64),
        mode=np.array([MODES.index(r.mode) for r in readings], np.int32),
    )
