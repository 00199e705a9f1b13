"""What the hub writes onto an event: from a producer's payload to the frames of the log.

The log keeps each event as a finished transfer frame, so that serving a reader is one copy and a
few patched numbers (see delivery.py), whatever the number of readers:

    +--------------------------+--------+------------------------+---------------------------+
    | transfer frame, 35 bytes | header | message annotations    | the producer's own        |
    | channel, handle and      | if any | sequence, offset, time | sections, byte for byte   |
    | delivery-id are patched  |        | key, publisher, others | (properties, body, ...)   |
    +--------------------------+--------+------------------------+---------------------------+

Annotations that only the hub may write are taken out of what a producer sends (an event that was
read and sent on still carries its old ones); delivery annotations end here, as the specification
says. Everything else is kept to the byte.
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
OWN_KEYS = frozenset(
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
OWN_BYTES_MAX = 2048  # for one event: the longest key and publisher, and all the rest

CHANNEL_AT, HANDLE_AT, DELIVERY_AT, MESSAGE_AT = 6, 15, 20, 35

# size | doff 2, type 0, channel | transfer, list8 of 22 bytes, 11 fields | handle | delivery-id |
# tag of one zero byte (a constant: the official client keeps every distinct tag for ever) |
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

# How a section starts in nearly every message: 00, 53, its code, the constructor of its value. Then
# comes the size of the value, in one byte or in four.
SECTION_HEAD = struct.Struct(">II")
DATA_SMALL, DATA_WIDE = 0x005375A0, 0x005375B0
PLAIN_WIDTHS = {
    0x00530000 | code << 8 | constructor: 1 if constructor in (0xA0, 0xA1, 0xC0, 0xC1) else 4
    for code in range(PROPERTIES, FOOTER + 1)
    for constructor in (0xA0, 0xA1, 0xB0, 0xB1, 0xC0, 0xC1, 0xD0, 0xD1)
}

SEQUENCE_BYTES = 8
OWN_ENTRIES = 6  # sequence, offset and time: three keys and three values


class Prefix(NamedTuple):
    """What stands before an event's own sections, once the hub has looked at it."""

    header: bytes = b""
    kept: bytes = b""  # annotation entries of the producer's own, encoded
    kept_count: int = 0  # keys and values
    key: str | None = None
    odd_key: bool = False  # there is a key among `kept`, but one that is no string


class Group(NamedTuple):
    """Consecutive events with the same prefix: in practice all events of a batch."""

    prefix: Prefix
    rests: list[bytes]  # of each event, the sections that are kept as they are


class Batch(NamedTuple):
    """The events of one transfer, and the key that decides their partition."""

    groups: list[Group]
    key: str | None = None

    @property
    def event_count(self) -> int:
        return sum(len(group.rests) for group in self.groups)


class Kept(NamedTuple):
    """What stays of an annotations section."""

    entries: bytes = b""
    keys_and_values: int = 0
    key: str | None = None
    odd_key: bool = False


NOTHING = Prefix()


def parse_payload(payload: bytes, message_format: int) -> Batch:
    """The events in a transfer's payload. Raises MalformedBytes, or AmqpError for a bad key."""
    if message_format == SINGLE_FORMAT:
        prefix, rest, _ = parse_event(payload, 0, len(payload))
        return Batch([Group(prefix, [rest])], prefix.key)
    if message_format != BATCH_FORMAT:
        raise AmqpError(
            "amqp:not-implemented", f"The message format 0x{message_format:08x} is not supported."
        )
    return parse_batch(payload)


def parse_batch(payload: bytes) -> Batch:
    """A batch: outer annotations may hold the key, each data section holds one message."""
    key = None
    groups: list[Group] = []
    pos, end = 0, len(payload)
    while pos < end:
        code, _, value, pos = section_at(payload, pos, end)
        if code == MESSAGE_ANNOTATIONS:
            key = filter_map(payload[value:pos]).key
        elif code == DATA:
            start = binary_start(payload, value)
            prefix, rest, in_order = parse_event(payload, start, pos)
            groups.append(Group(prefix, [rest]))
            if in_order:
                pos = take_alike(payload, pos, payload[start : pos - len(rest)], groups[-1].rests)
    return with_key(groups, key)


