"""The log of one partition, in memory.

Segments hold events as complete frames in sequence (see annotations.py), with an index of their
starts. Segments only grow; retention moves the beginning forward and drops whole segments.

    sequence  0      1      2      3      4      5      6      7
             [------ segment ------------][------ segment -----------
                     ^ begin: older ones have expired                ^ next
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS, Position
from pumphouse.hub.annotations import Batch
from pumphouse.hub.frames.building import Frames, build_frames
from pumphouse.hub.options import Retention
from pumphouse.hub.positions import locate
from pumphouse.hub.storage.enqueued_times import TimeRange, expired_segments, stamp
from pumphouse.hub.storage.run import Run

# Retention drops whole segments. Small segments make it more exact; large segments keep the list
# of segments short.
SEGMENT_BYTES = 1 << 20
# A segment after a full one gets memory for this many times the size at which it is full: the last
# batch exceeds that size. Memory that is not used takes no space.
SPARE = 1.25

DEFAULT_RETENTION = Retention()


class Segment:
    """Consecutive events of a partition, as frames with an index."""

    __slots__ = ("append_firsts", "append_times", "data", "end", "expected", "offset", "sequence",
                 "starts")  # fmt: skip

    def __init__(self, sequence: int, offset: int, expected: int = 0) -> None:
        self.sequence = sequence
        self.offset = offset
        self.expected = expected  # the least size of `data` after it grows
        self.data = memoryview(b"")
        self.end = 0  # of the frames in `data`
        self.starts: array[int] = array("I")
        # The events of one append have the same time, so one time is kept per append.
        self.append_firsts: array[int] = array("I")
        self.append_times: array[int] = array("q")

    def append(self, frames: Frames, enqueued_ms: int) -> None:
        self.append_firsts.append(len(self.starts))
        self.append_times.append(enqueued_ms)
        if isinstance(frames.starts, list):
            self.starts.extend(frames.starts)
        else:
            self.starts.frombytes(frames.starts.astype("u4").data.cast("B"))
        if not frames.in_place:
            self.reserve(len(frames.data))[:] = frames.data
        self.end += len(frames.data)

    def reserve(self, size: int) -> memoryview:
        """Memory after the frames. Frames that are written to it are added by `append`."""
        end = self.end + size
        if end > len(self.data):
            self.grow(end)
        return self.data[self.end : end]

    def grow(self, size: int) -> None:
        import numpy as np  # not needed to start a hub, and slow to import

        grown = np.empty(max(size, self.expected), np.uint8).data
        grown[: self.end] = self.data[: self.end]
        self.data = grown
        self.expected = 2 * len(grown)

    @property
    def next_sequence(self) -> int:
        return self.sequence + len(self.starts)

    def first_after(self, ms: float, inclusive: bool) -> int:
        """The sequence number of the first event enqueued after (or at) a time."""
        append_number = (bisect_left if inclusive else bisect_right)(self.append_times, ms)
        if append_number == len(self.append_times):
            return self.next_sequence
        return self.sequence + self.append_firsts[append_number]

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run:
        """At least one event and at most `count_max`; more than one only within `bytes_max`."""
        import numpy as np  # not needed to start a hub, and slow to import

        first = sequence - self.sequence
        starts, begin = self.starts, self.starts[first]
        stop = min(first + count_max, len(starts))
        end = self.end if stop == len(starts) else starts[stop]
        if end - begin > bytes_max:
            stop = max(first + 1, bisect_right(starts, begin + bytes_max, first, stop) - 1)
            end = self.end if stop == len(starts) else starts[stop]
        # Slicing copies the index: an array that numpy refers to could not grow any more.
        positions = np.frombuffer(starts[first:stop], np.uint32).astype(np.intp)
        return Run(bytearray(self.data[begin:end]), positions - begin, sequence)


class MemoryLog:
    """The events of one partition, in memory."""

    __slots__ = ("begin", "last_ms", "last_offset", "next_offset", "next_sequence", "retention",
                 "segment_bytes", "segments", "size")  # fmt: skip

    def __init__(
        self, retention: Retention = DEFAULT_RETENTION, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.retention = retention
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.begin = 0  # the oldest sequence number that is kept
        self.next_sequence = 0
        self.next_offset = 0
        self.last_offset = -1
        self.last_ms = NEVER_MS
        self.size = 0

    def __repr__(self) -> str:
        return f"<MemoryLog {self.begin}..{self.next_sequence} {self.size} bytes>"

    @property
    def empty(self) -> bool:
        return self.begin == self.next_sequence

    def append(self, batch: Batch, now_ms: int, publisher: str | None = None) -> int:
        """Add events; returns the sequence number of the first. They are readable at once."""
        if not batch.groups:
            return self.next_sequence
        first = self.next_sequence
        now_ms, starts_segment = stamp(now_ms, self.last_ms)
        segment = self.writable_segment(starts_segment)
        frames = build_frames(
            batch, first, self.next_offset, now_ms, publisher, segment.offset, segment.reserve
        )
        segment.append(frames, now_ms)
        self.last_offset = segment.offset + int(frames.starts[-1])
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
        """Append a batch and report it at once."""
        self.append(batch, now_ms, publisher)
        committed(None)

    def close(self) -> None:
        """Nothing to close."""

    def writable_segment(self, new: bool) -> Segment:
        """The last segment; a new one if that is requested, or if the last is full."""
        last = self.segments[-1] if self.segments else None
        full = last is not None and last.end >= self.segment_bytes
        if last is None or full or new:
            expected = int(self.segment_bytes * SPARE) if full else 0
            last = Segment(self.next_sequence, self.next_offset, expected)
            self.segments.append(last)
        return last

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run | None:
        """Events from a sequence number on, without expired ones; None at the end."""
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
        event_number = (bisect_left if inclusive else bisect_right)(
            segment.starts, offset - segment.offset
        )
        return max(self.begin, segment.sequence + event_number)

    def after_time(self, ms: float, inclusive: bool, skipped: int = 0) -> int:
        for segment in self.segments[skipped:]:
            if segment.append_times[-1] > ms or (inclusive and segment.append_times[-1] == ms):
                return max(self.begin, segment.first_after(ms, inclusive))
        return self.next_sequence

    def expire(self, now_ms: int) -> None:
        """Move the beginning past old events, and drop segments until the size fits."""
        oldest_ms = now_ms - self.retention.seconds * 1000  # a float: seconds may be infinite
        ranges = (TimeRange(s.append_times[0], s.append_times[-1]) for s in self.segments)
        expired = expired_segments(ranges, oldest_ms, now_ms)
        self.begin = max(self.begin, self.after_time(oldest_ms, True, expired))
        while self.segments and (
            self.segments[0].next_sequence <= self.begin
            or (self.size > self.retention.bytes_max and len(self.segments) > 1)
        ):
            dropped = self.segments.pop(0)
            self.size -= dropped.end
            self.begin = max(self.begin, dropped.next_sequence)


def by_sequence(segment: Segment) -> int:
    return segment.sequence


def by_offset(segment: Segment) -> int:
    return segment.offset
