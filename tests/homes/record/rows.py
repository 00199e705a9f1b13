"""Rows as the stage `record` hands them to its stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pumphouse.homes.record.positions import Positions, end_positions
from pumphouse.homes.record.tables import ACTIVITY, ALERTS
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    HOUR_MS,
    MINUTE_MS,
    Activity,
    Alert,
    Reading,
    activity_of,
    home_id,
    region_of,
)

START_MS = 1_792_029_600_000  # on the hour
START_MINUTE = START_MS // MINUTE_MS
TYPES = {"TEXT": pa.string(), "BIGINT": pa.int64(), "INTEGER": pa.int32()}


def activity(
    home: int, minute: int = 0, sensor: str = "motion", value: float | None = 1.0
) -> Activity:
    """What a sensor of a home said in a minute after the start; it is not quiet unless told."""
    at = START_MS + minute * MINUTE_MS + home % 60 * 1000
    fault = "no answer" if value is None else None
    reading = Reading(
        home_id(home), sensor, START_MINUTE + minute, at, value, at - HOUR_MS, "home", 90, fault
    )
    found = activity_of(reading)
    assert found is not None
    return found


def alert(home: int, minute: int = 0) -> Alert:
    at = START_MS + minute * MINUTE_MS
    return Alert(home_id(home), "fire", "smoke", at, at - 5000, region_of(home), 'Smoke, "much"')


def as_tables(
    activities: Sequence[Activity] = (),
    alerts: Sequence[Alert] = (),
    *,
    first: int = 0,
    partition: str = "0",
) -> dict[str, pa.Table]:
    """A batch: the events of one partition, numbered from `first`."""
    found = {}
    if activities:
        told = [{**fields(one.reading), "why": one.why, "region": one.region} for one in activities]
        found[ACTIVITY_HUB] = table(told, ACTIVITY.columns, first, partition)
    if alerts:
        told = [{**fields(one), "id": one.id} for one in alerts]
        found[ALERTS_HUB] = table(told, ALERTS.columns, first, partition)
    return found


def fields(one: Reading | Alert) -> dict[str, object]:
    return {name: getattr(one, name) for name in type(one).__slots__}


def table(
    told: Iterable[dict[str, object]], columns: object, first: int, partition: str
) -> pa.Table:
    assert isinstance(columns, dict)
    kinds = {name: kind.split()[0] for name, kind in columns.items()}
    schema = pa.schema([(name, TYPES.get(kind, pa.float64())) for name, kind in kinds.items()])
    rows = [
        {**one, "partition": partition, "sequence": first + number, "enqueued": START_MS}
        for number, one in enumerate(told)
    ]
    return pa.Table.from_pylist(rows, schema)


def reached(batch: dict[str, pa.Table]) -> Positions:
    return {hub: end_positions(rows) for hub, rows in batch.items()}
