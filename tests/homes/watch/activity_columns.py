"""The activities of simulated homes, computed without Spark."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pumphouse.events import Event
from pumphouse.homes.schema import ALIVE_EVERY, CHANGE_MS, LOW_BATTERY, SMOKE_ALARM_PPM
from pumphouse.homes.simulator.record_encoding import MALFORMED, ReadingColumns
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch.history import ActivityColumns

FIRST_MINUTE = 29_867_040
SMOKE = 4


def kept(columns: ReadingColumns) -> ReadingColumns:
    """The readings that `schema.why_kept` keeps, as columns."""
    active = np.where(columns.sensor == SMOKE, columns.value >= SMOKE_ALARM_PPM, columns.value != 0)
    age = columns.at - columns.since
    alive = (columns.seq + columns.home) % ALIVE_EVERY == 0
    relevant = (columns.fault > 0) | ((age >= 0) & (age < CHANGE_MS)) | active | alive
    relevant |= columns.battery <= LOW_BATTERY
    return columns.take(relevant & (columns.flags & MALFORMED == 0))


def as_activity_columns(parts: Iterable[ReadingColumns]) -> ActivityColumns:
    columns = list(parts)
    return ActivityColumns(
        number=np.concatenate([part.home for part in columns]),
        kind=np.concatenate([part.sensor for part in columns]),
        at=np.concatenate([part.at for part in columns]),
        value=np.concatenate([np.where(part.fault > 0, np.nan, part.value) for part in columns]),
        since=np.concatenate([part.since for part in columns]),
        mode=np.concatenate([part.mode for part in columns]),
    )


def activities(simulator: HomeSimulator, minute: int) -> list[Event]:
    """The readings of a minute that are kept, as events; their bodies are readings."""
    batch = simulator.minute(minute)
    relevant = set(identities(kept(batch.columns)))
    rows = zip(identities(batch.columns), batch.events(), strict=True)
    return [event for identity, event in rows if identity in relevant]


def identities(columns: ReadingColumns) -> list[tuple[int, int, int]]:
    names = columns.home.tolist(), columns.sensor.tolist(), columns.seq.tolist()
    return list(zip(*names, strict=True))
