"""Fixed layouts: messages whose values all have the same positions and sizes.

The messages of a producer often differ only in the content of their values. One of them, decoded
exactly, becomes a layout. Others have this layout if they have the same bytes everywhere, except
in the contents of values and in the size of the body, which is checked. Many messages are compared
at once, so this is several times faster than a pattern, which matches each by itself (patterns.py).
A message with a longer text or another type of number has another layout.

    \\x00Sr\\xc1 ... x-opt-offset\\xa1\\x05 _____ ... \\x00St ... \\x00Su\\xb0 ____ body
    |<---------------------- compared, except for the contents ------------>|

    one message -> learn_fixed_layout -> FixedLayout      messages -> FixedLayout.match -> columns
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module ^^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.amqp.columnar.buffer_view import (
    BINARIES,
    BODY,
    SIZE_BYTES,
    STRINGS,
    SYMBOLS,
    Mask,
    ValueId,
)
from pumphouse.amqp.columnar.message_visitor import LayoutMismatch, content_of, visit_message
from pumphouse.amqp.columnar.patterns import (
    DECODED,
    EIGHT_BYTE_NUMBERS,
    WIDE_NUMBERS,
    decode_value,
    wide_numbers,
)
from pumphouse.amqp.constructors import NUMBERS, WIDTHS
from pumphouse.amqp.messages import APPLICATION_PROPERTIES, decode_message, scan

Bytes = npt.NDArray[np.uint8]

TEXTS = STRINGS | SYMBOLS
# Constructors of values that are valid whatever bytes they have, or if these are ASCII: null, true,
# false, the zeros, numbers, UUIDs, binaries and texts.
VALID = {0x40, 0x41, 0x42, 0x43, 0x44, 0x98, *NUMBERS, *BINARIES, *TEXTS}
HEAD_BYTES_MAX = 1024  # of a message before its body; comparing a longer one saves little


class Extent(NamedTuple):
    """The position of a value: its constructor, its content, and its end."""

    pos: int
    start: int
    end: int


class PropertyValues(NamedTuple):
    """The application properties of a layout, which may be decoded later, one message at a time."""

    start: int  # of the values in the head
    end: int
    extents: tuple[tuple[str, int, int, int], ...]  # name, and Extent from `start` on
    high_bits: Bytes  # the highest bits of all bytes in texts; in ASCII they are zero

    def decode(self, encoded: bytes) -> dict[str, Any]:
        """The properties of one message."""
        return {name: decode_value(encoded[pos:end]) for name, pos, _, end in self.extents}


class Matched(NamedTuple):
    """Messages that have a layout."""

    rows: Sequence[int]  # their indexes
    heads: Bytes  # a row of bytes for each: all before the body
    bodies: list[bytes]


@dataclass(frozen=True, slots=True, eq=False)
class FixedLayout:
    """The bytes that some messages have in common."""

    head: bytes  # of the message that it was learned from: all before the content of the body
    mask: Bytes  # zero where bytes may differ
    literal: Bytes  # zero there, too
    extents: dict[ValueId, Extent]  # without application properties
    body_size_at: int  # of the size of the body, up to the end of the head
    properties: PropertyValues

    def __repr__(self) -> str:
        return f"<FixedLayout {' '.join(value_id.name for value_id in self.extents)} body>"

    def fits(self, message: bytes) -> bool:
        """Whether a message has the bytes of this layout, except for the size of its body."""
        head = np.frombuffer(message[: len(self.head)], np.uint8)
        return head.size == self.mask.size and bool((head & self.mask == self.literal).all())

    def match(self, messages: Sequence[bytes]) -> Matched:
        """The messages that have this layout."""
        size = len(self.head)
        heads = np.frombuffer(self.join_heads(messages), np.uint8).reshape(-1, size)
        bodies = [message[size:] for message in messages]
        equal = heads & self.mask == self.literal
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        sized = self.body_sizes(heads) == lengths - size
        if equal.all() and sized.all():
            return Matched(range(len(messages)), heads, bodies)
        rows = np.flatnonzero(equal.all(axis=1) & sized)
        indexes = rows.tolist()
        return Matched(indexes, heads[rows], [bodies[index] for index in indexes])

    def join_heads(self, messages: Sequence[bytes]) -> bytes:
        """As many bytes of each message as the head has."""
        size = len(self.head)
        joined = b"".join([message[:size] for message in messages])
        if len(joined) == size * len(messages):
            return joined
        # Filled up with zeros. The length of its body, which is negative, is no size.
        return b"".join([message[:size].ljust(size, b"\0") for message in messages])

    def body_sizes(self, heads: Bytes) -> npt.NDArray[np.int64]:
        sizes = heads[:, self.body_size_at :]
        if sizes.shape[1] == SIZE_BYTES:
            sizes = np.ascontiguousarray(sizes).view(">u4")
        return sizes[:, 0].astype(np.int64)

    def columns(self, matched: Matched) -> dict[ValueId, Sequence[Any]]:
        """The values of matched messages, by their ids, without application properties.

        Raises MalformedBytes or LayoutMismatch if one is invalid.
        """
        columns = {
            value_id: self.annotation(matched.heads, extent)
            for value_id, extent in self.extents.items()
        }
        columns[BODY] = matched.bodies
        return columns

    def property_columns(self, matched: Matched) -> dict[ValueId, Sequence[Any]]:
        """The application properties of matched messages, by their ids."""
        first = self.properties.start
        return {
            ValueId(APPLICATION_PROPERTIES, name): self.column(
                matched.heads, Extent(first + pos, first + start, first + end)
            )
            for name, pos, start, end in self.properties.extents
        }

    def encoded_properties(self, matched: Matched) -> list[bytes]:
        """The encoded application properties of each matched message.

        Raises LayoutMismatch if a text is not ASCII: it may be invalid.
        """
        start, end, _, high_bits = self.properties
        values = matched.heads[:, start:end]
        if (values & high_bits).any():
            raise LayoutMismatch
        return pieces(values.tobytes(), end - start) if end > start else [b""] * len(values)

    def annotation(self, heads: Bytes, extent: Extent) -> Sequence[Any]:
        """The same as `column`, but with numbers of eight bytes as plain ints."""
        if self.head[extent.pos] not in EIGHT_BYTE_NUMBERS:
            return self.column(heads, extent)
        contents = np.ascontiguousarray(heads[:, extent.start : extent.end])
        numbers: list[int] = contents.view(">i8")[:, 0].tolist()
        return numbers

    def column(self, heads: Bytes, extent: Extent) -> Sequence[Any]:
        """One value of all messages."""
        values = heads[:, extent.pos : extent.end]
        count, code = len(values), self.head[extent.pos]
        if code in WIDE_NUMBERS:
            return wide_numbers(values.tobytes(), code)
        if (values[0] == values[-1]).all() and (values[1:-1] == values[0]).all():
            return [DECODED[values[0].tobytes()]] * count
        if code in STRINGS:
            return strings(heads[:, extent.start : extent.end])
        known = DECODED
        return [known[raw] for raw in pieces(values.tobytes(), extent.end - extent.pos)]


def strings(contents: Bytes) -> Sequence[str]:
    """Strings of the same length."""
    size = contents.shape[1]
    joined = contents.tobytes()
    if joined.isascii():
        text = joined.decode()
        return [text[start : start + size] for start in range(0, len(text), size)]
    return [decode_utf8(raw) for raw in pieces(joined, size)]


def decode_utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise LayoutMismatch from None


def pieces(joined: bytes, size: int) -> list[bytes]:
    """Parts of the same size."""
    return [joined[start : start + size] for start in range(0, len(joined), size)]


# --- Learning ------------------------------------------------------------------------------------


class FixedLayoutBuilder:
    """Collects the positions of the values of one message."""

    def __init__(self, message: bytes) -> None:
        self.frame = message  # MessageVisitor requires the name; here without a frame header
        self.extents: dict[ValueId, Extent] = {}

    def literal(self, start: int, end: int) -> None:
        """Nothing: all bytes are compared that are not in a value."""

    def fixed(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        self.value(value_id, pos, allowed)

    def value(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        if not allowed[self.frame[pos]] or value_id in self.extents:
            raise LayoutMismatch
        start, length = content_of(self.frame, pos)
        self.extents[value_id] = Extent(pos, start, start + length)

    def open(self, pos: int) -> tuple[int, int]:
        width = WIDTHS[self.frame[pos] >> 4]
        items = pos + 1 + 2 * width
        return items, int.from_bytes(self.frame[pos + 1 + width : items], "big")

    def close(self) -> None:
        """Nothing: the sizes of lists and maps are compared."""

    def layout(self) -> FixedLayout:
        body = self.extents.pop(BODY)
        if body.end != len(self.frame) or body.start > HEAD_BYTES_MAX:
            raise LayoutMismatch
        head = self.frame[: body.start]
        mask = np.full(body.start, 0xFF, np.uint8)
        for extent in self.extents.values():
            mask[extent.start : extent.end] = 0
        mask[body.pos + 1 :] = 0
        literal = np.frombuffer(head, np.uint8) & mask
        properties = self.take_properties()
        return FixedLayout(head, mask, literal, self.extents, body.pos + 1, properties)

    def take_properties(self) -> PropertyValues:
        """Remove the application properties from the other values."""
        ids = [value_id for value_id in self.extents if value_id.section == APPLICATION_PROPERTIES]
        values = {value_id.name: self.extents.pop(value_id) for value_id in ids}
        start = min((extent.pos for extent in values.values()), default=0)
        end = max((extent.end for extent in values.values()), default=0)
        high_bits = np.zeros(end - start, np.uint8)
        for extent in values.values():
            code = self.frame[extent.pos]
            if code not in VALID:
                raise LayoutMismatch
            if code in TEXTS:
                high_bits[extent.start - start : extent.end - start] = 0x80
        extents = tuple(
            (name, at.pos - start, at.start - start, at.end - start) for name, at in values.items()
        )
        return PropertyValues(start, end, extents, high_bits)


def learn_fixed_layout(message: bytes) -> FixedLayout | None:
    """The layout of a message; None if only the decoder can read it.

    Raises MalformedBytes if the message is invalid.
    """
    decode_message(message)
    builder = FixedLayoutBuilder(message)
    try:
        visit_message(builder, scan(message, 0, len(message)))
        return builder.layout()
    except LayoutMismatch:
        return None
