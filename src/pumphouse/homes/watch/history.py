"""The last 24 hours of the homes of one partition, as far as the rules need them, in columns.

One value of Spark's state holds all homes of a partition. One value per home would cost a round
trip between Python and the JVM for every active home; columns of thousands of homes cost one.

    state -> PartitionHistory -> rules -> PartitionHistory -> state
             ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.duplicates import missing
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds, Lasting, met_columns
from pumphouse.homes.schema import DAY_MS, home_of

KEPT_MS = DAY_MS
NEVER = np.iinfo(np.int64).max  # later than every sequence number
RECENT = 32  # readings of a climate sensor that define what is usual

Ints = NDArray[np.int32]
Times = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ActivityColumns:
    """Activities of one partition as columns, in order of time."""

    number: Ints  # of the home
    kind: Ints  # index in KINDS
    at: Times
    value: Floats  # NaN for a fault
    since: Times
    mode: Ints  # index in MODES

    def __len__(self) -> int:
        return len(self.at)

    def where(self, condition: Mask | NDArray[np.intp]) -> ActivityColumns:
        return ActivityColumns(*(getattr(self, f.name)[condition] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """The state of one partition: a row for each home, in the order of `homes`. 0 means never.

    The order of the fields is the format of the state: it must not change.
    """

    homes: Ints
    last: Times  # the last reading of each sensor: homes x kinds
    armed: Times  # when the alarm was armed
    mode_at: Times  # the last reading that gave the mode
    lasting: Times  # since when each rule `lasting` holds: homes x rules
    met: Times  # for each rule `threshold`, the last reading in its range; see also alarms.combined
    clock: Times  # one number: the event time that this partition has reached
    resumed: Times  # one number: the end of the last outage of the whole partition
    raised: UInt64s  # fingerprints of raised alerts (see rules.fingerprint)
    raised_at: Times  # when each alert was last due
    sensors: Ints  # with a rule `unusual` (sensor_number): the rows of the three columns below
    recent: Floats  # the last usual readings: sensors x RECENT
    count: Ints  # the number of usual readings so far
    odd: Ints  # the number of unusual readings in a row
    own_until: Times  # one number: `sift` raises the alarms of activities after this sequence

    def to_bytes(self) -> bytes:
        columns = [getattr(self, f.name) for f in fields(self)]
        lengths = struct.pack(f"<{len(columns)}q", *(column.size for column in columns))
        return b"".join([lengths, *(column.tobytes() for column in columns)])

    def row_of(self, numbers: Ints) -> NDArray[np.intp]:
        return np.searchsorted(self.homes, numbers)


def _without_homes(kinds: Kinds) -> PartitionHistory:
    return PartitionHistory(
        homes=np.empty(0, np.int32),
        last=np.empty((0, len(kinds.names)), np.int64),
        armed=np.empty(0, np.int64),
        mode_at=np.empty(0, np.int64),
        lasting=np.empty((0, len(kinds.rules(Lasting))), np.int64),
        met=np.empty((0, met_columns(kinds)), np.int64),
        clock=np.zeros(1, np.int64),
        resumed=np.zeros(1, np.int64),
        raised=np.empty(0, np.uint64),
        raised_at=np.empty(0, np.int64),
        sensors=np.empty(0, np.int32),
        recent=np.empty((0, RECENT), np.float64),
        count=np.empty(0, np.int32),
        odd=np.empty(0, np.int32),
        own_until=np.full(1, NEVER),
    )


EMPTY = _without_homes(DEFAULT)
BY_HOME = ("last", "armed", "mode_at", "lasting", "met")
BY_SENSOR = ("recent", "count", "odd")


def empty(kinds: Kinds) -> PartitionHistory:
    """The history of no homes."""
    return EMPTY if kinds is DEFAULT else _without_homes(kinds)


def from_bytes(packed: bytes, kinds: Kinds = DEFAULT) -> PartitionHistory:
    """The history in the state. Kinds and rules that were added later have not been seen yet."""
    like_all = empty(kinds)
    names = [f.name for f in fields(PartitionHistory)]
    lengths = struct.unpack_from(f"<{len(names)}q", packed)
    columns: dict[str, Any] = {}
    offset = 8 * len(names)
    for name, length in zip(names, lengths, strict=True):
        like = getattr(like_all, name)
        column = np.frombuffer(packed, like.dtype, length, offset)
        key = "sensors" if name in BY_SENSOR else "homes"
        # A copy, because the buffer is read-only.
        columns[name] = column.copy() if like.ndim == 1 else widened(column, columns[key], like)
        offset += length * like.itemsize
    return PartitionHistory(**columns)


def widened(
    column: NDArray[np.generic], keys: NDArray[np.generic], like: NDArray[np.generic]
) -> NDArray[np.generic]:
    """A table with a row for each key, or none, and as many columns as `like`."""
    rows = column.reshape(len(keys), -1) if column.size else like
    table = np.zeros((len(rows), like.shape[1]), like.dtype)
    width = min(rows.shape[1], like.shape[1])
    table[:, :width] = rows[:, :width]
    return table


def starting_with(history: PartitionHistory, own_until: int | None) -> PartitionHistory:
    """The history of a partition; `sift` raises the alerts of activities after `own_until`."""
    if own_until is None:
        return history
    return replace(history, own_until=np.array([own_until]))


def with_homes(history: PartitionHistory, numbers: Ints) -> PartitionHistory:
    """The history with a row for each of these homes; the rows of new homes are zero."""
    return with_rows(history, "homes", BY_HOME, numbers)


def with_sensors(history: PartitionHistory, sensors: Ints) -> PartitionHistory:
    return with_rows(history, "sensors", BY_SENSOR, sensors)


def with_rows(
    history: PartitionHistory, key: str, columns: tuple[str, ...], required: Ints
) -> PartitionHistory:
    """The history with a row for each required value of the column `key`."""
    keys = getattr(history, key)
    unknown = missing(keys, required)
    if not len(unknown):
        return history
    all_keys = np.union1d(keys, unknown).astype(np.int32)
    old = np.searchsorted(all_keys, keys)
    changed: dict[str, NDArray[np.generic]] = {key: all_keys}
    for name in columns:
        column = getattr(history, name)
        extended = np.zeros((len(all_keys), *column.shape[1:]), column.dtype)
        extended[old] = column
        changed[name] = extended
    return replace(history, **changed)  # type: ignore[arg-type]


def without_expired(history: PartitionHistory) -> PartitionHistory:
    """The history without sensors, homes and alerts older than a day."""
    horizon = history.clock[0] - KEPT_MS
    last = np.where(history.last < horizon, 0, history.last)
    recent = history.raised_at >= horizon
    raised, raised_at = history.raised[recent], history.raised_at[recent]
    kept = replace(history, last=last, raised=raised, raised_at=raised_at)
    alive = last.any(axis=1)
    if alive.all():
        return kept
    alive_sensors = np.isin(home_of(kept.sensors), kept.homes[alive])
    by_home = {name: getattr(kept, name)[alive] for name in ("homes", *BY_HOME)}
    by_sensor = {name: getattr(kept, name)[alive_sensors] for name in ("sensors", *BY_SENSOR)}
    return replace(kept, **by_home, **by_sensor)
