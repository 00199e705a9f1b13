"""What is due at one moment, and where it comes from: a town, or a recording.

HomeSimulator -> SimulatorSource -> TimeSlice -> sending.py
        ^^^^^^^^^^ this module; ReplaySource stands in replay.py
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
    """What is due at one moment, its records in the order of the homes' partitions."""

    due_ms: int  # by the clock of the readings
    homes: Ints  # the home of each record
    packed: PackedRecords
    mark: Ints  # what befell each on the way: see bodies.py

    def __len__(self) -> int:
        return len(self.homes)


class SliceSource(Protocol):
    """Where slices come from, and the time of the readings at which that begins."""

    @property
    def start_ms(self) -> int: ...

    @property
    def homes(self) -> int: ...

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        """All of them in order of time; records in the order of their homes' partitions."""


@dataclass(frozen=True, slots=True)
class SimulatorSource:
    """The readings of a town from one moment to another, each at its home's own second."""

    town: HomeSimulator
    start_ms: int
    end_ms: int | None  # None goes on for ever
    slot_s: int = 1  # seconds of a minute that make a slice: a divisor of 60
    share: tuple[int, int] = (0, 1)  # of so many producers this is the one that sends its part

    @property
    def homes(self) -> int:
        return self.town.homes

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        slots = [self.rows(second, partition_of) for second in range(0, 60, self.slot_s)]
        for minute in count(self.start_ms // MINUTE_MS):
            for slot, rows in enumerate(slots):
                due_ms = minute * MINUTE_MS + (slot + 1) * self.slot_s * 1000
                if self.end_ms is not None and due_ms > self.end_ms:
                    return
                if due_ms > self.start_ms and len(rows):
                    batch = self.town.minute(minute, rows)
                    yield TimeSlice(due_ms, batch.columns.home, batch.packed, batch.columns.mark)

    def rows(self, second: int, partition_of: Ints) -> Ints:
        rows = self.town.due(second, second + self.slot_s)
        mine, of = self.share
        rows = rows[rows % of == mine]
        out: Ints = rows[np.argsort(partition_of[rows], kind="stable")]
        return out


def choose_slot_s(homes: int, speed: float | None) -> int:
    """How many seconds of a minute to send at once.

    Paced: a slice for each second of the clock, or as near as a divisor of 60 gets. As fast as can
    be: enough for numpy to be worth its while.
    """
    wanted = speed if speed is not None else 10_000 * 60 / (homes * 5)
    return next((slot for slot in SLOTS if slot >= wanted), 60)
