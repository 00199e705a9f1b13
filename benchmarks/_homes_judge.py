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
from pumphouse.homes.watch import history as past
from pumphouse.homes.watch import rules

SMOKE_PPM = 60
Cells = dict[tuple[int, str], list[float]]


def raw(town: HomeSimulator, first: int, minutes: int) -> Iterator[bytes]:
    for minute in range(first, first + minutes):
        yield from town.minute(minute).bodies()


def matters(bodies: Iterable[bytes]) -> Iterator[Activity]:
    """Judged one by one, and each once."""
    seen = set()
    for body in bodies:
        try:
            found = activity_of(decode_reading(body))
        except BadRecord:
            continue
        if found is not None and found.reading.identity not in seen:
            seen.add(found.reading.identity)
            yield found


def measures(one: Activity) -> tuple[float, ...]:
    read, value = one.reading, one.reading.value or 0.0
    opened = read.sensor in ("door", "window") and one.why == "change" and value == 1
    smoke = read.sensor == "smoke" and value >= SMOKE_PPM
    moved = value if read.sensor == "motion" else 0.0
    return 1.0, moved, opened, smoke, read.fault is not None


def counted_anew(table: sums.SumTable, activities: Iterable[Activity]) -> Cells:
    found: Cells = defaultdict(lambda: [0.0] * len(sums.MEASURES))
    for one in activities:
        key = one.region if table.key == "region" else one.reading.home
        cell = found[one.reading.at // table.span_ms * table.span_ms, key]
        for place, value in enumerate(measures(one)):
            cell[place] += value
    return dict(found)


def alerts_anew(homes: int, activities: Iterable[Activity], grace_ms: int) -> set[str]:
    """The ids of the alerts that all of it raises."""
    partition_of = partitions_of(np.arange(homes, dtype=np.int32), PARTITIONS)
    heard: dict[int, list[Activity]] = defaultdict(list)
    for one in activities:
        heard[int(partition_of[home_number(one.reading.home)])].append(one)
    none = np.empty(0, np.uint64)
    found = (
        rules.apply_rules(past.EMPTY, as_heard(some), grace_ms, none) for some in heard.values()
    )
    return {alert.id for alerts, _ in found for alert in alerts.as_alerts()}


def as_heard(some: list[Activity]) -> past.ActivityColumns:
    read = [one.reading for one in some]
    return past.ActivityColumns(
        number=np.array([home_number(one.home) for one in read], np.int32),
        kind=np.array([KINDS.index(one.sensor) for one in read], np.int32),
        at=np.array([one.at for one in read], np.int64),
        value=np.array([np.nan if one.value is None else one.value for one in read]),
        since=np.array([one.since for one in read], np.int64),
        mode=np.array([MODES.index(one.mode) for one in read], np.int32),
    )
