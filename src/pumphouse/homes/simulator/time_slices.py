"""Time slices: the records due at one moment, and the source that simulates them.

HomeSimulator -> SimulatorSource -> TimeSlice -> sender.py
                 ^^^^^^^^^^^^^^^ this module; ReplaySource is in replay.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

import numpy as np

from pumphouse.homes.schema import MINUTE_MS
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.record_encoding import PackedRecords
from pumphouse.homes.simulator.sensors import Batch, HomeSimulator
from pumphouse.homes.simulator.traces import NO_TRACES, TraceOptions, traces_of

SLOTS: Final = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)  # all divisors of 60


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The records due at one moment, ordered by the partitions of their homes."""

    due_ms: int  # event time
    homes: Ints  # the home of each record
    packed: PackedRecords
    flags: Ints  # the reading faults of each record: see record_encoding.py
    traces: Mapping[int, str] = field(default_factory=dict)  # the traceparent of some records

    def __len__(self) -> int:
        return len(self.homes)


class SliceSource(Protocol):
    """A source of time slices: the simulator, or a recording."""

    @property
    def start_ms(self) -> int:
        """The event time at which it starts."""

    @property
    def homes(self) -> int:
        """The number of homes."""

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
    traces: TraceOptions = NO_TRACES

    @property
    def homes(self) -> int:
        return self.simulator.homes

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        slots = [self.homes_due(second, partition_of) for second in range(0, 60, self.slot_s)]
        for minute in count(self.start_ms // MINUTE_MS):
            for slot, homes in enumerate(slots):
                due_ms = minute * MINUTE_MS + (slot + 1) * self.slot_s * 1000
                if self.end_ms is not None and due_ms > self.end_ms:
                    return
                if due_ms > self.start_ms and len(homes):
                    batch = self.simulator.minute(minute, homes)
                    yield self._slice(due_ms, batch)

    def _slice(self, due_ms: int, batch: Batch) -> TimeSlice:
        columns = batch.columns
        traces = traces_of(columns, self.traces, self.simulator.seed)
        return TimeSlice(due_ms, columns.home, batch.packed, columns.flags, traces)

    def homes_due(self, second: int, partition_of: Ints) -> Ints:
        """The homes of this sender that are due in a slot, ordered by their partitions."""
        homes = self.simulator.due(second, second + self.slot_s)
        index, senders = self.share
        homes = homes[homes % senders == index]
        out: Ints = homes[np.argsort(partition_of[homes], kind="stable")]
        return out


def choose_slot_s(homes: int, speed: float | None) -> int:
    """The number of seconds of a minute to send in one slice.

    With a speed: at most one slice per second of real time. Without one: about 10,000 readings per
    slice, enough for numpy to be efficient. The number is rounded up to a divisor of 60.
    """
    target = speed if speed is not None else 10_000 * 60 / (homes * 5)
    return next((slot for slot in SLOTS if slot >= target), 60)
