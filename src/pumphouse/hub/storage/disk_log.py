"""The log of one partition, on disk.

It behaves as the log in memory does (memory_log.py), with two differences: an event is readable
only after the writer has reported it as stored, and reads come from files. How durable a stored
event is depends on the sync mode (writer.py).

    publish -> number the events, build the group -> Writer -> on_written: readable, acknowledged
    read    -> SparseIndex -> pread -> groups -> one run of frames
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS, Position
from pumphouse.hub.annotations import Batch
from pumphouse.hub.disk_errors import is_full, todo
from pumphouse.hub.frames.building import build_frames
from pumphouse.hub.options import Retention
from pumphouse.hub.positions import locate
from pumphouse.hub.storage import segment_format
from pumphouse.hub.storage.enqueued_times import TimeRange, expired_segments, stamp
from pumphouse.hub.storage.run import Run, RunBuilder
from pumphouse.hub.storage.segment_file import (
    SegmentFile,
    create_segment,
    open_segment,
    parse_file_name,
)
from pumphouse.hub.storage.segment_format import FileHead, Group
from pumphouse.hub.storage.writer import FileTask, Write, Writer, WriteStream
from pumphouse.logs import RepeatedFailures, line

log = logging.getLogger("pumphouse.hub")

FIRST_SEGMENT_BYTES = 1 << 20  # segments grow with the partition: a small partition stays small
SEGMENT_BYTES = 32 << 20
CURSORS_MAX = 64  # readers whose next position is remembered
CHUNK_SLACK = 64 * 1024  # read in addition to the requested frames, for the heads of their groups

Committed = Callable[[AmqpError | None], None]


class Cursor(NamedTuple):
    """The position of a group, and its segment."""

    segment: SegmentFile
    position: int


class DiskLog:
    """The events of one partition, in the files of one directory."""

    def __init__(
        self, directory: Path, hub_id: bytes, partition: int, retention: Retention, writer: Writer
    ) -> None:
        self.directory = directory
        self.hub_id = hub_id
        self.partition = partition
        self.retention = retention
        self.writer = writer
        self.segments: list[SegmentFile] = []
        self.begin = 0  # the oldest sequence number that is kept
        self.next_sequence = 0  # of readable events; staged_sequence is ahead while writing
        self.staged_sequence = 0
        self.staged_offset = 0
        self.staged_ms = NEVER_MS
        self.last_offset = -1
        self.last_ms = NEVER_MS
        self.size = 0
        # Set by a failed sync and never cleared: the content of the disk is unknown after it.
        self.failed: AmqpError | None = None
        self._stream = WriteStream()
        self._failures = RepeatedFailures()
        self._cursors: OrderedDict[int, Cursor] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DiskLog {self.directory.name} {self.begin}..{self.next_sequence}>"

    @property
    def empty(self) -> bool:
        return self.begin == self.next_sequence

    # -- opening and closing ---------------------------------------------------------------------

    def open(self) -> list[str]:
        """Open the segments of an earlier process; returns the problems found, as sentences."""
        problems: list[str] = []
        for path in sorted(self.directory.glob("*.log")):
            start = parse_file_name(path.name)
            if start is None:
                problems.append(f"{path.name}: not the name of a segment; ignored")
                continue
            expected = FileHead(self.hub_id, self.partition, *start, 0)
            try:
                segment = open_segment(path, expected, problems)
            except OSError as failure:
                problems.append(f"{path.name}: cannot be read ({failure.strerror}); ignored")
                continue
            if segment is not None:
                self.segments.append(segment)
        self.resume(problems)
        return problems

    def resume(self, problems: list[str]) -> None:
        """Set the counters from the opened segments; events missing between them are reported."""
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            self.seal(before)
            if before.index.next_sequence != after.head.sequence:
                problems.append(
                    f"{before.path.name}: events {before.index.next_sequence} to "
                    f"{after.head.sequence - 1} are missing"
                )
        if self.segments:
            last = self.segments[-1].index
            self.begin = self.segments[0].head.sequence
            self.next_sequence, self.last_offset = last.next_sequence, last.last_offset
            ranges = [times for s in self.segments if (times := time_range(s)) is not None]
            self.last_ms = ranges[-1].last_ms if ranges else NEVER_MS
            self.size = sum(segment.index.end for segment in self.segments)
        self.rewind()

    def seal(self, segment: SegmentFile) -> None:
        """End a segment that is not written to any more, on the writer's thread."""
        if segment.scanned:
            segment.full = True
            self.writer.put(FileTask(segment.seal, ignore))

    def close(self) -> None:
        """Close the files on the writer's thread, which may still have to write or sync them."""
        for segment in self.segments:
            self.writer.put(FileTask(segment.close, ignore))

    # -- writing ----------------------------------------------------------------------------------

    def publish(
        self, batch: Batch, now_ms: int, publisher: str | None, committed: Committed
    ) -> None:
        """Append a batch; `committed` is called after it is stored and readable, or has failed."""
        if self.failed is not None or not batch.groups:
            committed(self.failed)
            return
        now_ms, starts_segment = stamp(now_ms, self.staged_ms)
        sequence, offset = self.staged_sequence, self.staged_offset
        frames = build_frames(batch, sequence, offset, now_ms, publisher)
        content = segment_format.group_content(frames.data, frames.starts, sequence, offset, now_ms)
        segment = self.segment_for(content.group.end, starts_segment)
        group = content.group._replace(position=segment.staged_end)
        segment.staged_end = group.end
        self.staged_sequence = group.next_sequence
        self.staged_offset += len(frames.data)
        self.staged_ms = now_ms
        stream = self._stream

        def done(error: OSError | None) -> None:
            self.on_written(segment, group, stream, error, committed)

        # The writer's thread computes the checksum, and writes the frames without a copy.
        size = group.end - group.position
        self.writer.put(Write(stream, segment, group.position, size, content.pieces, done))

    def segment_for(self, size: int, new: bool) -> SegmentFile:
        """The segment for the next group, which has this size; if `new`, a new segment."""
        last = self.segments[-1] if self.segments else None
        has_room = last is not None and not last.full and last.staged_end + size <= last.allocated
        if last is not None and has_room and not new:
            return last
        if last is not None:
            last.full = True
            self.seal_if_written(last)
        doubled = FIRST_SEGMENT_BYTES if last is None else 2 * last.allocated
        allocated_max = max(FIRST_SEGMENT_BYTES, min(SEGMENT_BYTES, self.retention.bytes_max // 8))
        allocated = max(segment_format.FILE_HEAD_SIZE + size, min(doubled, allocated_max))
        head = FileHead(self.hub_id, self.partition, self.staged_sequence, self.staged_offset, 0)
        self.segments.append(create_segment(self.directory, head, allocated))
        return self.segments[-1]

    def seal_if_written(self, segment: SegmentFile) -> None:
        if segment.full and segment.index.end == segment.staged_end:
            self.writer.put(FileTask(segment.seal, ignore))

    def on_written(
        self,
        segment: SegmentFile,
        group: Group,
        stream: WriteStream,
        error: OSError | None,
        committed: Committed,
    ) -> None:
        """The writer's report: the group is stored, or it and all later groups are not."""
        if error is not None:
            committed(self.fail(stream, error))
            return
        segment.index.add(group)
        self.next_sequence = group.next_sequence
        self.last_offset, self.last_ms = group.last_offset, group.enqueued_ms
        self.size += group.end - group.position
        if segment.full:
            self.seal_if_written(segment)
        if failures := self._failures.succeeded("write"):
            recovered = line("log_write_recovered", directory=self.directory, failures=failures)
            log.info("%s", recovered)
        committed(None)

    def fail(self, stream: WriteStream, error: OSError) -> AmqpError:
        """Discard what is not stored. Only a failed sync fails the log permanently."""
        refusal = write_error(self.directory.name, error)
        if stream is self._stream:
            self._stream = WriteStream()
            if stream.sync_failed:
                self.failed = refusal
            else:
                self.report(error)
            self.rewind()
        return refusal

    def report(self, error: OSError) -> None:
        """Log a failed write: the producer may be on another machine."""
        count = self._failures.failed("write", error)
        if count is not None:
            log.warning(
                "%s",
                line(
                    "log_write_failed",
                    directory=self.directory,
                    error=error.strerror,
                    count=count,
                    todo=todo(error, "check the disk and the limits of the hub's process"),
                ),
            )

    def rewind(self) -> None:
        """Stage the next append directly after the readable events."""
        self.staged_offset = max((s.index.next_offset for s in self.segments[-2:]), default=0)
        while self.segments and not self.segments[-1].index.positions:
            self.writer.put(FileTask(self.segments.pop().delete, ignore))
        if self.segments:
            self.segments[-1].staged_end = self.segments[-1].index.end
        self.staged_sequence = self.next_sequence
        self.staged_ms = self.last_ms

    # -- reading ----------------------------------------------------------------------------------

    def read(self, sequence: int, count_max: int, bytes_max: int) -> Run | None:
        """Events from a sequence number on; None at the end. AmqpError if they are damaged."""
        sequence = max(sequence, self.begin)
        if sequence >= self.next_sequence or count_max <= 0:
            return None
        try:
            cursor = self._cursors.pop(sequence, None) or self.find(sequence)
            return self.read_run(cursor, sequence, count_max, bytes_max)
        except OSError as failure:
            raise self.read_error(f"sequence number {sequence}", failure) from None

    def read_error(self, position: str, failure: OSError) -> AmqpError:
        return AmqpError(
            "amqp:internal-error",
            f"Partition {self.partition} cannot be read at {position}: {failure.strerror}.",
        )

    def segment_of(self, sequence: int) -> SegmentFile:
        at = bisect_right(self.segments, sequence, key=lambda segment: segment.head.sequence)
        return self.segments[max(0, at - 1)]

    def find(self, sequence: int) -> Cursor:
        """The group with this event."""
        segment = self.segment_of(sequence)
        if not segment.index.positions or sequence >= segment.index.next_sequence:
            raise self.damage_error(segment, sequence)
        group = self.first_group(
            segment, segment.index.at_sequence(sequence), lambda g: sequence < g.next_sequence
        )
        if group is None or sequence < group.sequence:
            raise self.damage_error(segment, sequence)
        return Cursor(segment, group.position)

    def read_run(self, cursor: Cursor, sequence: int, count_max: int, bytes_max: int) -> Run:
        """One run of frames, from consecutive groups of one segment."""
        segment, base = cursor
        size = min(segment.index.end - base, bytes_max + CHUNK_SLACK)
        chunk = memoryview(segment.pread(base, size))
        run = RunBuilder(sequence, count_max, bytes_max)
        position = base
        while run.has_room and position < segment.index.end:
            group = segment_format.decode_group(chunk, position, base)
            if group is not None and group.end > base + len(chunk) and not run.pieces:
                # The first group is larger than the chunk: read the whole group.
                base = position
                chunk = memoryview(segment.pread(position, group.end - position))
            if group is None or group.sequence > run.next_sequence:
                break
            if group.end > base + len(chunk):
                break
            if not segment.trusted and not segment_format.is_intact(chunk, group, base):
                break
            if not run.take(chunk, group, base):
                break
            position = group.end
        if not run.pieces:
            raise self.damage_error(segment, sequence)
        self.remember(run.next_sequence, segment, position)
        return run.finish()

    def remember(self, sequence: int, segment: SegmentFile, position: int) -> None:
        """Remember the position of the event that a reader needs next."""
        if position < segment.index.end or not segment.full:
            self._cursors[sequence] = Cursor(segment, position)
            if len(self._cursors) > CURSORS_MAX:
                self._cursors.popitem(last=False)

    def damage_error(self, segment: SegmentFile, sequence: int) -> AmqpError:
        self.rescan(segment)
        return AmqpError(
            "amqp:internal-error",
            f"Partition {self.partition} is damaged at sequence number {sequence} (segment "
            f"{segment.path.name}). Read on from {self.next_readable(segment, sequence)}.",
        )

    def next_readable(self, segment: SegmentFile, sequence: int) -> str:
        """The first readable position after the damage, for an error text."""
        following = [s for s in self.segments if s.head.sequence > sequence]
        sequences = [
            group.sequence
            for damaged in segment.damage
            if (group := segment.group_at(damaged.end)) is not None and group.sequence > sequence
        ]
        sequences += [s.head.sequence for s in following]
        return f"sequence number {min(sequences)}" if sequences else "the end"

    # -- positions --------------------------------------------------------------------------------

    def locate(self, position: Position) -> int:
        """The sequence number at which reading from a position starts."""
        try:
            return locate(self, position)
        except OSError as failure:
            raise self.read_error(f"{position.kind} {position.value}", failure) from None

    def after_offset(self, offset: int, inclusive: bool) -> int:
        for segment in reversed(self.segments):
            if segment.head.offset <= offset and segment.index.positions:
                group = self.first_group(
                    segment, segment.index.at_offset(offset), lambda g: g.last_offset >= offset
                )
                return self.sequence_in(segment, group, offset, inclusive)
        return self.begin

    def sequence_in(
        self, segment: SegmentFile, group: Group | None, offset: int, inclusive: bool
    ) -> int:
        """The sequence number of the first event of a group after (or at) an offset."""
        if group is None:
            return segment.index.next_sequence
        chunk = segment.pread(group.lengths_at, 4 * group.events)
        sizes = segment_format.frame_lengths(chunk, group, group.lengths_at)
        offsets = group.offset + sizes.cumsum() - sizes
        side: Literal["left", "right"] = "left" if inclusive else "right"
        return group.sequence + int(offsets.searchsorted(offset, side=side))

    def after_time(self, ms: float, inclusive: bool, skipped: int = 0) -> int:
        def late_enough(group: Group) -> bool:
            return group.enqueued_ms > ms or (inclusive and group.enqueued_ms == ms)

        for segment in self.segments[skipped:]:
            last_ms = segment.index.last_ms
            if segment.index.positions and (last_ms > ms or (inclusive and last_ms == ms)):
                group = self.first_group(segment, segment.index.at_time(ms), late_enough)
                if group is not None:
                    return group.sequence
        return self.next_sequence

    def first_group(
        self, segment: SegmentFile, position: int, fits: Callable[[Group], bool]
    ) -> Group | None:
        """The first valid group at or after a position for which `fits` is true."""
        while position < segment.index.end:
            group = segment.group_at(position)
            if group is not None and fits(group):
                return group
            next_position = self.after_damage(segment, position) if group is None else group.end
            if next_position is None:
                return None
            position = next_position
        return None

    def after_damage(self, segment: SegmentFile, position: int) -> int | None:
        """The position of the next valid group, after one with a damaged head."""
        self.rescan(segment)
        return segment.after_damage(position)

    def rescan(self, segment: SegmentFile) -> None:
        """Scan a segment in which damage was found."""
        old_end = segment.index.end
        if segment.rescan():
            self.size += segment.index.end - old_end
            self._cursors.clear()

    # -- retention --------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Move the beginning past old events, and delete segments until the size fits."""
        oldest_ms = now_ms - self.retention.seconds * 1000  # a float: seconds may be infinite
        ranges = (time_range(segment) for segment in self.segments)
        expired = expired_segments(ranges, oldest_ms, now_ms)
        self.begin = max(self.begin, self.after_time(oldest_ms, True, expired))
        while len(self.segments) > 1 and (
            self.segments[0].index.next_sequence <= self.begin
            or self.size > self.retention.bytes_max
        ):
            dropped = self.segments.pop(0)
            self.size -= dropped.index.end
            self.begin = max(self.begin, dropped.index.next_sequence)
            self._cursors.clear()
            self.writer.put(FileTask(dropped.delete, ignore))


def time_range(segment: SegmentFile) -> TimeRange | None:
    """The times of a segment; None if it has no readable event."""
    index = segment.index
    return TimeRange(index.times[0], index.last_ms) if index.positions else None


def ignore(error: OSError | None) -> None:
    """Ignore the result of a task: the next start tolerates a missing index or a leftover file."""


def write_error(name: str, error: OSError) -> AmqpError:
    if is_full(error):
        return AmqpError(
            "amqp:resource-limit-exceeded",
            f"The disk is full: nothing of this batch was stored in partition {name}. "
            "Free some space and send it again.",
        )
    return AmqpError(
        "amqp:internal-error",
        f"Partition {name} cannot be written to ({error.strerror}): "
        "nothing of this batch was stored. Check the disk of the hub.",
    )
