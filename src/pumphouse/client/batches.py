"""Encodes events into the payloads of transfers, and decodes single events.

All events of a batch go to one partition, so a batch holds events of one partition key. A batch
never exceeds the size limit of the link.

    list[Event] -> cut_batches -> Payload -> Sender        transfer -> decode_event -> Event
                   ^^^^^^^^^^^ this module                             ^^^^^^^^^^^^ and this
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, repeat
from reprlib import repr as short
from typing import Any

from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    SINGLE_FORMAT,
    Message,
    data_head,
    data_section,
    decode_message,
    map_section,
)
from pumphouse.amqp.types import Symbol
from pumphouse.errors import EventTooLarge, OptionError, RemoteProtocolError
from pumphouse.events import NO_PROPERTIES, Event

SEQUENCE, OFFSET = Symbol("x-opt-sequence-number"), Symbol("x-opt-offset")
ENQUEUED, KEY = Symbol("x-opt-enqueued-time"), Symbol("x-opt-partition-key")

SECTION_BYTES = 8  # overhead of a message in a batch: descriptor, constructor and size
KEY_BYTES = 64  # upper bound of the overhead of a key, besides its own bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """The encoded events of one transfer."""

    data: bytes
    message_format: int
    event_count: int
    key: str | None = None  # of all events; batches of one key must keep their order


@dataclass(slots=True)
class OpenBatch:
    """The events of one key that are collected for one batch.

    Bodies are copied once, into the payload.
    """

    key: str | None
    size_max: int
    count_max: int
    heads: list[bytes] = field(default_factory=list)  # of each event, what precedes its body
    bodies: list[bytes] = field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        if self.key is not None:
            self.size = KEY_BYTES + len(self.key.encode())

    def add(self, head: bytes, body: bytes) -> bool:
        """Add an event; False if it does not fit."""
        size = self.size + len(head) + len(body) + SECTION_BYTES
        if self.heads and (size > self.size_max or len(self.heads) == self.count_max):
            return False
        self.heads.append(head)
        self.bodies.append(body)
        self.size = size
        return True

    def event_bytes(self) -> int:
        """The size of the collected events as single messages."""
        return sum(map(len, self.heads)) + sum(map(len, self.bodies))

    def payload(self) -> Payload:
        """The payload of the collected events."""
        if len(self.heads) == 1:
            return Payload(self.heads[0] + self.bodies[0], SINGLE_FORMAT, 1, self.key)
        sections = zip(map(section_head, self.heads, self.bodies), self.bodies, strict=True)
        data = b"".join((key_section(self.key), *chain.from_iterable(sections)))
        return Payload(data, BATCH_FORMAT, len(self.heads), self.key)


@dataclass(frozen=True, slots=True)
class PlainEvents:
    """Events that have only a body and perhaps a key, as bodies by key.

    Drivers that know this type encode the bodies without an `Event` for each of them. For all
    others it is an iterable of events.
    """

    groups: Sequence[tuple[str | None, Sequence[bytes]]]

    def __len__(self) -> int:
        return sum(len(bodies) for _, bodies in self.groups)

    def __iter__(self) -> Iterator[Event]:
        return chain.from_iterable(
            map(Event, bodies, repeat(NO_PROPERTIES), repeat(key)) for key, bodies in self.groups
        )


def as_given(events: Iterable[Event]) -> Iterable[Event]:
    """These events, also if the caller changes its list later. An iterator stays lazy."""
    return list(events) if isinstance(events, list) else events


def section_head(head: bytes, body: bytes) -> bytes:
    """What precedes a body in a batch: the head of the section of its message, and its own."""
    return data_head(len(head) + len(body)) + head


def cut_batches(events: Iterable[Event], size_max: int, count_max: int) -> Iterator[Payload]:
    """Events in as few payloads as size, count and keys allow. The order per key is kept."""
    if isinstance(events, PlainEvents):
        for key, bodies in events.groups:
            yield from cut_bodies(key, bodies, size_max, count_max)
    else:
        yield from cut_events(events, size_max, count_max)


def cut_bodies(
    key: str | None, bodies: Sequence[bytes], size_max: int, count_max: int
) -> Iterator[Payload]:
    """As `cut_events`, for events of one key that have only a body."""
    lengths = [*map(len, bodies)]
    key_head = b"" if key is None else key_section(key)
    heads = {length: key_head + data_head(length) for length in set(lengths)}
    largest = max((len(head) + length for length, head in heads.items()), default=0)
    if largest > size_max:
        raise event_too_large(largest, size_max)
    sizes = {length: len(head) + length + SECTION_BYTES for length, head in heads.items()}
    section_heads = {length: data_head(len(head) + length) + head for length, head in heads.items()}
    ends = [*accumulate(map(sizes.__getitem__, lengths))]
    room = size_max - (0 if key is None else KEY_BYTES + len(key.encode()))
    first = 0
    while first < len(bodies):
        until = bisect_right(ends, (ends[first - 1] if first else 0) + room, first)
        last = max(first + 1, min(until, first + count_max))
        if last == first + 1:
            yield Payload(heads[lengths[first]] + bodies[first], SINGLE_FORMAT, 1, key)
        else:
            own_heads = map(section_heads.__getitem__, lengths[first:last])
            sections = chain.from_iterable(zip(own_heads, bodies[first:last], strict=True))
            data = b"".join((key_section(key), *sections))
            yield Payload(data, BATCH_FORMAT, last - first, key)
        first = last


def cut_events(events: Iterable[Event], size_max: int, count_max: int) -> Iterator[Payload]:
    """As `cut_batches`, for events of any kind."""
    batches: dict[str | None, OpenBatch] = {}
    collected_bytes = 0
    for event in events:
        key, body = event.partition_key, body_bytes(event)
        head = encode_head(event, body)
        size = len(head) + len(body)
        if size > size_max:
            raise event_too_large(size, size_max)
        batch = batches.get(key)
        if batch is None or not batch.add(head, body):
            if batch is not None:
                collected_bytes -= batch.event_bytes()
                yield batch.payload()
            batch = batches[key] = OpenBatch(key, size_max, count_max)
            batch.add(head, body)
        collected_bytes += size
        if collected_bytes > size_max:
            # Bounds the memory for many keys: all open batches together hold about one full batch.
            yield from (batch.payload() for batch in batches.values())
            batches.clear()
            collected_bytes = 0
    yield from (batch.payload() for batch in batches.values())


def encode_event(event: Event) -> bytes:
    """An event as a message of at most three sections."""
    body = body_bytes(event)
    return encode_head(event, body) + body


def encode_head(event: Event, body: bytes) -> bytes:
    """The bytes of a message that precede its body."""
    head = data_head(len(body))
    if event.properties:
        head = b"".join(map_section(APPLICATION_PROPERTIES, event.properties)) + head
    return head if event.partition_key is None else key_section(event.partition_key) + head


def body_bytes(event: Event) -> bytes:
    """The body; OptionError if it is not bytes."""
    body = event.body
    if type(body) is bytes:
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise invalid_body(body)


@lru_cache(4096)  # producers have few keys with many events each
def key_section(key: str | None) -> bytes:
    return b"".join(map_section(MESSAGE_ANNOTATIONS, annotations_of(key)))


def batch_section(message: bytes) -> bytes:
    """A message as a section of a batch, for callers that assemble batches themselves."""
    return data_section(message)


def prepared_batch(sections: bytes, event_count: int) -> Payload:
    """A batch to one partition, from encoded sections. Each event may have its own key."""
    return Payload(sections, BATCH_FORMAT, event_count)


def annotations_of(key: str | None) -> dict[Any, Any]:
    return {} if key is None else {KEY: key}


def decode_event(payload: bytes, partition: str) -> Event:
    """The event in a message that was read from a partition."""
    message = decode_message(payload)
    annotations = message.annotations
    enqueued_ms = whole_number(annotations.get(ENQUEUED), "enqueued time")
    return Event(
        body=body_of(message),
        properties=dict(message.application),
        partition_key=annotations.get(KEY),
        partition=partition,
        sequence=whole_number(annotations.get(SEQUENCE), "sequence number"),
        offset=str(annotations[OFFSET]) if OFFSET in annotations else None,
        enqueued_ms=None if enqueued_ms is None else int(enqueued_ms),
    )


def whole_number(value: Any, name: str) -> int | None:
    """A number that the hub has set; RemoteProtocolError if it is of another type."""
    if value is None or isinstance(value, int):
        return value
    raise RemoteProtocolError(f"the {name} is {short(value)}, not a whole number")


def body_of(message: Message) -> bytes:
    """The body as bytes; an AMQP value is converted to text."""
    if message.data:
        return message.data[0] if len(message.data) == 1 else b"".join(message.data)
    value = list(message.sequence) if message.sequence else message.value
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).encode()


def invalid_body(body: object) -> OptionError:
    found = type(body).__name__
    how = "encode the text, for example text.encode()" if isinstance(body, str) else "encode it"
    return OptionError(f"the body of an event must be bytes, found {found}: {how}")


def event_too_large(size: int, limit: int) -> EventTooLarge:
    return EventTooLarge(
        f"an event of {size} bytes exceeds the limit of {limit} bytes; its batch was not "
        "sent. Split the event, or store its data elsewhere and send a reference to it"
    )
