"""Payloads of transfers -> events, many at a time.

A partition is read in batches, and the events of a batch are mostly laid out alike: one of them is
learned from, and the others are cut as it was. What is like no other is read alone, by
`decode_event`; both say the same.

    Reader.receive -> payloads -> read_events -> events
                                  ^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, cast

from pumphouse.amqp.columnar.cells import BODY, Place
from pumphouse.amqp.columnar.learned import NotAlike
from pumphouse.amqp.columnar.patterns import Pattern, Row, digits, learn_pattern
from pumphouse.amqp.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS
from pumphouse.client.batches import ENQUEUED, KEY, OFFSET, SEQUENCE, decode_event
from pumphouse.errors import MalformedBytes
from pumphouse.events import Event

# Read at once: enough to be cheap, few enough that what is made on the way is gone again before the
# garbage collector comes to look at it.
CHUNK = 128
ALONE_MAX = 1  # so few are read before anything would have been learned
LESSONS_MAX = 4  # patterns learned from one batch: if these do not fit, none will
PATTERNS_MAX = 16  # patterns remembered

KEY_PLACE, SEQUENCE_PLACE, OFFSET_PLACE, ENQUEUED_PLACE = (
    Place(MESSAGE_ANNOTATIONS, name) for name in (KEY, SEQUENCE, OFFSET, ENQUEUED)
)
LONG, TIME = 0x81, 0x83  # constructors
NOTHING = repeat(None)  # a column that is not there


class Draft:
    """An event that is being written: the same slots, without the guard before each of them.

    Given the class Event it is one, for a fifth of what making one costs.
    """

    __slots__ = Event.__slots__
    body: bytes
    properties: Mapping[str, Any]
    partition_key: str | None
    partition: str | None
    sequence: int | None
    offset: str | None
    enqueued_ms: int | None


class Known:
    """Patterns that have been learned; the one that was of use last comes first."""

    def __init__(self) -> None:
        self.patterns: tuple[Pattern, ...] = ()  # replaced, never changed: threads share it

    def find(self, payload: bytes) -> Pattern | None:
        """The pattern that a payload has, if it has one of these."""
        for pattern in self.patterns:
            if pattern.fits(payload):
                return pattern
        return None

    def remember(self, pattern: Pattern) -> None:
        if self.patterns[:1] != (pattern,):
            others = (one for one in self.patterns if one is not pattern)
            self.patterns = (pattern, *others)[:PATTERNS_MAX]


KNOWN = Known()


def read_events(payloads: Sequence[bytes], partition: str) -> list[Event]:
    """The events in messages that were read from a partition; MalformedBytes if one is none."""
    events: list[Event] = []
    for start in range(0, len(payloads), CHUNK):
        some = payloads[start : start + CHUNK]
        events += read_whole(some, partition) or read_mixed(some, partition)
    return events


def read_whole(payloads: Sequence[bytes], partition: str) -> list[Event] | None:
    """As nearly always: all of them are laid out like those before. None if they are not."""
    known = KNOWN.patterns
    if not known or len(payloads) <= ALONE_MAX or not known[0].cut(payloads[-1]):
        return None
    matches = map(known[0].cut, payloads)
    try:
        # Where one does not match there is a None, which has no groups.
        rows = [match.groups() for match in matches]  # type: ignore[union-attr]
        return written(known[0].columns(rows), partition)
    except (AttributeError, NotAlike, MalformedBytes):
        return None


def read_mixed(payloads: Sequence[bytes], partition: str) -> list[Event]:
    """Those of one kind together, kind after kind."""
    found: list[Event | None] = [None] * len(payloads)
    left: Sequence[int] = range(len(payloads))
    lessons = LESSONS_MAX
    while len(left) > ALONE_MAX:
        pattern = KNOWN.find(payloads[left[0]])
        if pattern is None:
            if not lessons:
                break
            lessons -= 1
            pattern = learn(payloads[left[0]])
        if pattern is None:
            found[left[0]] = decode_event(payloads[left[0]], partition)
            left = left[1:]
            continue
        KNOWN.remember(pattern)
        left = read_alike(pattern, payloads, left, partition, found)
    for at in left:
        found[at] = decode_event(payloads[at], partition)
    return cast("list[Event]", found)


def learn(payload: bytes) -> Pattern | None:
    """The pattern of a payload, if events can be made of what it finds."""
    pattern = learn_pattern(payload)
    if pattern is None:
        return None
    for place, code in ((SEQUENCE_PLACE, LONG), (ENQUEUED_PLACE, TIME)):
        if place in pattern.places and pattern.codes.get(place) != code:
            return None
    if OFFSET_PLACE in pattern.places and pattern.places[OFFSET_PLACE][1] is not digits:
        return None
    return pattern


def read_alike(
    pattern: Pattern,
    payloads: Sequence[bytes],
    left: Sequence[int],
    partition: str,
    found: list[Event | None],
) -> Sequence[int]:
    """Read those that have this pattern; which ones are left."""
    cut = pattern.cut
    matches = [cut(payloads[at]) for at in left]
    places = left
    if not all(matches):
        places = [at for at, match in zip(left, matches, strict=True) if match]
    events = events_of(pattern, [match.groups() for match in matches if match], partition)
    for at, event in zip(places, events, strict=True):
        found[at] = event
    return [at for at in left if not found[at]]


def events_of(pattern: Pattern, rows: Sequence[Row], partition: str) -> Sequence[Event | None]:
    """Events of messages that were cut; None for those that were cut in the wrong place."""
    try:
        return written(pattern.columns(rows), partition)
    except (NotAlike, MalformedBytes):
        if len(rows) == 1:
            return [None]
    half = len(rows) // 2
    first = events_of(pattern, rows[:half], partition)
    return [*first, *events_of(pattern, rows[half:], partition)]


def written(columns: dict[Place, Sequence[Any]], partition: str) -> list[Event]:
    """Events out of columns."""
    events: list[Event] = []
    for body, properties, key, sequence, offset, enqueued_ms in zip(
        columns[BODY],
        properties_of(columns),
        columns.get(KEY_PLACE, NOTHING),
        columns.get(SEQUENCE_PLACE, NOTHING),
        columns.get(OFFSET_PLACE, NOTHING),
        columns.get(ENQUEUED_PLACE, NOTHING),
        strict=False,
    ):
        event: Any = Draft()
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


def properties_of(columns: dict[Place, Sequence[Any]]) -> list[dict[str, Any]]:
    """What the application wrote beside each body."""
    names = [place for place in columns if place.section == APPLICATION_PROPERTIES]
    if not names:
        return [{} for _ in columns[BODY]]
    # Name by name, not row by row: that is several times quicker than dict(zip(names, row)).
    first = names[0].name
    found = [{first: value} for value in columns[names[0]]]
    for place in names[1:]:
        name = place.name
        for properties, value in zip(found, columns[place], strict=True):
            properties[name] = value
    return found
