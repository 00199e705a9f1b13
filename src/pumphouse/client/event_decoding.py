"""Decodes payloads of transfers into events, many at a time.

Most events of a batch have the same structure. If the sizes of their values are equal too, they
are decoded together (layout_decoding.py). Of the others, one event gives a pattern, which splits
the events that fit it. `decode_event` decodes the rest, with the same result.

    NativeReader.receive -> payloads -> decode_events -> events
                                        ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pumphouse.amqp.columnar.message_visitor import LayoutMismatch
from pumphouse.amqp.columnar.patterns import Pattern, Row, digits, learn_pattern
from pumphouse.client.batches import decode_event
from pumphouse.client.event_columns import (
    ENQUEUED_ID,
    LONG,
    OFFSET_ID,
    SEQUENCE_ID,
    TIME,
    build_events,
)
from pumphouse.client.layout_decoding import decode_by_layout
from pumphouse.errors import MalformedBytes
from pumphouse.events import Event

# Payloads decoded together: with more of them the garbage collector would examine their temporary
# objects before they are freed.
CHUNK = 128
LAYOUT_CHUNK = 512  # the same for payloads with the same layout, which need fewer objects
SINGLES_MAX = 1  # up to this many payloads are decoded faster without a pattern
LEARN_MAX = 4  # attempts per chunk to learn a pattern; the rest is decoded one by one
PATTERNS_MAX = 16  # patterns kept
# Learning a pattern takes as long as decoding dozens of events. So each decoded event earns a
# credit, and a pattern costs LEARN_COST credits. Even if all events have different structures, most
# of the time is then spent on decoding.
LEARN_COST, CREDIT_MAX = 64, 1024


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
    for start in range(0, len(payloads), LAYOUT_CHUNK):
        events += decode_chunk(payloads[start : start + LAYOUT_CHUNK], partition)
    return events


def decode_chunk(payloads: Sequence[bytes], partition: str) -> list[Event]:
    """Decode payloads by their layouts, and the remaining ones by patterns."""
    events: list[Event | None] = [None] * len(payloads)
    remaining = decode_by_layout(payloads, partition, events)
    for start in range(0, len(remaining), CHUNK):
        indexes = remaining[start : start + CHUNK]
        chunk = [payloads[index] for index in indexes]
        PATTERNS.earn(len(chunk))
        decoded = decode_uniform(chunk, partition) or decode_mixed(chunk, partition)
        for index, event in zip(indexes, decoded, strict=True):
            events[index] = event
    return cast("list[Event]", events)


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
