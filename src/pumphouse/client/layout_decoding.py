"""Decodes payloads with the same layout into events, hundreds at a time.

The events of a batch often have values of the same sizes. Such payloads are compared and split at
once. All others are left to patterns and to the decoder, with the same result.

    payloads -> decode_events -> decode_by_layout -> events, and the indexes of other payloads
                                 ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumphouse.amqp.columnar.buffer_view import BODY, STRINGS
from pumphouse.amqp.columnar.fixed_layouts import FixedLayout, Matched, learn_fixed_layout
from pumphouse.amqp.columnar.message_visitor import LayoutMismatch
from pumphouse.client.event_columns import (
    ENQUEUED_ID,
    KEY_ID,
    LONG,
    MISSING_COLUMN,
    OFFSET_ID,
    SEQUENCE_ID,
    TIME,
    build_deferred_events,
    build_events,
    finish,
    properties_of,
    set_annotations,
    set_properties,
)
from pumphouse.errors import MalformedBytes
from pumphouse.events import Event

SINGLES_MAX = 8  # up to this many payloads are compared with layouts one by one
ROWS_MIN = 24  # fewer payloads are decoded faster by a pattern
# A layout that fits less than this share of the payloads is not worth another one for the rest.
SHARE_MIN = 1 / 4
# Decoding a field of one event, when it is used, costs several times as much as decoding that of
# many events at once. So after this many uses, by this share of the events, it is decoded at once.
USES_MIN, USED_SHARE_MIN = 64, 1 / 4
FIELD_IDS = {"sequence": SEQUENCE_ID, "offset": OFFSET_ID, "enqueued_ms": ENQUEUED_ID}
LAYOUTS_MAX = 8  # layouts kept
# If the sizes of values vary, each event has another layout. So each decoded event earns a credit,
# and a layout, which takes as long to learn as dozens of events to decode, costs LEARN_COST.
LEARN_COST, CREDIT_MAX = 512, 4096


class FieldUse:
    """How often fields are used that were not decoded with their events."""

    def __init__(self) -> None:
        self.uses = 0
        self.events = 0

    def frequent(self, events: int) -> bool:
        """Whether to decode the fields of this many more events at once."""
        if self.uses >= USES_MIN and self.uses >= self.events * USED_SHARE_MIN:
            return True
        self.events += events
        return False


class EventLayout:
    """A layout of events, and how often their fields were used."""

    def __init__(self, layout: FixedLayout) -> None:
        self.layout = layout
        self.annotations, self.properties = FieldUse(), FieldUse()

    def build(self, matched: Matched, partition: str) -> list[Event]:
        """The events of matched messages."""
        layout = self.layout
        if not layout.deferrable:
            columns = {**layout.columns(matched), **layout.property_columns(matched)}
            return build_events(columns, partition)
        key, encoded = layout.extents.get(KEY_ID), matched.encoded_heads()
        keys = MISSING_COLUMN if key is None else layout.column(matched.heads, key)
        events = build_deferred_events(matched.bodies, keys, partition, encoded, self.decode_field)
        if self.annotations.frequent(len(events)):
            set_annotations(events, layout.columns(matched))
        if self.properties.frequent(len(events)):
            columns = {BODY: encoded, **layout.property_columns(matched)}
            set_properties(events, properties_of(columns))
        return finish(events)

    def build_one(self, payload: bytes, partition: str) -> Event | None:
        """The event of a message, if it has this layout."""
        body = self.layout.body_of(payload) if self.layout.deferrable else None
        if body is None:
            return None
        head = payload[: len(self.layout.head)]
        keys = [self.layout.value(head, KEY_ID)]
        return finish(build_deferred_events([body], keys, partition, [head], self.decode_field))[0]

    def decode_field(self, name: str, head: bytes) -> Any:
        """A field of one event, when it is used first."""
        if name == "properties":
            self.properties.uses += 1
            return self.layout.property_values(head)
        self.annotations.uses += 1
        return self.layout.value(head, FIELD_IDS[name])


class LayoutCache:
    """The learned layouts, the most recently used first."""

    def __init__(self) -> None:
        self.layouts: tuple[EventLayout, ...] = ()  # replaced, never modified: shared by threads
        self.credit = CREDIT_MAX

    def find(self, payload: bytes) -> EventLayout | None:
        """The layout of a payload, if it is known or may be learned now."""
        for known in self.layouts:
            if known.layout.fits(payload):
                self.move_to_front(known)
                return known
        return self.learn(payload) if self.credit >= LEARN_COST else None

    def learn(self, payload: bytes) -> EventLayout | None:
        self.credit -= LEARN_COST
        layout = learn_event_layout(payload)
        if layout is None:
            return None
        learned = EventLayout(layout)
        self.layouts = (learned, *self.layouts)[:LAYOUTS_MAX]
        return learned

    def earn(self, events: int) -> None:
        """Count events that are decoded."""
        self.credit = min(CREDIT_MAX, self.credit + events)

    def move_to_front(self, known: EventLayout) -> None:
        if self.layouts[0] is not known:
            self.layouts = (known, *(other for other in self.layouts if other is not known))


LAYOUTS = LayoutCache()


def decode_by_layout(
    payloads: Sequence[bytes], partition: str, decoded: list[Event | None]
) -> Sequence[int]:
    """Decode payloads that have layouts; returns the indexes of the others."""
    LAYOUTS.earn(len(payloads))
    remaining: Sequence[int] = range(len(payloads))
    if len(payloads) <= SINGLES_MAX:
        return decode_singles(payloads, partition, decoded)
    while len(remaining) >= ROWS_MIN:
        known = LAYOUTS.find(payloads[remaining[0]])
        if known is None:
            break
        before = len(remaining)
        remaining = decode_with(known, payloads, remaining, partition, decoded)
        if before - len(remaining) < before * SHARE_MIN:
            break
    return remaining


def decode_singles(
    payloads: Sequence[bytes], partition: str, decoded: list[Event | None]
) -> Sequence[int]:
    """The same as `decode_by_layout` for few payloads, and only with known layouts."""
    for index, payload in enumerate(payloads):
        for known in LAYOUTS.layouts:
            if (event := known.build_one(payload, partition)) is not None:
                decoded[index] = event
                break
    return [index for index, event in enumerate(decoded) if event is None]


def decode_with(
    known: EventLayout,
    payloads: Sequence[bytes],
    remaining: Sequence[int],
    partition: str,
    decoded: list[Event | None],
) -> Sequence[int]:
    """Decode the payloads that have a layout; returns the indexes of the others."""
    is_first = len(remaining) == len(payloads)
    matched = known.layout.match(payloads if is_first else [payloads[index] for index in remaining])
    if not matched.bodies:
        return remaining
    try:
        events = known.build(matched, partition)
    except (LayoutMismatch, MalformedBytes):
        return remaining  # a text is not ASCII; if it is invalid, the decoder reports it
    if len(events) == len(payloads):
        decoded[:] = events
        return ()
    for row, event in zip(matched.rows, events, strict=True):
        decoded[remaining[row]] = event
    return [index for index in remaining if decoded[index] is None]


def learn_event_layout(payload: bytes) -> FixedLayout | None:
    """The layout of a payload, if it fits the fields of an event."""
    layout = learn_fixed_layout(payload)
    if layout is None:
        return None
    allowed = {SEQUENCE_ID: {LONG}, ENQUEUED_ID: {TIME}, OFFSET_ID: STRINGS}
    for value_id, codes in allowed.items():
        if value_id in layout.extents and layout.head[layout.extents[value_id].pos] not in codes:
            return None
    return layout
