"""Converts a producer's payload into the frames of a log, with the hub's annotations.

The log stores each event as a complete transfer frame. To send it to a reader, the hub copies the
frame and sets three numbers (see links/delivery.py):

    +--------------------------+--------+------------------------+---------------------------+
    | transfer frame, 35 bytes | prefix | message annotations    | the producer's own        |
    | channel, handle and      | if any | sequence, offset, time | sections, byte for byte   |
    | delivery-id are set later|        | key, publisher, others | (properties, body, ...)   |
    +--------------------------+--------+------------------------+---------------------------+

The prefix is the header and the delivery annotations, if a producer sets them: the service returns
both to readers. Annotations that only the hub may write are removed from what a producer sends (an
event that was read and sent again still has its old ones). Everything else is kept byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from pumphouse.amqp.codec import decode
from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SINGLE_FORMAT,
    scan,
    section_at,
)
from pumphouse.errors import AmqpError
from pumphouse.hub.limits.sections import (
    DATA_WIDE,
    SECTION_HEAD,
    SECTIONS_MAX,
    SectionShapes,
    binary_start,
    map_entries,
    take_similar,
)

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
# The runtime metric: delivery annotations that only the hub may write.
METRIC_KEYS = frozenset(
    (
        "last_enqueued_sequence_number",
        "last_enqueued_offset",
        "last_enqueued_time_utc",
        "runtime_info_retrieval_time_utc",
    )
)
PARTITION_KEY_CHARS_MAX = 128

SECTION_START = b"\x00\x53"
# Bytes of a batch that are parsed in one step; it takes up to five milliseconds.
STEP_BYTES = 16 * 1024
UNIFORM_MIN = 40  # events; fewer are parsed faster one by one than as a matrix
KNOWN_BYTES_MAX = 1024  # of the structure that is kept for the next batch of a producer


class Prefix(NamedTuple):
    """The parsed start of an event: the prefix of its frame, and its message annotations."""

    header: bytes = b""  # the header section, and after it the delivery annotations
    kept: bytes = b""  # the producer's own annotation entries, encoded
    kept_count: int = 0  # keys and values
    key: str | None = None
    odd_key: bool = False  # `kept` has a partition key that is not a string


class EventGroup(NamedTuple):
    """Consecutive events with the same prefix: usually all events of a batch."""

    prefix: Prefix
    bodies: Sequence[bytes]  # of each event, the sections that are kept unchanged


class Batch(NamedTuple):
    """The events of one transfer, and their partition key."""

    groups: list[EventGroup]
    key: str | None = None

    @property
    def event_count(self) -> int:
        if len(self.groups) == 1:  # usually
            return len(self.groups[0].bodies)
        return sum(len(group.bodies) for group in self.groups)


class KeptAnnotations(NamedTuple):
    """The entries of an annotations section that are kept."""

    entries: bytes = b""
    keys_and_values: int = 0
    key: str | None = None
    odd_key: bool = False


def parse_payload(
    payload: bytes, message_format: int, shapes: SectionShapes | None = None
) -> Batch:
    """The events in a transfer's payload; MalformedBytes, or AmqpError for an invalid key.

    `shapes` are those of earlier events of the same producer.
    """
    steps = parse_in_steps(payload, message_format, shapes or SectionShapes())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            batch: Batch = end.value
            return batch


def parse_in_steps(
    payload: bytes, message_format: int, shapes: SectionShapes
) -> Generator[None, None, Batch]:
    """Parse a payload in steps of a few milliseconds; other tasks may run between two steps."""
    if message_format == SINGLE_FORMAT:
        prefix, body, _ = parse_event(payload, 0, len(payload), shapes)
        return Batch([EventGroup(prefix, [body])], prefix.key)
    if message_format != BATCH_FORMAT:
        raise AmqpError(
            "amqp:not-implemented", f"The message format 0x{message_format:08x} is not supported."
        )
    return (yield from parse_batch(payload, shapes))


def parse_run(
    payloads: list[bytes], shapes: SectionShapes
) -> Generator[None, None, list[EventGroup]]:
    """Parse single events together, in steps. Each has its own key, or none."""
    joined = b"".join(
        piece
        for payload in payloads
        for piece in (SECTION_HEAD.pack(DATA_WIDE, len(payload)), payload)
    )
    batch = yield from parse_batch(joined, shapes, shares_key=False)
    return batch.groups


def parse_batch(
    payload: bytes, shapes: SectionShapes, shares_key: bool = True
) -> Generator[None, None, Batch]:
    """Parse a batch: outer annotations may hold the key, each data section holds one message."""
    key = None
    groups: list[EventGroup] = []
    pos, end = 0, len(payload)
    step_end = STEP_BYTES
    while pos < end:
        code, section, value, pos = section_at(payload, pos, end)
        if code == MESSAGE_ANNOTATIONS:
            key = filter_map(payload[value:pos]).key
        elif code == DATA:
            if not groups and (known := known_group(payload, section, shapes)) is not None:
                groups.append(known)
                pos = section + len(known.bodies) * (pos - section)
                continue
            start = binary_start(payload, value)
            prefix, body, in_order = parse_event(payload, start, pos, shapes)
            # Only at the first event: if the second one differs, the batch is rarely uniform.
            if in_order and not groups:
                uniform = uniform_group(payload, section, pos, prefix, len(body), shapes)
                if uniform is not None:
                    groups.append(uniform)
                    pos = section + len(uniform.bodies) * (pos - section)
                    continue
            bodies = bodies_with(prefix, groups)
            bodies.append(body)
            if in_order:
                lead = payload[start : pos - len(body)]
                pos = take_similar(payload, pos, lead, bodies, shapes)
        if pos > step_end:
            step_end = pos + STEP_BYTES
            yield
    return with_key(groups, key) if shares_key else Batch(groups)


def uniform_group(
    payload: bytes, start: int, end: int, prefix: Prefix, body_size: int, shapes: SectionShapes
) -> EventGroup | None:
    """An event and those after it that have its structure, if there are many."""
    if len(payload) - start < UNIFORM_MIN * (end - start):
        return None
    from pumphouse.hub.frames.uniform_events import layout_of

    layout = layout_of(payload, start, end, end - body_size, shapes)
    if layout is None or len(bodies := layout.find(payload, start)) < UNIFORM_MIN:
        return None
    if len(layout.structure.first) <= KNOWN_BYTES_MAX:
        shapes.known_batch = prefix, layout
    return EventGroup(prefix, bodies)


def known_group(payload: bytes, start: int, shapes: SectionShapes) -> EventGroup | None:
    """The event at `start` and those after it, if they are as the last uniform batch, and many."""
    if shapes.known_batch is None:
        return None
    prefix, layout = shapes.known_batch
    if len(payload) - start < UNIFORM_MIN * layout.stride:
        return None
    bodies = layout.find(payload, start)
    return EventGroup(prefix, bodies) if len(bodies) >= UNIFORM_MIN else None


def bodies_with(prefix: Prefix, groups: list[EventGroup]) -> list[bytes]:
    """The list that gets the body of the next event; a new group if its prefix differs."""
    bodies = groups[-1].bodies if groups and groups[-1].prefix == prefix else None
    if not isinstance(bodies, list):
        bodies = []
        groups.append(EventGroup(prefix, bodies))
    return bodies


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


def parse_event(
    data: bytes, pos: int, end: int, shapes: SectionShapes
) -> tuple[Prefix, bytes, bool]:
    """The prefix of an event, and its other sections in their order.

    The flag is True if those sections are the unchanged tail of the event's bytes.
    """
    header, delivery, kept, body, in_order = b"", b"", KeptAnnotations(), [], True
    for code, start, value, after in scan(data, pos, end, SECTIONS_MAX):
        section = data[start:after]
        if not section.startswith(SECTION_START):
            # A rare but legal encoding. The official client reads only the usual one: re-encode it.
            section, in_order = SECTION_START + bytes((code,)) + data[value:after], False
        if PROPERTIES <= code <= FOOTER:
            shapes.check(section)
            body.append(section)
            continue
        in_order = in_order and not body
        if code == HEADER:
            shapes.check(section)
            header = section
        elif code == MESSAGE_ANNOTATIONS:
            kept = filter_map(data[value:after])
        else:
            delivery = delivery_annotations(data[value:after])
    return Prefix(header + delivery, *kept), b"".join(body), in_order


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


def delivery_annotations(section: bytes) -> bytes:
    """The section of a producer's delivery annotations, without the hub's; b"" if none is left."""
    entries = [
        section[start:end]
        for name, start, _, end in map_entries(section)
        if name not in METRIC_KEYS
    ]
    return map_section(DELIVERY_ANNOTATIONS, b"".join(entries), 2 * len(entries))


def map_section(code: int, entries: bytes, count: int) -> bytes:
    """A section with a map of encoded entries; b"" without entries. `count`: keys and values."""
    if not count:
        return b""
    start = SECTION_START + bytes((code,))
    if len(entries) < 255 and count <= 255:
        return start + b"\xc1" + bytes((len(entries) + 1, count)) + entries
    return start + b"\xd1" + struct.pack(">II", len(entries) + 4, count) + entries


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


def check_event_count(batch: Batch, events_max: int) -> None:
    """AmqpError if a batch has too many events: each needs annotations and a place in the index."""
    if batch.event_count > max(events_max, 1):
        raise AmqpError(
            "amqp:link:message-size-exceeded",
            f"The batch has {batch.event_count} events; {events_max} are allowed. "
            "Send fewer events at a time.",
        )
