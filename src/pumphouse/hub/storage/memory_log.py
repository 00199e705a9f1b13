"""The log of one partition, in memory.

Events stand in segments, as finished frames one behind the other (annotations.py says how), with
an index of where each starts. Nothing in a segment ever changes; retention moves the beginning
forward and drops whole segments behind it.

    sequence  0      1      2      3      4      5      6      7
             [------ segment ------------][------ segment -----------
                     ^ begin: older ones have expired                ^ next
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS, Position
from pumphouse.hub.annotations import Batch, build_frames
from pumphouse.hub.positions import locate

SEGMENT_BYTES = 1 << 20  # small enough that retention by bytes is felt soon, large enough to be few


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a partition is kept."""

    seconds: float = 24 * 3600.0
    bytes_max: int = 256 << 20  # per partition


A_DAY = Retention()


class Run(NamedTuple):
    """Consecutive events out of the log: a copy of their frames, yours to patch."""

    frames: bytearray
    starts: npt.NDArray[np.intp]  # where each frame starts
    sequence: int  # of the first


class Segment:
    """A stretch of consecutive events."""

    __slots__ = ("data", "group_firsts", "group_times", "offset", "sequence", "starts")

    def __init__(self, sequence: int, offset: int) -> None:
        self.sequence = sequence
        self.offset = offset
        self.data = bytearray()
        self.starts: array[int] = array("I")
        # All events of one append share a time, so times are kept per append.
        self.group_firsts: array[int] = array("I")
        self.group_times: array[int] = array("q")

    def append(self, frames: bytearray, starts: Sequence[int], enqueued_ms: int) -> None:
        self.group_firsts.append(len(self.starts))
        self.group_times.append(enqueued_ms)
        self.starts.extend(starts)
        if self.data:
            self.data += frames
        else:
            self.data = frames  # a full batch fills a segment: not copied, it is ours now

    @property
    def next_sequence(self) -> int:
        return self.sequence + len(self.starts)

    def first_after(self, ms: float, inclusive: bool) -> int:
        """The sequence number of the first event enqueued after (or at) a time."""
        place = (bisect_left if inclusive else bisect_right)(self.group_times, ms)
        if place == len(self.group_times):
            return self.next_sequence
        return self.sequence + self.group_firsts[place]

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run:
        """One event at least, `count_max` at most; more than one only within `bytes_max`."""
        first = sequence - self.sequence
        starts, begin = self.starts, self.starts[first]
        last = min(first + count_max, len(starts))
        end = len(self.data) if last == len(starts) else starts[last]
        if end - begin > bytes_max:
            last = max(first + 1, bisect_right(starts, begin + bytes_max, first, last) - 1)
            end = len(self.data) if last == len(starts) else starts[last]
        # The slice of the index is a copy: numpy must not hold on to an array that still grows.
        places = np.frombuffer(starts[first:last], np.uint32).astype(np.intp)
        return Run(self.data[begin:end], places - begin, sequence)


class PartitionLog:
    """What one partition holds."""

    __slots__ = ("begin", "last_ms", "last_offset", "next_offset", "next_sequence", "retention",
                 "segment_bytes", "segments", "size")  # fmt: skip

    def __init__(self, retention: Retention = A_DAY, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.retention = retention
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.begin = 0  # the oldest sequence number still there
        self.next_sequence = 0
        self.next_offset = 0
        self.last_offset = -1
        self.last_ms = NEVER_MS
        self.size = 0

    def __repr__(self) -> str:
        return f"<PartitionLog {self.begin}..{self.next_sequence} {self.size} bytes>"

    @property
    def empty(self) -> bool:
        return self.begin == self.next_sequence

    def append(self, batch: Batch, now_ms: int, publisher: str | None = None) -> int:
        """Add events; the sequence number of the first is returned. They are readable at once."""
        if not batch.groups:
            return self.next_sequence
        first = self.next_sequence
        now_ms = max(now_ms, self.last_ms)  # a clock set back must not unsort the index by time
        segment = self.room()
        frames = build_frames(
            batch, first, self.next_offset, now_ms, publisher, origin=segment.offset
        )
        segment.append(frames.data, frames.starts, now_ms)
        self.last_offset = segment.offset + frames.starts[-1]
        self.next_sequence += len(frames.starts)
        self.next_offset += len(frames.data)
        self.last_ms = now_ms
        self.size += len(frames.data)
        if self.size > self.retention.bytes_max:
            self.expire(now_ms)
        return first

    def publish(
        self,
        batch: Batch,
        now_ms: int,
        publisher: str | None,
        committed: Callable[[AmqpError | None], None],
    ) -> None:
        """Append a batch and say so: in memory nothing is to be waited for."""
        self.append(batch, now_ms, publisher)
        committed(None)

    def close(self) -> None:
        """Nothing is open."""

    def room(self) -> Segment:
        """The segment to append to."""
        if not self.segments or len(self.segments[-1].data) >= self.segment_bytes:
            self.segments.append(Segment(self.next_sequence, self.next_offset))
        return self.segments[-1]

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run | None:
        """Events from a sequence number on; None at the end. What has expired is passed over."""
        sequence = max(sequence, self.begin)
        if sequence >= self.next_sequence or count_max <= 0:
            return None
        return self.segment_of(sequence).read(sequence, count_max, bytes_max)

    def segment_of(self, sequence: int) -> Segment:
        return self.segments[bisect_right(self.segments, sequence, key=by_sequence) - 1]

    def locate(self, position: Position) -> int:
        """The sequence number at which reading from a position starts."""
        return locate(self, position)

    def after_offset(self, offset: int, inclusive: bool) -> int:
        if not self.segments or offset < self.segments[0].offset:
            return self.begin
        segment = self.segments[bisect_right(self.segments, offset, key=by_offset) - 1]
        place = (bisect_left if inclusive else bisect_right)(
            segment.starts, offset - segment.offset
        )
        return max(self.begin, segment.sequence + place)

    def after_time(self, ms: float, inclusive: bool) -> int:
        for segment in self.segments:
            if segment.group_times[-1] > ms or (inclusive and segment.group_times[-1] == ms):
                return max(self.begin, segment.first_after(ms, inclusive))
        return self.next_sequence

    def expire(self, now_ms: int) -> None:
        """Move the beginning past what is too old, and drop segments until the size fits."""
        oldest_ms = now_ms - self.retention.seconds * 1000  # a float: some keep things for ever
        self.begin = max(self.begin, self.after_time(oldest_ms, inclusive=True))
        while self.segments and (
            self.segments[0].next_sequence <= self.begin
            or (self.size > self.retention.bytes_max and len(self.segments) > 1)
        ):
            dropped = self.segments.pop(0)
            self.size -= len(dropped.data)
            self.begin = max(self.begin, dropped.next_sequence)


def by_sequence(segment: Segment) -> int:
    return segment.sequence


def by_offset(segment: Segment) -> int:
    return segment.offset
