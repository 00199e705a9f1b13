"""One message, taken apart by the exact decoder, to learn how others like it are laid out.

What is the same in all of them is a literal: descriptors, names, constructors of numbers. What may
differ is a value, of a fixed size or of any simple kind, or the size of a list or map. Who learns
decides what to make of that: steps for thousands of frames abreast (layouts.py), or a pattern for
one message after the other (patterns.py).

    message -> learn_message -> Lesson.literal, fixed, value, open, close
               ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Protocol

from pumphouse.amqp.codec import decode, skip
from pumphouse.amqp.columnar.cells import (
    BODY,
    EMPTY_LIST,
    FIELD_KINDS,
    IS_BINARY,
    NULL,
    SIMPLE,
    Mask,
    Place,
)
from pumphouse.amqp.composites import hyphen, specs
from pumphouse.amqp.constructors import WIDTHS
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    Section,
)

ANNOTATIONS = (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS)
MAPS = (*ANNOTATIONS, APPLICATION_PROPERTIES)


class NotAlike(Exception):
    """This frame has something that is read alone."""


class Lesson(Protocol):
    """Is told of one message, from its first byte to its last."""

    frame: bytes

    def literal(self, start: int, end: int) -> None:
        """Bytes that all messages have."""

    def fixed(self, place: Place, pos: int, allowed: Mask) -> None:
        """The value at `pos`, which has the same constructor and size in all messages."""

    def value(self, place: Place, pos: int, allowed: Mask) -> None:
        """The value at `pos`, which may have any allowed constructor in another message."""

    def open(self, pos: int) -> tuple[int, int]:
        """The head of the list or map at `pos`: where its items start, and how many they are."""

    def close(self) -> None:
        """The end of the list or map that was opened last."""


def content(frame: bytes, pos: int) -> tuple[int, int]:
    """Where the content of the value at `pos` starts, and its length."""
    code = frame[pos]
    start = pos + 1 + (WIDTHS[code >> 4] if code >= 0xA0 else 0)
    return start, skip(frame, pos) - start


def learn_message(lesson: Lesson, sections: list[Section]) -> None:
    codes = [code for code, *_ in sections]
    if codes.count(DATA) != 1 or len(set(codes)) < len(codes):
        raise NotAlike
    for code, start, value, end in sections:
        if code == HEADER:
            lesson.literal(start, end)  # durable, mostly, and the same for all
            continue
        lesson.literal(start, value)
        if code == DATA:
            lesson.value(BODY, value, IS_BINARY)
        elif code in MAPS:
            learn_map(lesson, code, value)
        elif code == PROPERTIES:
            learn_properties(lesson, value)
        else:
            raise NotAlike


def learn_map(lesson: Lesson, section: int, pos: int) -> None:
    """Its keys are literal. The numbers among annotations have a fixed size; what an application
    writes may be small or large."""
    pos, count = lesson.open(pos)
    for _ in range(count // 2):
        key, value = decode(lesson.frame, pos)
        if not isinstance(key, str):
            raise NotAlike
        lesson.literal(pos, value)
        is_number = section in ANNOTATIONS and lesson.frame[value] < 0xA0
        add = lesson.fixed if is_number else lesson.value
        add(Place(section, key), value, SIMPLE)  # a symbol stays one
        pos = skip(lesson.frame, value)
    lesson.close()


def learn_properties(lesson: Lesson, pos: int) -> None:
    """The fields that are there, by name; those that are null are literal."""
    if lesson.frame[pos] == EMPTY_LIST:
        lesson.literal(pos, pos + 1)
        return
    pos, count = lesson.open(pos)
    for spec in specs(Properties)[:count]:
        after = skip(lesson.frame, pos)
        if lesson.frame[pos] == NULL:
            lesson.literal(pos, after)
        else:
            lesson.value(Place(PROPERTIES, hyphen(spec.name)), pos, FIELD_KINDS[spec.kind])
        pos = after
    lesson.close()
