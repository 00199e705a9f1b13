"""Converts a producer's payload into the frames of a log, with the hub's annotations.

The log stores each event as a complete transfer frame. To send it to a reader, the hub copies the
frame and sets three numbers (see links/delivery.py):

    +--------------------------+--------+------------------------+---------------------------+
    | transfer frame, 35 bytes | header | message annotations    | the producer's own        |
    | channel, handle and      | if any | sequence, offset, time | sections, byte for byte   |
    | delivery-id are set later|        | key, publisher, others | (properties, body, ...)   |
    +--------------------------+--------+------------------------+---------------------------+

Annotations that only the hub may write are removed from what a producer sends (an event that was
read and sent again still has its old ones), and so are delivery annotations, as the specification
requires. Everything else is kept byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from pumphouse.amqp.codec import decode, encode
from pumphouse.amqp.composites import show
from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SINGLE_FORMAT,
    scan,
    section_at,
)
from pumphouse.amqp.types import Symbol
from pumphouse.errors import AmqpError, MalformedBytes

SEQUENCE_KEY, OFFSET_KEY = b"x-opt-sequence-number", b"x-opt-offset"
TIME_KEY, PARTITION_KEY = b"x-opt-enqueued-time", b"x-opt-partition-key"
PUBLISHER_KEY = b"x-opt-publisher"
HUB_KEYS = frozenset(
    key.decode()
    for key in (
        SEQUENCE_KEY,
        OFFSET_KEY,
        TIME_KEY,
        PARTITION_KEY,
        PUBLISHER_KEY,
        b"x-opt-partition-id",
        b"x-opt-sequence-number-epoch",
        b"x-opt-replication-segment",
    )
)
PARTITION_KEY_CHARS_MAX = 128
OFFSET_DIGITS_MAX = 20
HUB_BYTES_MAX = 2048  # the most that the hub adds to one event (longest key and publisher)

CHANNEL_AT, HANDLE_AT, DELIVERY_AT, MESSAGE_AT = 6, 15, 20, 35

# size | doff 2, type 0, channel | transfer, list8 of 22 bytes, 11 fields | handle | delivery-id |
# tag of one zero byte (a constant: the official client stores every distinct tag for ever) |
# format 0, settled, no more | five nulls
FRAME_REST = (
    b"\x02\x00\x00\x00"
    b"\x00\x53\x14\xc0\x16\x0b"
    b"\x70\x00\x00\x00\x00\x70\x00\x00\x00\x00"
    b"\xa0\x01\x00\x43\x41\x42\x40\x40\x40\x40\x40"
)
SECTION_START = b"\x00\x53"
SECTION_SMALL, SECTION_WIDE = b"\x00\x53\x72\xc1", b"\x00\x53\x72\xd1"
SEQUENCE_ENTRY = b"\xa3\x15" + SEQUENCE_KEY + b"\x81"
OFFSET_ENTRY = b"\xa3\x0c" + OFFSET_KEY + b"\xa1"
TIME_ENTRY = b"\xa3\x13" + TIME_KEY + b"\x83"

# The usual start of a section: 00, 53, its code, the constructor of its value. Then the size of the
# value, in one byte or in four.
SECTION_HEAD = struct.Struct(">II")
DATA_SMALL, DATA_WIDE = 0x005375A0, 0x005375B0
PLAIN_WIDTHS = {
    0x00530000 | code << 8 | constructor: 1 if constructor in (0xA0, 0xA1, 0xC0, 0xC1) else 4
    for code in range(PROPERTIES, FOOTER + 1)
    for constructor in (0xA0, 0xA1, 0xB0, 0xB1, 0xC0, 0xC1, 0xD0, 0xD1)
}

SEQUENCE_BYTES = 8
HUB_ENTRIES = 6  # sequence, offset and time: three keys and three values


class Prefix(NamedTuple):
    """The parsed start of an event: header and message annotations."""

    header: bytes = b""
    kept: bytes = b""  # the producer's own annotation entries, encoded
    kept_count: int = 0  # keys and values
    key: str | None = None
    odd_key: bool = False  # `kept` has a partition key that is not a string


class EventGroup(NamedTuple):
    """Consecutive events with the same prefix: usually all events of a batch."""

    prefix: Prefix
    bodies: list[bytes]  # of each event, the sections that are kept unchanged


class Batch(NamedTuple):
    """The events of one transfer, and their partition key."""

    groups: list[EventGroup]
    key: str | None = None

    @property
    def event_count(self) -> int:
        return sum(len(group.bodies) for group in self.groups)


class KeptAnnotations(NamedTuple):
    """The entries of an annotations section that are kept."""

    entries: bytes = b""
    keys_and_values: int = 0
    key: str | None = None
    odd_key: bool = False


def parse_payload(payload: bytes, message_format: int) -> Batch:
    """The events in a transfer's payload; MalformedBytes, or AmqpError for an invalid key."""
    if message_format == SINGLE_FORMAT:
        prefix, body, _ = parse_event(payload, 0, len(payload))
        return Batch([EventGroup(prefix, [body])], prefix.key)
    if message_format != BATCH_FORMAT:
        raise AmqpError(
            "amqp:not-implemented", f"The message format 0x{message_format:08x} is not supported."
        )
    return parse_batch(payload)


