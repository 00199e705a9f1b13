"""Runs: consecutive events read out of a log, and how one is built from groups on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pumphouse.hub.storage.segment_format import GROUP_HEAD_SIZE, Group, decode_lengths

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Run(NamedTuple):
    """Consecutive events out of a log. The frames are a copy that the caller may change."""

    frames: bytearray
    starts: npt.NDArray[np.intp]  # where each frame starts
    sequence: int  # of the first event


class RunBuilder:
    """Collects the frames of consecutive events from one or more groups.

    The frames are copied once, into the run; their lengths are decoded together.
    """

    def __init__(self, sequence: int, count_max: int, bytes_max: int) -> None:
        self.sequence = self.next_sequence = sequence
        self.count_left = count_max
        self.bytes_left = bytes_max
        self.pieces: list[memoryview] = []
        self.lengths: list[memoryview] = []  # of each frame, as they are stored

    @property
    def has_room(self) -> bool:
        return self.count_left > 0 and self.bytes_left > 0

    def take(self, chunk: memoryview, group: Group, base: int) -> bool:
        """Take the events of a group that fit; True if all of them fit.

        `chunk` holds the group; its first byte is at position `base` of the file.
        """
        lengths_at = group.position + GROUP_HEAD_SIZE - base
        frames_at = lengths_at + 4 * group.events
        lengths = chunk[lengths_at:frames_at]
        frames = chunk[frames_at : frames_at + group.frame_bytes]
        is_whole = self.next_sequence == group.sequence
        if is_whole and group.events <= self.count_left and len(frames) <= self.bytes_left:
            self.add(lengths, frames)
            return True
        return self.take_some(lengths, frames, self.next_sequence - group.sequence)

    def take_some(self, lengths: memoryview, frames: memoryview, skipped: int) -> bool:
        """Take the events of a group after the first ones, as many as fit."""
        ends = decode_lengths(lengths).cumsum()
        start = int(ends[skipped - 1]) if skipped else 0
        fitting_events = int(ends.searchsorted(start + self.bytes_left, side="right")) - skipped
        # The first event is taken whatever its size: otherwise a large one could not be read.
        left = len(ends) - skipped
        events = min(self.count_left, left, max(fitting_events, 0 if self.pieces else 1))
        if not events:
            return False
        end = skipped + events
        self.add(lengths[4 * skipped : 4 * end], frames[start : int(ends[end - 1])])
        return events == left

    def add(self, lengths: memoryview, frames: memoryview) -> None:
        self.lengths.append(lengths)
        self.pieces.append(frames)
        events = len(lengths) // 4
        self.next_sequence += events
        self.count_left -= events
        self.bytes_left -= len(frames)

    def finish(self) -> Run:
        import numpy as np  # not needed to start a hub, and slow to import

        lengths = decode_lengths(b"".join(self.lengths))
        starts = (lengths.cumsum() - lengths).astype(np.intp)
        return Run(bytearray().join(self.pieces), starts, self.sequence)
