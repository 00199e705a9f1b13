"""Encodes events into the payloads of transfers, and decodes single events.

All events of a batch go to one partition, so a batch holds events of one partition key. A batch
never exceeds the size limit of the link.

    list[Event] -> cut_batches -> Payload -> Sender        transfer -> decode_event -> Event
                   ^^^^^^^^^^^ this module                             ^^^^^^^^^^^^ and this
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from reprlib import repr as short
from typing import Any

from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    SINGLE_FORMAT,
    Message,
    data_section,
    decode_message,
    encode_batch,
    map_section,
)
from pumphouse.amqp.types import Symbol
from pumphouse.errors import EventTooLarge, RemoteProtocolError
from pumphouse.events import Event

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
    """The events of one key that are collected for one batch."""

    key: str | None
    messages: list[bytes] = field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        if self.key is not None:
            self.size = KEY_BYTES + len(self.key.encode())

    def has_room(self, message: bytes, size_max: int, count_max: int) -> bool:
        """Whether one more message fits."""
        fits = self.size + len(message) + SECTION_BYTES <= size_max
        return fits and len(self.messages) < count_max

    def add(self, message: bytes) -> None:
        self.messages.append(message)
        self.size += len(message) + SECTION_BYTES

    def payload(self) -> Payload:
        """The payload of the collected events."""
        if len(self.messages) == 1:
            return Payload(self.messages[0], SINGLE_FORMAT, 1, self.key)
        data = encode_batch(self.messages, annotations_of(self.key))
        return Payload(data, BATCH_FORMAT, len(self.messages), self.key)


def cut_batches(events: Iterable[Event], size_max: int, count_max: int) -> Iterator[Payload]:
    """Events in as few payloads as size, count and keys allow. The order per key is kept."""
    batches: dict[str | None, OpenBatch] = {}
    collected_bytes = 0
    for event in events:
        key, message = event.partition_key, encode_event(event)
        if len(message) > size_max:
            raise event_too_large(len(message), size_max)
        batch = batches.get(key)
        if batch is not None and not batch.has_room(message, size_max, count_max):
            yield batches.pop(key).payload()
            batch = None
        if batch is None:
            batch = batches[key] = OpenBatch(key)
        batch.add(message)
        collected_bytes += len(message)
        if collected_bytes > size_max:
            # Bounds the memory for many keys: all open batches together hold about one full batch.
            yield from (batch.payload() for batch in batches.values())
            batches.clear()
            collected_bytes = 0
    yield from (batch.payload() for batch in batches.values())


def encode_event(event: Event) -> bytes:
    """An event as a message of at most three sections."""
    return b"".join(
        (
            key_section(event.partition_key),
            *map_section(APPLICATION_PROPERTIES, event.properties),
            data_section(event.body),
        )
    )


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


def event_too_large(size: int, limit: int) -> EventTooLarge:
    return EventTooLarge(
        f"an event of {size} bytes exceeds the limit of {limit} bytes; its batch was not "
        "sent. Split the event, or store its data elsewhere and send a reference to it"
    )
