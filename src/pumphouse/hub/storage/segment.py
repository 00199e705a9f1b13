"""The bytes of a segment file: how a durable partition is written, read and recovered.

    file      header (64 bytes), then groups, then zeros (the file is allocated ahead)
    group     head (48 bytes), one length per frame (u32 each), the frames themselves

A group is what one append wrote. Its head carries two checksums: one over itself, so that a wrong
length is not followed, and one over the rest. Frames are those of the log in memory, so offsets
count frame bytes only and mean the same in both. All numbers are big-endian.

Recovery walks the groups. Where there is no sound one it looks for the next, and what it skips can
mean different things:

* nothing but zeros up to the end of the file: the end of what was written;
* something, with nothing intact behind it: a torn tail, cut;
* anything (zeros too) with an intact group behind it: damage. It is kept as a hole, and whoever
  reads there is told; what is intact is never given up.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class FileHead(NamedTuple):
    """What a segment file says of itself."""

    hub: bytes  # sixteen bytes that name the hub for ever, also after another got its name
    partition: int
    sequence: int  # of the first event
    offset: int
    created_ms: int


def encode_file_head(head: FileHead) -> bytes:
    body = FILE_HEAD.pack(FILE_MAGIC, *head)
    return body + CRC.pack(zlib.crc32(body))


def decode_file_head(data: Bytes) -> FileHead | str:
    """The head, or a sentence that says what is wrong with it."""
    body = bytes(data[: FILE_HEAD.size])
    if len(data) < FILE_HEAD_SIZE:
        return f"the file has {len(data)} bytes, its header alone has {FILE_HEAD_SIZE}"
    if body[:7] != FILE_MAGIC[:7]:
        return f"it does not start as a segment does (found {body[:8]!r})"
    if body[7] != FORMAT:
        return f"its format is {body[7]}, this version reads format {FORMAT}"
    if CRC.unpack_from(data, FILE_HEAD.size)[0] != zlib.crc32(body):
        return "its header is damaged (checksum)"
    return FileHead(*FILE_HEAD.unpack(body)[1:])


class Group(NamedTuple):
    """Where one append lies in a file, and what it holds."""

    position: int
    frame_bytes: int
    events: int
    sequence: int
    offset: int
    enqueued_ms: int
    crc: int
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


def encode_group(
    frames: Bytes, starts: Sequence[int], sequence: int, offset: int, enqueued_ms: int
) -> bytes:
    """One append, ready to be written. `starts` may count from any origin."""
    places = np.asarray([*starts, starts[0] + len(frames)], dtype=np.int64)
    lengths = np.diff(places).astype(">u4").tobytes()
    crc = zlib.crc32(frames, zlib.crc32(lengths))
    head = GROUP_HEAD.pack(
        GROUP_MAGIC,
        len(frames),
        len(starts),
        sequence,
        offset,
        enqueued_ms,
        crc,
        len(frames) - (starts[-1] - starts[0]),
    )
    return b"".join((head, CRC.pack(zlib.crc32(head)), lengths, frames))


def decode_group(data: Bytes, position: int, base: int = 0) -> Group | None:
    """The group whose head is at `position` (of `data`, which starts at `base` of the file).

    None if there is no sound head here; whether its frames are sound is `is_intact`.
    """
    at = position - base
    head = bytes(data[at : at + GROUP_HEAD_SIZE])
    if len(head) < GROUP_HEAD_SIZE or head[:4] != GROUP_MAGIC:
        return None
    body, crc = head[: GROUP_HEAD.size], CRC.unpack_from(head, GROUP_HEAD.size)[0]
    if zlib.crc32(body) != crc:
        return None
    return Group(position, *GROUP_HEAD.unpack(body)[1:])


def is_intact(data: Bytes, group: Group, base: int = 0) -> bool:
    """Whether a group's lengths and frames are all there and as they were written."""
    held = data[group.lengths_at - base : group.end - base]
    return len(held) == group.end - group.lengths_at and zlib.crc32(held) == group.crc


def frame_lengths(data: Bytes, group: Group, base: int = 0) -> npt.NDArray[np.int64]:
    held = bytes(data[group.lengths_at - base : group.frames_at - base])
    return np.frombuffer(held, ">u4").astype(np.int64)


@dataclass(frozen=True, slots=True)
class Hole:
    """A damaged stretch of a file, with intact groups behind it."""

    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a walk through a segment file has found."""

    groups: list[Group]
    holes: list[Hole]
    end: int  # where the next group is to be written
    torn_bytes: int  # behind the end: written in part, or damaged since


class Expected(NamedTuple):
    """Where the next group should stand, and what it should count from."""

    position: int
    sequence: int
    offset: int


def recover(data: bytes, sequence: int = 0, offset: int = 0) -> Recovered:
    """Walk a whole file. Every intact group is found; what is broken at the end is to be cut.

    The numbers are those of the first group. Zeros are not yet the end: a stretch in the middle may
    have been wiped.
    """
    groups: list[Group] = []
    holes: list[Hole] = []
    here = Expected(FILE_HEAD_SIZE, sequence, offset)
    while (group := next_sound(data, here)) is not None:
        if group.position > here.position:
            holes.append(Hole(here.position, group.position))
        groups.append(group)
        here = Expected(group.end, group.next_sequence, group.offset + group.frame_bytes)
    return Recovered(groups, holes, here.position, torn_size(data, here.position))


def next_sound(data: bytes, here: Expected) -> Group | None:
    """The first intact group from here on, wherever it is."""
    view, at = memoryview(data), here.position
    while at >= 0:
        group = decode_group(view, at)
        if group is not None and follows(group, here) and is_intact(view, group):
            return group
        at = data.find(GROUP_MAGIC, at + 1)
    return None


def follows(group: Group, here: Expected) -> bool:
    """Whether a group may stand where it stands.

    Behind a hole it may not count from just anywhere. The bytes of the hole are those of the lost
    groups: a head for each, a length for each of their events, and their frames. So a stale copy,
    a piece of another file, or an event that holds the bytes of a group, is not taken for one.
    """
    gap = group.position - here.position
    events, frames = group.sequence - here.sequence, group.offset - here.offset
    if not group.events or events < 0 or frames < 0:
        return False
    heads, rest = divmod(gap - 4 * events - frames, GROUP_HEAD_SIZE)
    return rest == 0 and min(gap, 1) <= heads <= events


def torn_size(data: bytes, position: int) -> int:
    """How many bytes at the end of a file are something, but no group."""
    written = np.flatnonzero(np.frombuffer(data, np.uint8)[position:])
    return int(written[-1]) + 1 if len(written) else 0