def take_alike(payload: bytes, pos: int, lead: bytes, rests: list[bytes]) -> int:
    """Collect the events that start as the one before them did, and are plain after that.

    Plain means that no header and no annotations follow, so that all of it is kept as it is. Those
    are nearly all events of nearly all batches, so this loop is kept quick: it knows the usual
    spellings, and where it finds another it stops and says where.
    """
    end, lead_size, unpack = len(payload), len(lead), SECTION_HEAD.unpack_from
    last = end - SECTION_HEAD.size
    while pos <= last:
        word, size = unpack(payload, pos)
        if word == DATA_WIDE:
            start = pos + 8
            after = start + size
        elif word == DATA_SMALL:
            start = pos + 5
            after = start + (size >> 24)
        else:
            return pos
        if after > end or (lead and not payload.startswith(lead, start)):
            return pos
        own = at = start + lead_size
        while at < after and at <= last:
            word, size = unpack(payload, at)
            width = PLAIN_WIDTHS.get(word)
            if width == 4:
                at += 8 + size
            elif width == 1:
                at += 5 + (size >> 24)
            else:
                return pos
        if at != after:
            return pos
        rests.append(payload[own:after])
        pos = after
    return pos


def with_key(groups: list[Group], key: str | None) -> Batch:
    """The key of the batch, given to those of its events that do not carry one of their own."""
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


def with_prefix_key(group: Group, key: str) -> Group:
    return Group(group.prefix._replace(key=key), group.rests)


def binary_start(payload: bytes, value: int) -> int:
    """Where the bytes of a binary start, given its constructor's place."""
    code = payload[value]
    if code == 0xA0:
        return value + 2
    if code == 0xB0:
        return value + 5
    raise MalformedBytes(value, f"a data section must hold binary, found constructor 0x{code:02x}")


def parse_event(data: bytes, pos: int, end: int) -> tuple[Prefix, bytes, bool]:
    """Header and annotations are taken out, the other sections keep their order.

    True at the end means that these came last, so that they are the tail of the event as it came.
    """
    header, kept, rest, in_order = b"", Kept(), [], True
    for code, start, value, after in scan(data, pos, end):
        section = data[start:after]
        if not section.startswith(SECTION_START):
            # Rare and legal. Here it is respelt: the official client reads no other than the usual.
            section, in_order = SECTION_START + bytes((code,)) + data[value:after], False
        if PROPERTIES <= code <= FOOTER:
            rest.append(section)
            continue
        in_order = in_order and not rest
        if code == HEADER:
            header = section
        elif code == MESSAGE_ANNOTATIONS:
            kept = filter_map(data[value:after])
    return Prefix(header, *kept), b"".join(rest), in_order


def filter_map(section: bytes) -> Kept:
    entries, count, key, odd_key = [], 0, None, False
    for name, start, value, end in map_entries(section):
        if name == PARTITION_KEY.decode():
            key = check_key(decode(section, value, end)[0])
            # A key that is no string is no key: it decides nothing, and is handed on as it came.
            odd_key = key is None
        if name not in OWN_KEYS or (odd_key and name == PARTITION_KEY.decode()):
            entries.append(section[start:end])
            count += 2
    return Kept(b"".join(entries), count, key, odd_key)