def parse_batch(payload: bytes) -> Batch:
    """Parse a batch: outer annotations may hold the key, each data section holds one message."""
    key = None
    groups: list[EventGroup] = []
    pos, end = 0, len(payload)
    while pos < end:
        code, _, value, pos = section_at(payload, pos, end)
        if code == MESSAGE_ANNOTATIONS:
            key = filter_map(payload[value:pos]).key
        elif code == DATA:
            start = binary_start(payload, value)
            prefix, body, in_order = parse_event(payload, start, pos)
            groups.append(EventGroup(prefix, [body]))
            if in_order:
                lead = payload[start : pos - len(body)]
                pos = take_similar(payload, pos, lead, groups[-1].bodies)
    return with_key(groups, key)


def take_similar(payload: bytes, pos: int, lead: bytes, bodies: list[bytes]) -> int:
    """Collect the following events that start with the same bytes and have no other annotations.

    Nearly all events of nearly all batches are like that, so this loop is fast: it knows only the
    usual encodings, and returns the position of the first event that has another one.
    """
    end, lead_size, unpack = len(payload), len(lead), SECTION_HEAD.unpack_from
    last = end - SECTION_HEAD.size
    while pos <= last:
        section_head, size = unpack(payload, pos)
        if section_head == DATA_WIDE:
            start = pos + 8
            after = start + size
        elif section_head == DATA_SMALL:
            start = pos + 5
            after = start + (size >> 24)
        else:
            return pos
        if after > end or (lead and not payload.startswith(lead, start)):
            return pos
        body_start = at = start + lead_size
        while at < after and at <= last:
            section_head, size = unpack(payload, at)
            width = PLAIN_WIDTHS.get(section_head)
            if width == 4:
                at += 8 + size
            elif width == 1:
                at += 5 + (size >> 24)
            else:
                return pos
        if at != after:
            return pos
        bodies.append(payload[body_start:after])
        pos = after
    return pos


def with_key(groups: list[EventGroup], key: str | None) -> Batch:
    """The batch with its key. Events without a key of their own get the key of the batch."""
    if key is None:
        key = next((group.prefix.key for group in groups if group.prefix.key is not None), None)
    if key is None:
        return Batch(groups)
    return Batch(
        [
            g if g.prefix.key is not None or g.prefix.odd_key else with_prefix_key(g, key)
            for g in groups
        ],
        key,
    )


def with_prefix_key(group: EventGroup, key: str) -> EventGroup:
    return EventGroup(group.prefix._replace(key=key), group.bodies)


def binary_start(payload: bytes, value: int) -> int:
    """The start of a binary value's bytes, given the position of its constructor."""
    code = payload[value]
    if code == 0xA0:
        return value + 2
    if code == 0xB0:
        return value + 5
    raise MalformedBytes(value, f"a data section must hold binary, found constructor 0x{code:02x}")


def parse_event(data: bytes, pos: int, end: int) -> tuple[Prefix, bytes, bool]:
    """The prefix of an event, and its other sections in their order.

    The flag is True if those sections are the unchanged tail of the event's bytes.
    """
    header, kept, body, in_order = b"", KeptAnnotations(), [], True
    for code, start, value, after in scan(data, pos, end):
        section = data[start:after]
        if not section.startswith(SECTION_START):
            # A rare but legal encoding. The official client reads only the usual one: re-encode it.
            section, in_order = SECTION_START + bytes((code,)) + data[value:after], False
        if PROPERTIES <= code <= FOOTER:
            body.append(section)
            continue
        in_order = in_order and not body
        if code == HEADER:
            header = section
        elif code == MESSAGE_ANNOTATIONS:
            kept = filter_map(data[value:after])
    return Prefix(header, *kept), b"".join(body), in_order


