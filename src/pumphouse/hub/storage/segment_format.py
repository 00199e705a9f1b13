"""The format of a segment file: how a durable partition is encoded, decoded and recovered.

    file      header (64 bytes), then groups, then zeros (the file is allocated ahead)
    group     head (48 bytes), one length per frame (u32 each), the frames themselves

One append writes one group. Its head has two checksums: one of the head itself, so that recovery
does not use a damaged length, and one of the rest. Frames are the same as in the log in memory, so
offsets count frame bytes only and are the same in both. All numbers are big-endian.

Recovery scans the groups. Where it finds no valid group it searches for the next one. The skipped
bytes can be three things:

* zeros up to the end of the file: the end of what was written;
* other bytes, with no intact group after them: a torn tail, which is cut off;
* any bytes (zeros too) with an intact group after them: damage. They are kept as a damaged range
  and reading there fails; no intact group is ever lost.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Bytes = bytes | bytearray | memoryview

FORMAT = 1
FILE_MAGIC = b"PUMPSEG" + bytes([FORMAT])
GROUP_MAGIC = b"GRP1"
FILE_HEAD = struct.Struct(">8s16sIqqq8x")  # magic, hub, partition, sequence, offset, created
FILE_HEAD_SIZE = 64
# magic, frame bytes, events, sequence, offset, time, crc, bytes of the last frame
GROUP_HEAD = struct.Struct(">4sIIqqqII")
GROUP_HEAD_SIZE = 48
CRC = struct.Struct(">I")
# Zeros that are compared at once: `rstrip` takes 50 ms for the zeros of a new segment of 32 MiB.
ZEROS = bytes(64 * 1024)


class FileHead(NamedTuple):
    """The header of a segment file."""

    hub: bytes  # the sixteen bytes of the hub's id; a re-created hub gets another id
    partition: int
    sequence: int  # of the first event
    offset: int
    created_ms: int


def encode_file_head(head: FileHead) -> bytes:
    body = FILE_HEAD.pack(FILE_MAGIC, *head)
    return body + CRC.pack(zlib.crc32(body))


def decode_file_head(data: Bytes) -> FileHead | str:
    """The header, or a description of what is wrong with it."""
    body = bytes(data[: FILE_HEAD.size])
    if len(data) < FILE_HEAD_SIZE:
        return f"the file has {len(data)} bytes, fewer than its header of {FILE_HEAD_SIZE}"
    if body[:7] != FILE_MAGIC[:7]:
        return f"it is not a segment file (it starts with {body[:8]!r})"
    if body[7] != FORMAT:
        return f"unknown format {body[7]}: this version reads format {FORMAT}"
    if CRC.unpack_from(data, FILE_HEAD.size)[0] != zlib.crc32(body):
        return "its header is damaged (checksum)"
    return FileHead(*FILE_HEAD.unpack(body)[1:])


class Group(NamedTuple):
    """The head of one group, and its position in the file."""

    position: int
    frame_bytes: int
    events: int
    sequence: int
    offset: int
    enqueued_ms: int
    crc: int  # of the lengths and frames
    last_frame_bytes: int

    @property
    def last_offset(self) -> int:
        return self.offset + self.frame_bytes - self.last_frame_bytes

    @property
    def lengths_at(self) -> int:
        return self.position + GROUP_HEAD_SIZE

    @property
    def frames_at(self) -> int:
        return self.lengths_at + 4 * self.events

    @property
    def end(self) -> int:
        return self.frames_at + self.frame_bytes

    @property
    def next_sequence(self) -> int:
        return self.sequence + self.events


class GroupContent(NamedTuple):
    """A group that is not encoded yet, and its position in the file."""

    group: Group  # without the checksum
    lengths: bytes
    frames: Bytes

    def pieces(self) -> tuple[Bytes, Bytes, Bytes]:
        """The encoded group, in pieces that need not be joined. The checksum is computed now."""
        crc = zlib.crc32(self.frames, zlib.crc32(self.lengths))
        _, *numbers = self.group._replace(crc=crc)
        head = GROUP_HEAD.pack(GROUP_MAGIC, *numbers)
        return head + CRC.pack(zlib.crc32(head)), self.lengths, self.frames


def group_content(
    frames: Bytes,
    starts: Sequence[int] | npt.NDArray[np.int64],
    sequence: int,
    offset: int,
    enqueued_ms: int,
) -> GroupContent:
    """The group of some frames, at position 0. `starts` may count from any origin."""
    import numpy as np  # not needed to start a hub, and slow to import

    begins = np.asarray(starts, dtype=np.int64)
    end = int(begins[0]) + len(frames)
    lengths = np.diff(begins, append=end).astype(">u4").tobytes()
    last = end - int(begins[-1])
    group = Group(0, len(frames), len(starts), sequence, offset, enqueued_ms, 0, last)
    return GroupContent(group, lengths, frames)


def encode_group(
    frames: Bytes,
    starts: Sequence[int] | npt.NDArray[np.int64],
    sequence: int,
    offset: int,
    enqueued_ms: int,
) -> bytes:
    """One group, ready to be written."""
    return b"".join(group_content(frames, starts, sequence, offset, enqueued_ms).pieces())


def decode_group(data: Bytes, position: int, base: int = 0) -> Group | None:
    """The group whose head is at `position` of the file; None if there is no valid head.

    `data` starts at `base` of the file. `is_intact` checks the frames.
    """
    at = position - base
    head = bytes(data[at : at + GROUP_HEAD_SIZE])
    if len(head) < GROUP_HEAD_SIZE or not head.startswith(GROUP_MAGIC):
        return None
    body = head[: GROUP_HEAD.size]
    if zlib.crc32(body) != int.from_bytes(head[GROUP_HEAD.size :]):
        return None
    return Group(position, *GROUP_HEAD.unpack(body)[1:])


def is_intact(data: Bytes, group: Group, base: int = 0) -> bool:
    """Whether the lengths and frames of a group are complete and unchanged."""
    stored = data[group.lengths_at - base : group.end - base]
    return len(stored) == group.end - group.lengths_at and zlib.crc32(stored) == group.crc


def frame_lengths(data: Bytes, group: Group, base: int = 0) -> npt.NDArray[np.int64]:
    return decode_lengths(data[group.lengths_at - base : group.frames_at - base])


def decode_lengths(stored: Bytes) -> npt.NDArray[np.int64]:
    """The lengths of frames, as a group stores them."""
    import numpy as np

    return np.frombuffer(stored, ">u4").astype(np.int64)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Damaged bytes of a file, with intact groups after them."""

    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of scanning a segment file."""

    groups: list[Group]
    damage: list[DamagedRange]
    end: int  # where the next group goes
    torn_bytes: int  # after the end: a partial write, or later damage


class ExpectedGroup(NamedTuple):
    """The position, first sequence number and offset of the next group if nothing is damaged."""

    position: int
    sequence: int
    offset: int


def recover(data: bytes, sequence: int = 0, offset: int = 0) -> Recovery:
    """Scan a whole file for every intact group. The caller cuts a torn tail off.

    `sequence` and `offset` are those of the first group. Zeros do not end the scan: bytes in
    the middle may have been overwritten with zeros.
    """
    groups: list[Group] = []
    damage: list[DamagedRange] = []
    expected = ExpectedGroup(FILE_HEAD_SIZE, sequence, offset)
    end = content_end(data)
    while (group := next_intact(data, end, expected)) is not None:
        if group.position > expected.position:
            damage.append(DamagedRange(expected.position, group.position))
        groups.append(group)
        expected = ExpectedGroup(group.end, group.next_sequence, group.offset + group.frame_bytes)
    return Recovery(groups, damage, expected.position, max(0, end - expected.position))


def next_intact(data: bytes, end: int, expected: ExpectedGroup) -> Group | None:
    """The first intact group at or after the expected position; after `end` are only zeros."""
    view, at = memoryview(data), expected.position
    while at >= 0:
        group = decode_group(view, at)
        if group is not None and follows(group, expected) and is_intact(view, group):
            return group
        at = data.find(GROUP_MAGIC, at + 1, end)
    return None


def follows(group: Group, expected: ExpectedGroup) -> bool:
    """Whether the numbers of a group fit its position in the file.

    The damaged bytes before a group are those of the lost groups: a head for each group, a length
    for each event, and the frames. The numbers of the group must match the size of these bytes. So
    a stale copy, a piece of another file, or an event whose body holds a group, is not accepted.
    """
    gap = group.position - expected.position
    events, frame_bytes = group.sequence - expected.sequence, group.offset - expected.offset
    if not group.events or events < 0 or frame_bytes < 0:
        return False
    heads, rest = divmod(gap - 4 * events - frame_bytes, GROUP_HEAD_SIZE)
    return rest == 0 and min(gap, 1) <= heads <= events


def content_end(data: bytes) -> int:
    """The size of some data without its trailing zeros."""
    end = len(data)
    while data.endswith(ZEROS, 0, end):
        end -= len(ZEROS)
    start = max(0, end - len(ZEROS))
    return start + len(data[start:end].rstrip(b"\0"))