def map_entries(section: bytes) -> list[tuple[str | int, int, int, int]]:
    """Name, start, start of the value and end of each entry of an encoded map."""
    if section[:1] == b"\xc1" and len(section) >= 3:
        count, pos = section[2], 3
    elif section[:1] == b"\xd1" and len(section) >= 9:
        count, pos = int.from_bytes(section[5:9], "big"), 9
    else:
        raise MalformedBytes(0, f"annotations must be a map, found bytes {section[:8]!r}")
    found: list[tuple[str | int, int, int, int]] = []
    names: set[str | int] = set()
    for _ in range(count // 2):
        name, value = decode(section, pos)
        if not isinstance(name, str | int) or name in names:
            raise MalformedBytes(pos, f"annotations cannot have {show(name)} for a key here")
        names.add(name)
        # Decoded only to be checked: it will stand among entries of ours, and must not spoil them.
        _, end = decode(section, value)
        found.append((name, pos, value, end))
        pos = end
    if count % 2 or pos != len(section):
        raise MalformedBytes(pos, f"annotations of {count} keys and values do not end here")
    return found


def check_key(key: object) -> str | None:
    """A partition key as the service takes it; None if it is not a string."""
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
    """Events ready for the log: their frames in a row, and where each of them starts."""

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

    The offset of an event is the place of its frame in the partition's whole history, in bytes;
    `starts` count from `origin`, the offset at which their segment began.
    """
    stamp = TIME_ENTRY + enqueued_ms.to_bytes(8, "big", signed=True)
    parts: list[bytes] = []
    starts: list[int] = []
    for prefix, rests in batch.groups:
        tail = stamp + own_entries(prefix.key, publisher) + prefix.kept
        count = OWN_ENTRIES + 2 * (prefix.key is not None) + 2 * (publisher is not None)
        width = 0
        for rest in rests:
            digits = b"%d" % offset
            if len(digits) != width:
                width = len(digits)
                pack, before, after, overhead = cut_stencil(
                    prefix.header, count + prefix.kept_count, width, len(tail)
                )
            size = overhead + len(rest)
            parts.append(pack(size, before, sequence, after, digits, tail))
            parts.append(rest)
            starts.append(offset - origin)
            sequence += 1
            offset += size
    return Frames(bytearray().join(parts), starts)


def check_growth(batch: Batch, publisher: str | None, bytes_max: int) -> None:
    """Refuse events that are next to nothing themselves, but many, and repeat a long key each."""
    if batch.event_count * OWN_BYTES_MAX <= bytes_max:
        return
    size = 0
    for prefix, rests in batch.groups:
        tail = len(own_entries(prefix.key, publisher)) + len(prefix.kept)
        size += len(rests) * cut_stencil(prefix.header, 0, OFFSET_DIGITS_MAX, tail).overhead
    if size > bytes_max:
        raise AmqpError(
            "amqp:link:message-size-exceeded",
            f"The {batch.event_count} events of this batch would need {size} bytes for their "
            f"annotations alone, which repeat its partition key; {bytes_max} are allowed. "
            "Send fewer events at a time, or use a shorter key.",
        )


class Stencil(NamedTuple):
    """What frames have in common as long as their offsets have the same number of digits.

    size | before | sequence | after | digits of the offset | tail | the event's own sections
    """

    pack: Callable[[int, bytes, int, bytes, bytes, bytes], bytes]
    before: bytes
    after: bytes
    overhead: int  # bytes of a frame that are not the event's own


def cut_stencil(header: bytes, count: int, width: int, tail_size: int) -> Stencil:
    after = OFFSET_ENTRY + bytes((width,))
    entries = len(SEQUENCE_ENTRY) + SEQUENCE_BYTES + len(after) + width + tail_size
    if entries < 255 and count <= 255:
        annotations = SECTION_SMALL + bytes((entries + 1, count))
    else:
        annotations = SECTION_WIDE + struct.pack(">II", entries + 4, count)
    before = FRAME_REST + header + annotations + SEQUENCE_ENTRY
    layout = struct.Struct(f">I{len(before)}sq{len(after)}s{width}s{tail_size}s")
    return Stencil(layout.pack, before, after, layout.size)


def own_entries(key: str | None, publisher: str | None) -> bytes:
    """The entries that say by which key, and by which publisher, an event came."""
    return (b"" if key is None else entry(PARTITION_KEY, key)) + (
        b"" if publisher is None else entry(PUBLISHER_KEY, publisher)
    )
