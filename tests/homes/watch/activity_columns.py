"""What the sift keeps of a simulator, without Spark: for the tests of what comes after it."""

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
    """As `schema.why_kept`, by the column."""
    busy = np.where(columns.sensor == SMOKE, columns.value >= SMOKE_ALARM_PPM, columns.value != 0)
    age = columns.at - columns.since
    alive = (columns.seq + columns.home) % ALIVE_EVERY == 0
    worth = (columns.fault > 0) | ((age >= 0) & (age < CHANGE_MS)) | busy | alive
    worth |= columns.battery <= LOW_BATTERY
    return columns.take(worth & (columns.flags & MALFORMED == 0))


def heard(parts: Iterable[ReadingColumns]) -> ActivityColumns:
    some = list(parts)
    return ActivityColumns(
        number=np.concatenate([one.home for one in some]),
        kind=np.concatenate([one.sensor for one in some]),
        at=np.concatenate([one.at for one in some]),
        value=np.concatenate([np.where(one.fault > 0, np.nan, one.value) for one in some]),
        since=np.concatenate([one.since for one in some]),
        mode=np.concatenate([one.mode for one in some]),
    )


def activities(simulator: HomeSimulator, minute: int) -> list[Event]:
    """The readings of a minute that are worth keeping, as events; their bodies are readings."""
    batch = simulator.minute(minute)
    worth = set(identities(kept(batch.columns)))
    rows = zip(identities(batch.columns), batch.events(), strict=True)
    return [event for identity, event in rows if identity in worth]


def identities(columns: ReadingColumns) -> list[tuple[int, int, int]]:
    names = columns.home.tolist(), columns.sensor.tolist(), columns.seq.tolist()
    return list(zip(*names, strict=True))
