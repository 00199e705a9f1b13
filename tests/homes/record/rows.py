"""Rows as the stage `record` passes them to its stores."""

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
    """An activity of a home in a minute after the start; active by default."""
    at = START_MS + minute * MINUTE_MS + home % 60 * 1000
    fault = "no answer" if value is None else None
    reading = Reading(
        home_id(home), sensor, START_MINUTE + minute, at, value, at - HOUR_MS, "home", 90, fault
    )
    kept = activity_of(reading)
    assert kept is not None
    return kept


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
    """A batch: the events of one partition, with sequence numbers from `first`."""
    tables = {}
    if activities:
        rows = [{**fields(a.reading), "why": a.why, "region": a.region} for a in activities]
        tables[ACTIVITY_HUB] = table(rows, ACTIVITY.columns, first, partition)
    if alerts:
        rows = [{**fields(alert), "id": alert.id} for alert in alerts]
        tables[ALERTS_HUB] = table(rows, ALERTS.columns, first, partition)
    return tables


def fields(record: Reading | Alert) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__slots__}


def table(
    rows: Iterable[dict[str, object]], columns: object, first: int, partition: str
) -> pa.Table:
    assert isinstance(columns, dict)
    kinds = {name: kind.split()[0] for name, kind in columns.items()}
    schema = pa.schema([(name, TYPES.get(kind, pa.float64())) for name, kind in kinds.items()])
    rows = [
        {**row, "partition": partition, "sequence": first + number, "enqueued": START_MS}
        for number, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(rows, schema)


def reached(batch: dict[str, pa.Table]) -> Positions:
    return {hub: end_positions(rows) for hub, rows in batch.items()}
