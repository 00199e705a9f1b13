"""Events to the payloads of transfers, and back.

Events of one batch go to one partition together, so a batch holds events of one partition key. A
batch never passes the size that the hub allows on the link.

    list[Event] -> cut -> Payload -> Sender        transfer -> decode_event -> Event
                   ^^^ this module                             ^^^^^^^^^^ and this
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
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
from pumphouse.errors import EventTooLarge
from pumphouse.events import Event

SEQUENCE, OFFSET = Symbol("x-opt-sequence-number"), Symbol("x-opt-offset")
ENQUEUED, KEY = Symbol("x-opt-enqueued-time"), Symbol("x-opt-partition-key")

SECTION_BYTES = 8  # what a batch adds to each message: descriptor, constructor and size
KEY_BYTES = 64  # what it adds for a key, beside the key itself


@dataclass(frozen=True, slots=True)
class Payload:
    """One transfer's worth of events."""

    data: bytes
    message_format: int
    event_count: int
    key: str | None = None  # of all of them; those of one key must not overtake each other


@dataclass(slots=True)
class Bundle:
    """The events of one key that wait to be sent together."""

    key: str | None
    messages: list[bytes] = field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        if self.key is not None:
            self.size = KEY_BYTES + len(self.key.encode())

    def takes(self, message: bytes, size_max: int, count_max: int) -> bool:
        """Whether one more message fits."""
        fits = self.size + len(message) + SECTION_BYTES <= size_max
        return fits and len(self.messages) < count_max

    def add(self, message: bytes) -> None:
        self.messages.append(message)
        self.size += len(message) + SECTION_BYTES

    def seal(self) -> Payload:
        if len(self.messages) == 1:
            return Payload(self.messages[0], SINGLE_FORMAT, 1, self.key)
        data = encode_batch(self.messages, annotations_of(self.key))
        return Payload(data, BATCH_FORMAT, len(self.messages), self.key)


def cut(events: Iterable[Event], size_max: int, count_max: int) -> Iterator[Payload]:
    """Events in as few payloads as size, count and keys allow; the order per key is kept."""
    bundles: dict[str | None, Bundle] = {}
    held = 0
    for event in events:
        key, message = event.partition_key, encode_event(event)
        if len(message) > size_max:
            raise too_large(len(message), size_max)
        bundle = bundles.get(key)
        if bundle is not None and not bundle.takes(message, size_max, count_max):
            yield bundles.pop(key).seal()
            bundle = None
        if bundle is None:
            bundle = bundles[key] = Bundle(key)
        bundle.add(message)
        held += len(message)
        if held > size_max:
            # Many keys, few events each: all that waits is bounded by one batch.
            yield from (bundle.seal() for bundle in bundles.values())
            bundles.clear()
            held = 0
    yield from (bundle.seal() for bundle in bundles.values())


def encode_event(event: Event) -> bytes:
    """An event as a message, section by section: there is nothing in it but these three."""
    return b"".join(
        (
            key_section(event.partition_key),
            *map_section(APPLICATION_PROPERTIES, event.properties),
            data_section(event.body),
        )
    )


@lru_cache(4096)  # producers have few keys, and many events of each
def key_section(key: str | None) -> bytes:
    return b"".join(map_section(MESSAGE_ANNOTATIONS, annotations_of(key)))


def batch_section(message: bytes) -> bytes:
    """A message as it stands in a batch, for those who put their own batches together."""
    return data_section(message)


def prepared_batch(sections: bytes, event_count: int) -> Payload:
    """A batch of messages that stand there already, each with its own key."""
    return Payload(sections, BATCH_FORMAT, event_count)


def annotations_of(key: str | None) -> dict[Any, Any]:
    return {} if key is None else {KEY: key}


def decode_event(payload: bytes, partition: str) -> Event:
    """The event in a message that was read from a partition."""
    message = decode_message(payload)
    notes = message.annotations
    return Event(
        body=body_of(message),
        properties=dict(message.application),
        partition_key=notes.get(KEY),
        partition=partition,
        sequence=notes.get(SEQUENCE),
        offset=str(notes[OFFSET]) if OFFSET in notes else None,
        enqueued_ms=int(notes[ENQUEUED]) if ENQUEUED in notes else None,
    )


def body_of(message: Message) -> bytes:
    """The body as bytes; one that is an AMQP value is written out as text."""
    if message.data:
        return message.data[0] if len(message.data) == 1 else b"".join(message.data)
    value = list(message.sequence) if message.sequence else message.value
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).encode()


def too_large(size: int, limit: int) -> EventTooLarge:
    return EventTooLarge(
        f"an event of {size} bytes exceeds the limit of {limit} bytes; nothing of its batch was "
        "sent. Send less in one event, or a reference to where it is kept"
    )
