"""Runs: consecutive events read out of a log, and how one is built from groups on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pumphouse.hub.storage.segment_format import Group, frame_lengths

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Run(NamedTuple):
    """Consecutive events out of a log. The frames are a copy that the caller may change."""

    frames: bytearray
    starts: npt.NDArray[np.intp]  # where each frame starts
    sequence: int  # of the first event


class RunBuilder:
    """Collects the frames of consecutive events from one or more groups."""

    def __init__(self, sequence: int, count_max: int, bytes_max: int) -> None:
        self.sequence = self.next_sequence = sequence
        self.count_left = count_max
        self.bytes_left = bytes_max
        self.pieces: list[bytes] = []
        self.lengths: list[npt.NDArray[np.int64]] = []

    @property
    def has_room(self) -> bool:
        return self.count_left > 0 and self.bytes_left > 0

    def take(self, chunk: bytes, group: Group, base: int) -> bool:
        """Take the events of a group that fit; True if all of them fit.

        `chunk` holds the group; its first byte is at position `base` of the file.
        """
        sizes = frame_lengths(chunk, group, base)[self.next_sequence - group.sequence :]
        ends = sizes.cumsum()
        fitting_events = int(ends.searchsorted(self.bytes_left, side="right"))
        # The first event is taken whatever its size: otherwise a large one could not be read.
        events = min(self.count_left, len(sizes), max(fitting_events, 0 if self.pieces else 1))
        if not events:
            return False
        size = int(ends[events - 1])
        start = group.end - int(ends[-1]) - base
        self.pieces.append(chunk[start : start + size])
        self.lengths.append(sizes[:events])
        self.next_sequence += events
        self.count_left -= events
        self.bytes_left -= size
        return events == len(sizes)

    def finish(self) -> Run:
        import numpy as np  # not needed to start a hub, and slow to import

        lengths = np.concatenate(self.lengths)
        starts = (lengths.cumsum() - lengths).astype(np.intp)
        return Run(bytearray().join(self.pieces), starts, self.sequence)
