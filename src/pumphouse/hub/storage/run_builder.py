"""A run in the making: from the groups of a segment to frames in a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pumphouse.hub.storage import segment as form
from pumphouse.hub.storage.memory_log import Run
from pumphouse.hub.storage.segment import Group


class Gathering:
    """A run in the making: frames of consecutive events, out of one or more groups."""

    def __init__(self, sequence: int, count_max: int, bytes_max: int) -> None:
        self.sequence = self.next_sequence = sequence
        self.count_left = count_max
        self.bytes_left = bytes_max
        self.pieces: list[bytes] = []
        self.lengths: list[npt.NDArray[np.int64]] = []

    @property
    def wants_more(self) -> bool:
        return self.count_left > 0 and self.bytes_left > 0

    def take(self, chunk: bytes, group: Group, base: int) -> bool:
        """Take what fits of a group; True if that was all of it."""
        sizes = form.frame_lengths(chunk, group, base)[self.next_sequence - group.sequence :]
        ends = sizes.cumsum()
        fit = int(np.searchsorted(ends, self.bytes_left, side="right"))
        # The first event goes out whatever its size: otherwise a large one would never be read.
        events = min(self.count_left, len(sizes), max(fit, 0 if self.pieces else 1))
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
        lengths = np.concatenate(self.lengths)
        starts = (lengths.cumsum() - lengths).astype(np.intp)
        return Run(bytearray().join(self.pieces), starts, self.sequence)
