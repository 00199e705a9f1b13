"""Decodes payloads of transfers into events, many at a time.

Most events of a batch have the same structure. A pattern is learned from one of them and splits the
others. `decode_event` decodes the rest, with the same result.

    NativeReader.receive -> payloads -> decode_events -> events
                                        ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, cast

from pumphouse.amqp.columnar.buffer_view import BODY, ValueId
from pumphouse.amqp.columnar.message_visitor import LayoutMismatch
from pumphouse.amqp.columnar.patterns import Pattern, Row, digits, learn_pattern
from pumphouse.amqp.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS
from pumphouse.client.batches import ENQUEUED, KEY, OFFSET, SEQUENCE, decode_event
from pumphouse.errors import MalformedBytes
from pumphouse.events import Event

# Payloads decoded together: with more of them the garbage collector would examine their temporary
# objects before they are freed.
CHUNK = 128
SINGLES_MAX = 1  # up to this many payloads are decoded faster without a pattern
LEARN_MAX = 4  # attempts per chunk to learn a pattern; the rest is decoded one by one
PATTERNS_MAX = 16  # patterns kept
# Learning a pattern takes as long as decoding dozens of events. So each decoded event earns a
# credit, and a pattern costs LEARN_COST credits. Even if all events have different structures, most
# of the time is then spent on decoding.
LEARN_COST, CREDIT_MAX = 64, 1024

KEY_ID, SEQUENCE_ID, OFFSET_ID, ENQUEUED_ID = (
    ValueId(MESSAGE_ANNOTATIONS, name) for name in (KEY, SEQUENCE, OFFSET, ENQUEUED)
)
LONG, TIME = 0x81, 0x83  # constructors
MISSING_COLUMN = repeat(None)


class MutableEvent:
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


class PatternCache:
    """The learned patterns, the most recently used first."""

    def __init__(self) -> None:
        self.patterns: tuple[Pattern, ...] = ()  # replaced, never modified: shared by threads
        self.credit = CREDIT_MAX

    def find(self, payload: bytes) -> Pattern | None:
        """The pattern that fits a payload, if any."""
        for pattern in self.patterns:
            if pattern.fits(payload):
                return pattern
        return None

    def earn(self, events: int) -> None:
        """Count events that are decoded."""
        self.credit = min(CREDIT_MAX, self.credit + events)

    def may_learn(self) -> bool:
        """Whether a pattern may be learned now; if so, it is paid for."""
        allowed = self.credit >= LEARN_COST
        self.credit -= LEARN_COST * allowed
        return allowed

    def move_to_front(self, pattern: Pattern) -> None:
        if self.patterns[:1] != (pattern,):
            others = (other for other in self.patterns if other is not pattern)
            self.patterns = (pattern, *others)[:PATTERNS_MAX]


PATTERNS = PatternCache()


def decode_events(payloads: Sequence[bytes], partition: str) -> list[Event]:
    """The events in messages of a partition; MalformedBytes if one is invalid."""
    events: list[Event] = []
    for start in range(0, len(payloads), CHUNK):
        chunk = payloads[start : start + CHUNK]
        PATTERNS.earn(len(chunk))
        events += decode_uniform(chunk, partition) or decode_mixed(chunk, partition)
    return events


def decode_uniform(payloads: Sequence[bytes], partition: str) -> list[Event] | None:
    """Decode payloads that all fit the last used pattern; None if one does not."""
    patterns = PATTERNS.patterns
    if not patterns or len(payloads) <= SINGLES_MAX or not patterns[0].cut(payloads[-1]):
        return None
    matches = map(patterns[0].cut, payloads)
    try:
        # A message that does not match gives None, which has no groups.
        rows = [match.groups() for match in matches]  # type: ignore[union-attr]
        return build_events(patterns[0].columns(rows), partition)
    except (AttributeError, LayoutMismatch, MalformedBytes):
        return None


def decode_mixed(payloads: Sequence[bytes], partition: str) -> list[Event]:
    """Decode payloads pattern by pattern."""
    events: list[Event | None] = [None] * len(payloads)
    remaining: Sequence[int] = range(len(payloads))
    attempts_left = LEARN_MAX
    while len(remaining) > SINGLES_MAX:
        pattern = PATTERNS.find(payloads[remaining[0]])
        if pattern is None:
            if not attempts_left or not PATTERNS.may_learn():
                break
            attempts_left -= 1
            pattern = learn_event_pattern(payloads[remaining[0]])
        if pattern is None:
            events[remaining[0]] = decode_event(payloads[remaining[0]], partition)
            remaining = remaining[1:]
            continue
        PATTERNS.move_to_front(pattern)
        remaining = decode_matching(pattern, payloads, remaining, partition, events)
    for index in remaining:
        events[index] = decode_event(payloads[index], partition)
    return cast("list[Event]", events)


def learn_event_pattern(payload: bytes) -> Pattern | None:
    """The pattern of a payload, if it fits the fields of an event."""
    pattern = learn_pattern(payload)
    if pattern is None:
        return None
    for value_id, code in ((SEQUENCE_ID, LONG), (ENQUEUED_ID, TIME)):
        if value_id in pattern.value_ids and pattern.codes.get(value_id) != code:
            return None
    if OFFSET_ID in pattern.value_ids and pattern.value_ids[OFFSET_ID][1] is not digits:
        return None
    return pattern


def decode_matching(
    pattern: Pattern,
    payloads: Sequence[bytes],
    remaining: Sequence[int],
    partition: str,
    decoded: list[Event | None],
) -> Sequence[int]:
    """Decode the payloads that fit a pattern; returns the indexes of the others."""
    cut = pattern.cut
    matches = [cut(payloads[index]) for index in remaining]
    matched = remaining
    if not all(matches):
        matched = [index for index, match in zip(remaining, matches, strict=True) if match]
    events = decode_rows(pattern, [match.groups() for match in matches if match], partition)
    for index, event in zip(matched, events, strict=True):
        decoded[index] = event
    return [index for index in remaining if not decoded[index]]


def decode_rows(pattern: Pattern, rows: Sequence[Row], partition: str) -> Sequence[Event | None]:
    """Events of matched messages; None for messages that were split incorrectly."""
    try:
        return build_events(pattern.columns(rows), partition)
    except (LayoutMismatch, MalformedBytes):
        if len(rows) == 1:
            return [None]
    # Halve the rows until each message that was split incorrectly is alone.
    half = len(rows) // 2
    first = decode_rows(pattern, rows[:half], partition)
    return [*first, *decode_rows(pattern, rows[half:], partition)]


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
