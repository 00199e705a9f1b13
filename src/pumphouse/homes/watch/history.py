"""The last 24 hours of the homes of one partition, as far as the rules need them: columns.

One value of Spark's state holds a partition's homes. A value for each home would cost a round trip
between Python and the JVM for every home that speaks; thousands of homes in columns cost one, and
numpy does the rest.

    state -> PartitionHistory -> rules -> PartitionHistory -> state
             ^^^^ this module
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.duplicates import missing
from pumphouse.homes.schema import DAY_MS, KINDS

KEPT_MS = DAY_MS
RECENT = 32  # readings of a climate sensor that say what is usual

Ints = NDArray[np.int32]
Times = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ActivityColumns:
    """Activities of one partition, by the column, in the order of their time."""

    number: Ints  # of the home
    kind: Ints  # place in KINDS
    at: Times
    value: Floats  # not a number in a fault
    since: Times
    mode: Ints  # place in MODES

    def __len__(self) -> int:
        return len(self.at)

    def where(self, chosen: Mask | NDArray[np.intp]) -> ActivityColumns:
        return ActivityColumns(*(getattr(self, one.name)[chosen] for one in fields(self)))


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """What is remembered; a row for each home in the order of `homes`. 0 is never, or not."""

    homes: Ints
    last: Times  # when each sensor was last heard: homes x KINDS
    armed: Times  # since when the alarm is on
    told: Times  # when the mode was last told
    opened: Times  # since when the window is open
    smoke: Times  # when there was last smoke enough for an alarm
    clock: Times  # one number: how far the time of this partition has come
    resumed: Times  # one number: when the whole partition last spoke again after a silence
    raised: UInt64s  # alerts, as fingerprints (see rules.fingerprint)
    raised_at: Times  # when each was last due
    sensors: Ints  # climate sensors, number * 8 + kind; a row for each in what follows
    recent: Floats  # their last usual readings: sensors x RECENT
    count: Ints  # how many there have been
    odd: Ints  # how many unusual readings there have been in a row

    def to_bytes(self) -> bytes:
        columns = [getattr(self, one.name) for one in fields(self)]
        lengths = struct.pack(f"<{len(columns)}q", *(column.size for column in columns))
        return b"".join([lengths, *(column.tobytes() for column in columns)])

    def row_of(self, numbers: Ints) -> NDArray[np.intp]:
        return np.searchsorted(self.homes, numbers)


EMPTY = PartitionHistory(
    homes=np.empty(0, np.int32),
    last=np.empty((0, len(KINDS)), np.int64),
    armed=np.empty(0, np.int64),
    told=np.empty(0, np.int64),
    opened=np.empty(0, np.int64),
    smoke=np.empty(0, np.int64),
    clock=np.zeros(1, np.int64),
    resumed=np.zeros(1, np.int64),
    raised=np.empty(0, np.uint64),
    raised_at=np.empty(0, np.int64),
    sensors=np.empty(0, np.int32),
    recent=np.empty((0, RECENT), np.float64),
    count=np.empty(0, np.int32),
    odd=np.empty(0, np.int32),
)
BY_HOME = ("last", "armed", "told", "opened", "smoke")
BY_SENSOR = ("recent", "count", "odd")


def from_bytes(packed: bytes) -> PartitionHistory:
    names = [one.name for one in fields(PartitionHistory)]
    lengths = struct.unpack_from(f"<{len(names)}q", packed)
    place, columns = 8 * len(names), {}
    for name, length in zip(names, lengths, strict=True):
        like = getattr(EMPTY, name)
        column = np.frombuffer(packed, like.dtype, length, place)
        # A copy: what was read must not be written into.
        columns[name] = column.reshape(-1, *like.shape[1:]).copy()
        place += length * like.itemsize
    return PartitionHistory(**columns)


def with_homes(past: PartitionHistory, numbers: Ints) -> PartitionHistory:
    """With a row for each of these homes; of the new ones nothing is known."""
    return widened(past, "homes", BY_HOME, numbers)


def with_sensors(past: PartitionHistory, sensors: Ints) -> PartitionHistory:
    return widened(past, "sensors", BY_SENSOR, sensors)


def widened(
    past: PartitionHistory, key: str, columns: tuple[str, ...], more: Ints
) -> PartitionHistory:
    keys = getattr(past, key)
    unknown = missing(keys, more)
    if not len(unknown):
        return past
    together = np.union1d(keys, unknown).astype(np.int32)
    old = np.searchsorted(together, keys)
    changed: dict[str, NDArray[np.generic]] = {key: together}
    for name in columns:
        column = getattr(past, name)
        wide = np.zeros((len(together), *column.shape[1:]), column.dtype)
        wide[old] = column
        changed[name] = wide
    return replace(past, **changed)  # type: ignore[arg-type]


def forgotten(past: PartitionHistory) -> PartitionHistory:
    """Without what is older than a day: sensors and homes that ended, alerts that are over."""
    horizon = past.clock[0] - KEPT_MS
    last = np.where(past.last < horizon, 0, past.last)
    due = past.raised_at >= horizon
    kept = replace(past, last=last, raised=past.raised[due], raised_at=past.raised_at[due])
    alive = last.any(axis=1)
    if alive.all():
        return kept
    here = np.isin(kept.sensors // 8, kept.homes[alive])
    rows = {name: getattr(kept, name)[alive] for name in ("homes", *BY_HOME)}
    some = {name: getattr(kept, name)[here] for name in ("sensors", *BY_SENSOR)}
    return replace(kept, **rows, **some)
