"""A sparse index of one segment: finds the group of a sequence number, an offset or a time.

Every 64 KiB of a segment has one entry; from there the search follows the group heads. The index
is in memory and, after the segment is full, also in a small file beside it, so that a restart need
not read gigabytes.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable

from pumphouse.hub.storage.segment_format import Group

STRIDE_BYTES = 64 * 1024
MAGIC = b"PUMPIDX\x01"
# magic, entries, end, next sequence, next offset, last time, last offset
HEAD = struct.Struct(">8sIQqqqq")


class SparseIndex:
    """Positions of some groups, by sequence number, offset and time; and the segment's end."""

    __slots__ = ("end", "last_ms", "last_offset", "next_offset", "next_sequence", "offsets",
                 "positions", "sequences", "times")  # fmt: skip

    def __init__(self, sequence: int, offset: int, end: int) -> None:
        self.end = end
        self.next_sequence = sequence
        self.next_offset = offset
        self.last_offset = -1
        self.last_ms = 0
        self.positions: array[int] = array("Q")
        self.sequences: array[int] = array("q")
        self.offsets: array[int] = array("q")
        self.times: array[int] = array("q")

    def add(self, group: Group) -> None:
        """Add a group that was written."""
        if not self.positions or group.position - self.positions[-1] >= STRIDE_BYTES:
            self.positions.append(group.position)
            self.sequences.append(group.sequence)
            self.offsets.append(group.offset)
            self.times.append(group.enqueued_ms)
        self.end = group.end
        self.next_sequence = group.next_sequence
        self.next_offset = group.offset + group.frame_bytes
        self.last_offset = group.last_offset
        self.last_ms = group.enqueued_ms

    def starts_at(self, position: int, sequence: int, offset: int) -> bool:
        """Whether the first entry has these numbers; if not, the index is of another segment."""
        first = [column[:1].tolist() for column in (self.positions, self.sequences, self.offsets)]
        return first == [[position], [sequence], [offset]]

    def at_sequence(self, sequence: int) -> int:
        """The position of a group at or before the one with this event."""
        return self._at(self.sequences, sequence)

    def at_offset(self, offset: int) -> int:
        return self._at(self.offsets, offset)

    def at_time(self, ms: float) -> int:
        # Groups with the same time may be on both sides of an entry: start before them all.
        return self._at(self.times, ms - 1)

    def _at(self, column: array[int], value: float) -> int:
        return self.positions[max(0, bisect_right(column, value) - 1)]


def encode_index(index: SparseIndex) -> bytes:
    head = HEAD.pack(
        MAGIC,
        len(index.positions),
        index.end,
        index.next_sequence,
        index.next_offset,
        index.last_ms,
        index.last_offset,
    )
    body = head + b"".join(big_endian(column) for column in columns(index))
    return body + struct.pack(">I", zlib.crc32(body))


def decode_index(data: bytes) -> SparseIndex | None:
    """The index, or None if the bytes are not a valid one: the segment is then scanned."""
    if len(data) < HEAD.size + 4 or data[:8] != MAGIC:
        return None
    if struct.unpack_from(">I", data, len(data) - 4)[0] != zlib.crc32(data[:-4]):
        return None
    _, entries, end, next_sequence, next_offset, last_ms, last_offset = HEAD.unpack_from(data)
    index = SparseIndex(next_sequence, next_offset, end)
    index.last_ms, index.last_offset = last_ms, last_offset
    for column_number, column in enumerate(columns(index)):
        start = HEAD.size + 8 * entries * column_number
        column.frombytes(data[start : start + 8 * entries])
        to_big_endian(column)
    return index


def columns(index: SparseIndex) -> Iterable[array[int]]:
    return index.positions, index.sequences, index.offsets, index.times


def big_endian(column: array[int]) -> bytes:
    copied = column[:]
    to_big_endian(copied)
    return copied.tobytes()


def to_big_endian(column: array[int]) -> None:
    """Change the byte order of a column between that of the machine and big endian."""
    if sys.byteorder == "little":
        column.byteswap()
