"""The bytes of a segment file: how a durable partition is written, read and recovered.

    file      header (64 bytes), then groups, then zeros (the file is allocated ahead)
    group     head (48 bytes), one length per frame (u32 each), the frames themselves

A group is what one append wrote. Its head carries two checksums: one over itself, so that a wrong
length is not followed, and one over the rest. Frames are those of the log in memory, so offsets
count frame bytes only and mean the same in both. All numbers are big-endian.

Recovery walks the groups. Three things can stop it, and they mean different things:

* zeros, or the end of the file: the end of what was written;
* a group that ends beyond the file, or is broken with nothing intact behind it: a torn tail, cut;
* a broken group with intact ones behind it: damage. It is kept as a hole, and whoever reads there
  is told; what is intact is never given up.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
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
ZEROS = bytes(GROUP_HEAD_SIZE)


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
    torn_bytes: int  # behind the end: written in part, and cut


def recover(data: bytes | mmap, expected: int = 0) -> Recovered:
    """Walk a whole file. Every intact group is found; what is broken at the end is to be cut.

    `expected` is the sequence number of the first group: none is taken that counts from below.
    """
    groups: list[Group] = []
    holes: list[Hole] = []
    position = FILE_HEAD_SIZE
    with memoryview(data) as view:
        while not is_blank(view, position):
            group = sound_group(view, position, expected)
            if group is None:
                group = next_sound(data, view, position, expected)
                if group is None:
                    return Recovered(groups, holes, position, torn_size(view, position))
                holes.append(Hole(position, group.position))
            groups.append(group)
            position, expected = group.end, group.next_sequence
    return Recovered(groups, holes, position, 0)


def is_blank(view: memoryview, position: int) -> bool:
    """Whether nothing was ever written at a position."""
    head = bytes(view[position : position + GROUP_HEAD_SIZE])
    return head == ZEROS[: len(head)]


def sound_group(view: memoryview, position: int, expected: int) -> Group | None:
    """The intact group at a position, if there is one and it may stand there."""
    group = decode_group(view, position)
    if group is None or not group.events or group.sequence < expected:
        return None
    return group if is_intact(view, group) else None


def next_sound(data: bytes | mmap, view: memoryview, position: int, expected: int) -> Group | None:
    """The first intact group behind a broken one, wherever it is."""
    at = data.find(GROUP_MAGIC, position + 1)
    while at >= 0:
        group = sound_group(view, at, expected)
        if group is not None:
            return group
        at = data.find(GROUP_MAGIC, at + 1)
    return None


def torn_size(view: memoryview, position: int) -> int:
    """How many bytes at the end of a file were written in part."""
    written = np.flatnonzero(np.frombuffer(view, np.uint8)[position:])
    return int(written[-1]) + 1 if len(written) else 0
