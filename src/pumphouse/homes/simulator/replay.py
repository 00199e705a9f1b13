"""Replays a recording on many homes.

    Recording -> ReplaySource -> TimeSlice -> sender.py
                 ^^^^^^^^^^^^ this module

The homes of the file (one, if it has no column `home`) are assigned in turn to the simulated homes.
Each home starts at another day and minute of the recording, so that homes do not act in unison; a
home that starts at a later day continues with the earlier days.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from pumphouse.client.base import batch_section, encode_event
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.homes import schema
from pumphouse.homes.simulator.hashed_random import Ints, Longs
from pumphouse.homes.simulator.record_encoding import PackedRecords
from pumphouse.homes.simulator.recording import Recording, Track
from pumphouse.homes.simulator.time_slices import TimeSlice

APART_MINUTES: Final = 30  # the largest shift between homes that replay the same day


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Replays a recording on a number of homes from a start time."""

    recording: Recording
    homes: int
    start_ms: int
    slot_s: int = 1  # a divisor of 60

    def __post_init__(self) -> None:
        if not 1 <= self.homes <= schema.HOMES_MAX:
            raise OptionError(
                f"invalid number of homes {self.homes:,}: use 1 to {schema.HOMES_MAX:,}"
            )

    @property
    def period_ms(self) -> int:
        """The time after which each home has replayed its whole track: whole days."""
        return self.recording.days * schema.DAY_MS

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        order = np.argsort(partition_of[: self.homes], kind="stable").astype(np.int64)
        shifts = self.shifts(order)
        remaining, position, step = self.recording.readings(self.homes), 0, self.slot_s * 1000
        while remaining:
            rows, homes = self.due(order, shifts, position, step)
            if not len(homes):
                position += self.pause_ms(order, shifts, position) // step * step
            else:
                position += step
                remaining -= len(homes)
                yield self.time_slice(rows, homes, position)

    def shifts(self, homes: Longs) -> Longs:
        """How much later each home replays the start of the recording, in ms."""
        turn = homes // len(self.recording.tracks)
        days = turn % self.recording.days
        minutes = turn // self.recording.days * 7 % APART_MINUTES
        out: Longs = days * schema.DAY_MS + minutes * schema.MINUTE_MS
        return out

    def due(self, order: Longs, shifts: Longs, position: int, step: int) -> tuple[Longs, Longs]:
        """The rows that are due and the home of each, in the order of `order`."""
        from_ms = (position - shifts) % self.period_ms
        first, last = np.zeros_like(order), np.zeros_like(order)
        for number, track in enumerate(self.recording.tracks):
            on_track = order % len(self.recording.tracks) == number
            first[on_track] = np.searchsorted(track.times, from_ms[on_track])
            last[on_track] = np.searchsorted(track.times, from_ms[on_track] + step)
        counts = last - first
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(first, counts) + np.arange(counts.sum()) - starts
        return rows, np.repeat(order, counts)

    def pause_ms(self, order: Longs, shifts: Longs, position: int) -> int:
        """The time from here to the next reading of any home. A recording may pause for years."""
        from_ms = (position - shifts) % self.period_ms
        pauses = []
        for number, track in enumerate(self.recording.tracks):
            starts = from_ms[order % len(self.recording.tracks) == number]
            if len(starts):
                times = np.append(track.times, track.times[0] + self.period_ms)
                pauses.append(np.min(times[np.searchsorted(track.times, starts)] - starts))
        return int(min(pauses))

    def time_slice(self, rows: Longs, homes: Longs, position: int) -> TimeSlice:
        shifts = self.shifts(homes)
        records = [
            self.record(row, home, shift)
            for row, home, shift in zip(rows.tolist(), homes.tolist(), shifts.tolist(), strict=True)
        ]
        starts = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record) for record in records], out=starts[1:])
        due_ms, flags = self.start_ms + position, np.zeros(len(records), np.int32)
        return TimeSlice(
            due_ms, homes.astype(np.int32), PackedRecords(b"".join(records), starts), flags
        )

    def record(self, row: int, home: int, shift: int) -> bytes:
        track = self.recording.tracks[home % len(self.recording.tracks)]
        at = self.start_ms + (int(track.times[row]) + shift) % self.period_ms
        name = schema.home_id(home)
        body = self.body(track, row, name, at)
        return batch_section(encode_event(Event(body, partition_key=name)))

    def body(self, track: Track, row: int, home: str, at: int) -> bytes:
        """The same bytes as `schema.encode_reading`, but faster."""
        line = track.rows[row]
        value = int(line.value) if line.value.is_integer() else line.value
        # Sequence numbers start above those of any replay that started earlier.
        seq = self.start_ms // schema.MINUTE_MS * 1_000_000 + int(track.orders[row])
        since = at - int(track.ages[row])
        return (
            f'{{"v":{schema.VERSION},"home":"{home}","sensor":"{line.sensor}","seq":{seq},'
            f'"at":{at},"value":{json.dumps(value)},"since":{since},"mode":"{line.mode}",'
            f'"battery":{line.battery}}}'
        ).encode()
