"""Builds events from columns: the values of many messages, by their ids.

payloads -> Pattern, FixedLayout -> columns -> build_events -> events
                                               ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from pumphouse.amqp.columnar.buffer_view import BODY, ValueId
from pumphouse.amqp.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS
from pumphouse.client.batches import ENQUEUED, KEY, OFFSET, SEQUENCE
from pumphouse.events import EncodedFields, Event

KEY_ID, SEQUENCE_ID, OFFSET_ID, ENQUEUED_ID = (
    ValueId(MESSAGE_ANNOTATIONS, name) for name in (KEY, SEQUENCE, OFFSET, ENQUEUED)
)
LONG, TIME = 0x81, 0x83  # constructors
MISSING_COLUMN = repeat(None)


class MutableEvent(EncodedFields):
    """An event under construction: the same slots, without the checks of a frozen class.

    Its class is then changed to Event, which costs a fifth of calling the constructor.
    """

    __slots__ = Event.__slots__
    body: bytes
    properties: Mapping[str, Any]
    partition_key: str | None
    partition: str | None
    sequence: int | None
    offset: str | None
    enqueued_ms: int | None


def build_events(columns: dict[ValueId, Sequence[Any]], partition: str) -> list[Event]:
    """The events whose fields are in these columns."""
    events: list[Event] = []
    for body, properties, key, sequence, offset, enqueued_ms in zip(
        columns[BODY],
        properties_of(columns),
        columns.get(KEY_ID, MISSING_COLUMN),
        columns.get(SEQUENCE_ID, MISSING_COLUMN),
        columns.get(OFFSET_ID, MISSING_COLUMN),
        columns.get(ENQUEUED_ID, MISSING_COLUMN),
        strict=False,
    ):
        event: Any = MutableEvent()
        event.body = body
        event.properties = properties
        event.partition_key = key
        event.partition = partition
        event.sequence = sequence
        event.offset = offset
        event.enqueued_ms = enqueued_ms
        event.__class__ = Event
        events.append(event)
    return events


def build_deferred_events(
    bodies: Sequence[bytes],
    keys: Iterable[str | None],
    partition: str,
    encoded: Sequence[bytes],
    decode: Callable[[str, bytes], Any],
) -> list[Any]:
    """Events without the fields that are decoded later; they are not yet of class Event."""
    events: list[Any] = []
    for body, key, fields in zip(bodies, keys, encoded, strict=False):
        event: Any = MutableEvent()
        event.body = body
        event.partition_key = key
        event.partition = partition
        event.decode_field = decode
        event.encoded_fields = fields
        events.append(event)
    return events


def set_annotations(events: Sequence[Any], columns: dict[ValueId, Sequence[Any]]) -> None:
    """Set the fields of events under construction that the hub has added."""
    for event, sequence, offset, enqueued_ms in zip(
        events,
        columns.get(SEQUENCE_ID, MISSING_COLUMN),
        columns.get(OFFSET_ID, MISSING_COLUMN),
        columns.get(ENQUEUED_ID, MISSING_COLUMN),
        strict=False,
    ):
        event.sequence = sequence
        event.offset = offset
        event.enqueued_ms = enqueued_ms


def set_properties(events: Sequence[Any], properties: Sequence[dict[str, Any]]) -> None:
    for event, given in zip(events, properties, strict=True):
        event.properties = given


def finish(events: list[Any]) -> list[Event]:
    """Events under construction as events."""
    for event in events:
        event.__class__ = Event
    return events


def properties_of(columns: dict[ValueId, Sequence[Any]]) -> list[dict[str, Any]]:
    """The application properties of each event."""
    property_ids = [value_id for value_id in columns if value_id.section == APPLICATION_PROPERTIES]
    if not property_ids:
        return [{} for _ in columns[BODY]]
    # Filling all rows name by name is several times faster than one dict(zip(names, row)) per row.
    first = property_ids[0].name
    rows = [{first: value} for value in columns[property_ids[0]]]
    for value_id in property_ids[1:]:
        name = value_id.name
        for properties, value in zip(rows, columns[value_id], strict=True):
            properties[name] = value
    return rows