def filter_map(section: bytes) -> KeptAnnotations:
    """Remove the hub's entries from an encoded annotations map."""
    entries, count, key, odd_key = [], 0, None, False
    for name, start, value, end in map_entries(section):
        if name == PARTITION_KEY.decode():
            key = check_key(decode(section, value, end)[0])
            # A key that is not a string has no effect, and is kept as an ordinary annotation.
            odd_key = key is None
        if name not in HUB_KEYS or (odd_key and name == PARTITION_KEY.decode()):
            entries.append(section[start:end])
            count += 2
    return KeptAnnotations(b"".join(entries), count, key, odd_key)


def map_entries(section: bytes) -> list[tuple[str | int, int, int, int]]:
    """Name, start, start of the value and end of each entry of an encoded map."""
    if section[:1] == b"\xc1" and len(section) >= 3:
        count, pos = section[2], 3
    elif section[:1] == b"\xd1" and len(section) >= 9:
        count, pos = int.from_bytes(section[5:9], "big"), 9
    else:
        raise MalformedBytes(0, f"annotations must be a map, found bytes {section[:8]!r}")
    entries: list[tuple[str | int, int, int, int]] = []
    names: set[str | int] = set()
    for _ in range(count // 2):
        name, value = decode(section, pos)
        if not isinstance(name, str | int) or name in names:
            raise MalformedBytes(pos, f"invalid or repeated annotation key {show(name)}")
        names.add(name)
        # Decoded only to validate it; its bytes are copied unchanged.
        _, end = decode(section, value)
        entries.append((name, pos, value, end))
        pos = end
    if count % 2 or pos != len(section):
        raise MalformedBytes(pos, f"annotations of {count} keys and values do not end here")
    return entries


def check_key(key: object) -> str | None:
    """A valid partition key; None if it is not a string, AmqpError if it is too long."""
    if not isinstance(key, str):
        return None
    if len(key) > PARTITION_KEY_CHARS_MAX:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"The partition key must be a string of at most {PARTITION_KEY_CHARS_MAX} characters, "
            f"found {len(key)} characters.",
        )
    return str(key)


def entry(name: bytes, text: str) -> bytes:
    """One annotation entry with a text value, encoded."""
    return encode(Symbol(name.decode())) + encode(text)


class Frames(NamedTuple):
    """Events as consecutive frames, and the start of each."""

    data: bytearray
    starts: list[int]


def build_frames(
    batch: Batch,
    sequence: int,
    offset: int,
    enqueued_ms: int,
    publisher: str | None = None,
    origin: int = 0,
) -> Frames:
    """The frames of a batch whose first event gets `sequence` and `offset`.

    The offset of an event is the position of its frame, in bytes, counted from the first frame ever
    written to the partition. `starts` count from `origin`, the first offset of their segment.
    """
    time_entry = TIME_ENTRY + enqueued_ms.to_bytes(8, "big", signed=True)
    parts: list[bytes] = []
    starts: list[int] = []
    for prefix, bodies in batch.groups:
        tail = time_entry + key_entries(prefix.key, publisher) + prefix.kept
        count = HUB_ENTRIES + 2 * (prefix.key is not None) + 2 * (publisher is not None)
        width = 0
        for body in bodies:
            digits = b"%d" % offset
            if len(digits) != width:
                width = len(digits)
                pack, before, after, overhead = make_template(
                    prefix.header, count + prefix.kept_count, width, len(tail)
                )
            size = overhead + len(body)
            parts.append(pack(size, before, sequence, after, digits, tail))
            parts.append(body)
            starts.append(offset - origin)
            sequence += 1
            offset += size
    return Frames(bytearray().join(parts), starts)


def check_growth(batch: Batch, publisher: str | None, bytes_max: int) -> None:
    """AmqpError for many tiny events that would each repeat a long key."""
    if batch.event_count * HUB_BYTES_MAX <= bytes_max:
        return
    size = 0
    for prefix, bodies in batch.groups:
        tail = len(key_entries(prefix.key, publisher)) + len(prefix.kept)
        size += len(bodies) * make_template(prefix.header, 0, OFFSET_DIGITS_MAX, tail).overhead
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


def key_entries(key: str | None, publisher: str | None) -> bytes:
    """The encoded entries for the partition key and the publisher."""
    return (b"" if key is None else entry(PARTITION_KEY, key)) + (
        b"" if publisher is None else entry(PUBLISHER_KEY, publisher)
    )
