"""Visits the parts of one message, from which a layout for similar messages is built.

Bytes that all similar messages share are literals: descriptors, names, constructors of numbers. The
rest are values, of a fixed size or of any simple type, and the sizes of lists and maps. A visitor
turns them into steps for thousands of frames at once (layouts.py), or into a pattern for one
message after the other (patterns.py).

    message -> visit_message -> MessageVisitor.literal, fixed, value, open, close
               ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Protocol

from pumphouse.amqp.codec import decode, skip
from pumphouse.amqp.columnar.buffer_view import (
    BODY,
    EMPTY_LIST,
    FIELD_KINDS,
    IS_BINARY,
    NULL,
    SIMPLE,
    Mask,
    ValueId,
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

# A layout of a message with more values costs more to build than it saves, and a producer could
# send a different one in every message.
VALUES_MAX = 64
KEY_BYTES_MAX = 256


class LayoutMismatch(Exception):
    """A message does not fit a layout; the decoder must read it."""


class MessageVisitor(Protocol):
    """Receives the parts of one message, from its first byte to its last."""

    frame: bytes

    def literal(self, start: int, end: int) -> None:
        """Bytes that all messages share."""

    def fixed(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        """The value at `pos`, with the same constructor and size in all messages."""

    def value(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        """The value at `pos`, which may have any allowed constructor in another message."""

    def open(self, pos: int) -> tuple[int, int]:
        """The head of the list or map at `pos`; returns start and number of its items."""

    def close(self) -> None:
        """The end of the innermost open list or map."""


def content_of(frame: bytes, pos: int) -> tuple[int, int]:
    """The start of the content of the value at `pos`, and its length."""
    code = frame[pos]
    start = pos + 1 + (WIDTHS[code >> 4] if code >= 0xA0 else 0)
    return start, skip(frame, pos) - start


def visit_message(visitor: MessageVisitor, sections: list[Section]) -> None:
    """Visit all sections; LayoutMismatch if only the decoder can read the message."""
    codes = [code for code, *_ in sections]
    if codes.count(DATA) != 1 or len(set(codes)) < len(codes):
        raise LayoutMismatch
    for code, start, value_pos, end in sections:
        if code == HEADER:
            visitor.literal(start, end)  # in practice only "durable", equal in all messages
            continue
        visitor.literal(start, value_pos)
        if code == DATA:
            visitor.value(BODY, value_pos, IS_BINARY)
        elif code in MAPS:
            visit_map(visitor, code, value_pos)
        elif code == PROPERTIES:
            visit_properties(visitor, value_pos)
        else:
            raise LayoutMismatch


def visit_map(visitor: MessageVisitor, section: int, pos: int) -> None:
    """Visit a map. Its keys are literals.

    In annotations, numbers have a fixed size. Other values may have any size and simple type.
    """
    pos, count = visitor.open(pos)
    if count > 2 * VALUES_MAX:
        raise LayoutMismatch
    for _ in range(count // 2):
        key, value_pos = decode(visitor.frame, pos)
        if not isinstance(key, str) or value_pos - pos > KEY_BYTES_MAX:
            raise LayoutMismatch
        visitor.literal(pos, value_pos)
        is_number = section in ANNOTATIONS and visitor.frame[value_pos] < 0xA0
        visit = visitor.fixed if is_number else visitor.value
        visit(ValueId(section, key), value_pos, SIMPLE)
        pos = skip(visitor.frame, value_pos)
    visitor.close()


def visit_properties(visitor: MessageVisitor, pos: int) -> None:
    """Visit the present fields by name. Null fields are literals."""
    if visitor.frame[pos] == EMPTY_LIST:
        visitor.literal(pos, pos + 1)
        return
    pos, count = visitor.open(pos)
    for spec in specs(Properties)[:count]:
        after = skip(visitor.frame, pos)
        if visitor.frame[pos] == NULL:
            visitor.literal(pos, after)
        else:
            visitor.value(ValueId(PROPERTIES, hyphen(spec.name)), pos, FIELD_KINDS[spec.kind])
        pos = after
    visitor.close()
