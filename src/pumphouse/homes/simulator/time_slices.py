"""Time slices: the records due at one moment, and the source that simulates them.

HomeSimulator -> SimulatorSource -> TimeSlice -> sender.py
                 ^^^^^^^^^^^^^^^ this module; ReplaySource is in replay.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

import numpy as np

from pumphouse.homes.schema import MINUTE_MS
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.record_encoding import PackedRecords
from pumphouse.homes.simulator.sensors import HomeSimulator

SLOTS: Final = (1, 2, 3, 5, 6, 10, 12, 15, 20, 30, 60)


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The records due at one moment, ordered by the partitions of their homes."""

    due_ms: int  # event time
    homes: Ints  # the home of each record
    packed: PackedRecords
    flags: Ints  # the reading faults of each record: see record_encoding.py

    def __len__(self) -> int:
        return len(self.homes)


class SliceSource(Protocol):
    """A source of time slices: the simulator, or a recording."""

    @property
    def start_ms(self) -> int:
        """The event time at which it starts."""

    @property
    def homes(self) -> int: ...

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        """All slices in order of time; records ordered by the partitions of their homes."""


@dataclass(frozen=True, slots=True)
class SimulatorSource:
    """Simulated readings of a period, each due at its home's own second of the minute."""

    simulator: HomeSimulator
    start_ms: int
    end_ms: int | None  # None: no end
    slot_s: int = 1  # seconds of a minute in one slice: a divisor of 60
    share: tuple[int, int] = (0, 1)  # (index of this sender, number of senders)

    @property
    def homes(self) -> int:
        return self.simulator.homes

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        slots = [self.rows(second, partition_of) for second in range(0, 60, self.slot_s)]
        for minute in count(self.start_ms // MINUTE_MS):
            for slot, rows in enumerate(slots):
                due_ms = minute * MINUTE_MS + (slot + 1) * self.slot_s * 1000
                if self.end_ms is not None and due_ms > self.end_ms:
                    return
                if due_ms > self.start_ms and len(rows):
                    batch = self.simulator.minute(minute, rows)
                    yield TimeSlice(due_ms, batch.columns.home, batch.packed, batch.columns.flags)

    def rows(self, second: int, partition_of: Ints) -> Ints:
        rows = self.simulator.due(second, second + self.slot_s)
        index, senders = self.share
        rows = rows[rows % senders == index]
        out: Ints = rows[np.argsort(partition_of[rows], kind="stable")]
        return out


def choose_slot_s(homes: int, speed: float | None) -> int:
    """The number of seconds of a minute to send in one slice.

    With a speed: one slice per second of real time, as near as a divisor of 60 allows. Without one:
    about 10,000 readings, large enough for numpy to be efficient.
    """
    target = speed if speed is not None else 10_000 * 60 / (homes * 5)
    return next((slot for slot in SLOTS if slot >= target), 60)
