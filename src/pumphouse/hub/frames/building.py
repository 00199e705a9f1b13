"""Builds the frames of a log from the events of a batch.

    parse_payload -> Batch -> build_frames -> log
                              ^^^^^^^^^^^^ this module

annotations.py shows the parts of a frame. Events of one size that are at equal distances in their
payload are built together (uniform_events.py), others one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pumphouse.amqp.codec import encode
from pumphouse.amqp.types import Symbol
from pumphouse.errors import AmqpError
from pumphouse.hub.annotations import (
    OFFSET_KEY,
    PARTITION_KEY,
    PUBLISHER_KEY,
    SEQUENCE_KEY,
    TIME_KEY,
    Batch,
)
from pumphouse.hub.frames.uniform_bodies import UniformBodies

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

OFFSET_DIGITS_MAX = 20
HUB_BYTES_MAX = 2048  # the most that the hub adds to one event (longest key and publisher)
CHANNEL_AT, HANDLE_AT, DELIVERY_AT, MESSAGE_AT = 6, 15, 20, 35

# size | doff 2, type 0, channel | transfer, list8 of 22 bytes, 11 fields | handle | delivery-id |
# tag of one zero byte (a constant: the official client stores every distinct tag for ever) |
# format 0, settled true, more false | five nulls
FRAME_REST = (
    b"\x02\x00\x00\x00"
    b"\x00\x53\x14\xc0\x16\x0b"
    b"\x70\x00\x00\x00\x00\x70\x00\x00\x00\x00"
    b"\xa0\x01\x00\x43\x41\x42\x40\x40\x40\x40\x40"
)
SECTION_SMALL, SECTION_WIDE = b"\x00\x53\x72\xc1", b"\x00\x53\x72\xd1"
SEQUENCE_ENTRY = b"\xa3\x15" + SEQUENCE_KEY + b"\x81"
OFFSET_ENTRY = b"\xa3\x0c" + OFFSET_KEY + b"\xa1"
TIME_ENTRY = b"\xa3\x13" + TIME_KEY + b"\x83"

# The most parts of frames, and the most rows, that are held beside the frames themselves.
PARTS_MAX, ROWS_MAX = 8192, 4096

# Templates of frames that are kept for later batches, of headers up to this size.
TEMPLATES_MAX, KEPT_HEADER_BYTES_MAX = 512, 64

SIZE_BYTES, SEQUENCE_BYTES = 4, 8
HUB_ENTRIES = 6  # sequence, offset and time: three keys and three values


Reserve = Callable[[int], memoryview]


def entry(name: bytes, text: str) -> bytes:
    """One annotation entry with a text value, encoded."""
    return encode(Symbol(name.decode())) + encode(text)


class Frames(NamedTuple):
    """Events as consecutive frames, and the start of each."""

    data: bytearray | memoryview
    starts: list[int] | npt.NDArray[np.int64]
    in_place: bool = False  # whether `data` is the start of the reserved memory


def build_frames(
    batch: Batch,
    sequence: int,
    offset: int,
    enqueued_ms: int,
    publisher: str | None = None,
    origin: int = 0,
    reserve: Reserve | None = None,
) -> Frames:
    """The frames of a batch whose first event gets `sequence` and `offset`.

    The offset of an event is the position of its frame, in bytes, counted from the first frame ever
    written to the partition. `starts` count from `origin`, the first offset of their segment.
    `reserve` returns memory of a size; uniform events are written to it without a copy.
    """
    time_entry = TIME_ENTRY + enqueued_ms.to_bytes(8, "big", signed=True)
    builder = FrameBuilder(sequence, offset, origin, reserve)
    for prefix, bodies in batch.groups:
        tail = time_entry + key_entries(prefix.key, publisher) + prefix.kept
        count = HUB_ENTRIES + 2 * (prefix.key is not None) + 2 * (publisher is not None)
        kind = FrameKind(prefix.header, count + prefix.kept_count, tail)
        if isinstance(bodies, UniformBodies):
            builder.add_uniform(kind, bodies)
        else:
            builder.add(kind, bodies)
    return builder.frames()


class FrameKind(NamedTuple):
    """The bytes that the frames of a group have in common."""

    header: bytes
    keys_and_values: int  # of the annotations
    tail: bytes  # the annotations after the offset

    def template(self, width: int) -> FrameTemplate:
        return template(self.header, self.keys_and_values, width, len(self.tail))


class FrameBuilder:
    """Appends the frames of groups of events, with consecutive numbers and offsets."""

    def __init__(
        self, sequence: int, offset: int, origin: int, reserve: Reserve | None = None
    ) -> None:
        self.sequence, self.offset, self.origin = sequence, offset, origin
        self.reserve = reserve
        self._data = bytearray()
        self._parts: list[bytes] = []  # not joined yet
        self._starts: list[int] = []
        # The only frames, which need not be copied.
        self._rows: tuple[memoryview, npt.NDArray[np.int64]] | None = None

    def add(self, kind: FrameKind, bodies: Sequence[bytes]) -> None:
        """Add frames one by one."""
        self.keep_rows()
        sequence, offset, origin, width = self.sequence, self.offset, self.origin, 0
        for body in bodies:
            digits = b"%d" % offset
            if len(digits) != width:
                width = len(digits)
                pack, before, after, overhead = kind.template(width)
            size = overhead + len(body)
            self._parts.append(pack(size, before, sequence, after, digits, kind.tail))
            self._parts.append(body)
            self._starts.append(offset - origin)
            sequence += 1
            offset += size
            if len(self._parts) >= PARTS_MAX:
                self.join()
        self.sequence, self.offset = sequence, offset

    def add_uniform(self, kind: FrameKind, bodies: UniformBodies) -> None:
        """Add frames of one size together.

        Each portion has offsets of as many digits, and sequence numbers with the same first bytes.
        """
        from pumphouse.hub.frames.uniform_events import (
            SEQUENCES_MAX,
            RowTemplate,
            concatenate,
            write_rows,
        )

        memory: memoryview | None = None
        all_starts: list[npt.NDArray[np.int64]] = []
        first = begin = 0
        while first < len(bodies):
            digits = b"%d" % self.offset
            pack, before, after, overhead = kind.template(len(digits))
            size = overhead + bodies.size
            same_width = -(-(10 ** len(digits) - self.offset) // size)
            same_start = SEQUENCES_MAX - self.sequence % SEQUENCES_MAX
            count = min(len(bodies) - first, ROWS_MAX, same_width, same_start)
            if memory is None:
                all_fit = same_width >= len(bodies)
                memory = self.memory_for(
                    len(bodies) * size if all_fit else self.largest_size(kind, bodies)
                )
            head = pack(size, before, self.sequence, after, digits, kind.tail)
            sequence_at = SIZE_BYTES + len(before)
            offset_at = sequence_at + SEQUENCE_BYTES + len(after)
            row = RowTemplate(head, sequence_at, offset_at, len(digits))
            end = begin + count * size
            offsets = write_rows(
                memory[begin:end], row, bodies, first, count, self.sequence, self.offset
            )
            all_starts.append(offsets - self.origin)
            first += count
            begin = end
            self.sequence += count
            self.offset += count * size
        assert memory is not None  # there are many bodies
        self.add_rows(memory[:begin], concatenate(all_starts))

    def largest_size(self, kind: FrameKind, bodies: UniformBodies) -> int:
        """The bytes of a group if all offsets had as many digits as the last one."""
        largest = kind.template(OFFSET_DIGITS_MAX).overhead + bodies.size
        last = b"%d" % (self.offset + len(bodies) * largest)
        return len(bodies) * (kind.template(len(last)).overhead + bodies.size)

    def memory_for(self, size: int) -> memoryview:
        """Memory for the frames of a group. Reserved memory is only used if it is the first."""
        if self.reserve is None or self._starts or self._rows is not None:
            from pumphouse.hub.frames.uniform_events import new_memory

            return new_memory(size)
        return self.reserve(size)

    def add_rows(self, rows: memoryview, starts: npt.NDArray[np.int64]) -> None:
        self.keep_rows()
        if self._starts:
            self.join()
            self._data += rows
            self._starts.extend(starts.tolist())
        else:
            self._rows = rows, starts

    def keep_rows(self) -> None:
        """Copy rows to the other frames, because they are not the only ones."""
        if self._rows is not None:
            (rows, starts), self._rows = self._rows, None
            self._data += rows
            self._starts.extend(starts.tolist())

    def join(self) -> None:
        """Join the parts. Usually this happens one time, and nothing is copied again."""
        if self._data:
            self._data += b"".join(self._parts)
        else:
            self._data = self._data.join(self._parts)
        self._parts.clear()

    def frames(self) -> Frames:
        if self._rows is not None:
            return Frames(*self._rows, in_place=self.reserve is not None)
        self.join()
        return Frames(self._data, self._starts)


def check_growth(batch: Batch, publisher: str | None, bytes_max: int) -> None:
    """AmqpError if annotations need more than `bytes_max`, as for many tiny events with a key."""
    if batch.event_count * HUB_BYTES_MAX <= bytes_max:
        return
    size = 0
    for prefix, bodies in batch.groups:
        tail = len(key_entries(prefix.key, publisher)) + len(prefix.kept)
        size += len(bodies) * template(prefix.header, 0, OFFSET_DIGITS_MAX, tail).overhead
    if size > bytes_max:
        raise AmqpError(
            "amqp:link:message-size-exceeded",
            f"The {batch.event_count} events of this batch would need {size} bytes for their "
            f"annotations alone, which repeat its partition key; {bytes_max} are allowed. "
            "Send fewer events at a time, or use a shorter key.",
        )


class FrameTemplate(NamedTuple):
    """The constant parts of frames whose offsets have the same number of digits.

    size | before | sequence | after | digits of the offset | tail | the event's own sections
    """

    pack: Callable[[int, bytes, int, bytes, bytes, bytes], bytes]
    before: bytes
    after: bytes
    overhead: int  # bytes of a frame without the event's own sections


def template(header: bytes, count: int, width: int, tail_size: int) -> FrameTemplate:
    """The template of a kind of frame. Those of the usual kinds are kept."""
    if len(header) > KEPT_HEADER_BYTES_MAX:
        return make_template(header, count, width, tail_size)
    return kept_template(header, count, width, tail_size)


def make_template(header: bytes, count: int, width: int, tail_size: int) -> FrameTemplate:
    after = OFFSET_ENTRY + bytes((width,))
    entries = len(SEQUENCE_ENTRY) + SEQUENCE_BYTES + len(after) + width + tail_size
    if entries < 255 and count <= 255:
        annotations = SECTION_SMALL + bytes((entries + 1, count))
    else:
        annotations = SECTION_WIDE + struct.pack(">II", entries + 4, count)
    before = FRAME_REST + header + annotations + SEQUENCE_ENTRY
    layout = struct.Struct(f">I{len(before)}sq{len(after)}s{width}s{tail_size}s")
    return FrameTemplate(layout.pack, before, after, layout.size)


kept_template = lru_cache(TEMPLATES_MAX)(make_template)


def key_entries(key: str | None, publisher: str | None) -> bytes:
    """The encoded entries for the partition key and the publisher."""
    return (b"" if key is None else entry(PARTITION_KEY, key)) + (
        b"" if publisher is None else entry(PUBLISHER_KEY, publisher)
    )
