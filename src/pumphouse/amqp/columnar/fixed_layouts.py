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
from pumphouse.amqp.columnar.payload_blocks import PayloadBlock, byte_strings
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


class Matched(NamedTuple):
    """Messages that have a layout."""

    rows: Sequence[int]  # their indexes
    heads: Bytes  # a row of bytes for each: all before the body
    bodies: list[bytes]

    def encoded_heads(self) -> list[bytes]:
        rows, size = self.heads.shape
        return byte_strings(np.ascontiguousarray(self.heads), 0, size, size, rows)


@dataclass(frozen=True, slots=True, eq=False)
class FixedLayout:
    """The bytes that some messages have in common."""

    head: bytes  # of the message that it was learned from: all before the content of the body
    mask: Bytes  # zero where bytes may differ
    literal: Bytes  # zero there, too
    mask_number: int  # the same as numbers
    literal_number: int
    extents: dict[ValueId, Extent]  # without application properties
    properties: dict[ValueId, Extent]
    body_size_at: int  # of the size of the body, up to the end of the head
    # Whether all values of messages with this layout are valid. If so, they may be decoded later.
    # If not, `columns` and `property_columns` must be called for all, and may raise.
    deferrable: bool

    def __repr__(self) -> str:
        return f"<FixedLayout {' '.join(value_id.name for value_id in self.extents)} body>"

    def fits(self, message: bytes) -> bool:
        """Whether a message has the bytes of this layout, except for the size of its body."""
        head = message[: len(self.head)]
        number = int.from_bytes(head, "big")
        return len(head) == len(self.head) and number & self.mask_number == self.literal_number

    def body_of(self, message: bytes) -> bytes | None:
        """The body of a message that has this layout; None for other messages."""
        size = len(message) - len(self.head)
        if not self.fits(message) or size != int.from_bytes(
            message[self.body_size_at : len(self.head)], "big"
        ):
            return None
        return message[len(self.head) :]

    def match(self, messages: Sequence[bytes]) -> Matched:
        """The messages that have this layout."""
        size = len(self.head)
        if isinstance(messages, PayloadBlock):
            return self.match_block(messages)
        heads = np.frombuffer(self.join_heads(messages), np.uint8).reshape(-1, size)
        bodies = [message[size:] for message in messages]
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        return self.matched(heads, bodies, self.body_sizes(heads) == lengths - size)

    def match_block(self, block: PayloadBlock) -> Matched:
        """The messages of a block that have this layout."""
        size = len(self.head)
        if block.size < size:
            return Matched((), np.empty((0, size), np.uint8), [])
        heads = np.ascontiguousarray(block.heads(size))
        return self.matched(heads, block.tails(size), self.body_sizes(heads) == block.size - size)

    def matched(self, heads: Bytes, bodies: list[bytes], sized: Mask) -> Matched:
        """The messages that have this layout and a body of the right size."""
        equal = heads & self.mask == self.literal
        if equal.all() and sized.all():
            return Matched(range(len(bodies)), heads, bodies)
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
        return {
            value_id: self.column(matched.heads, extent)
            for value_id, extent in self.properties.items()
        }

    def value(self, head: bytes, value_id: ValueId) -> Any:
        """One value of a message that has this layout; None if it has no such value."""
        extent = self.extents.get(value_id)
        if extent is None:
            return None
        code, content = head[extent.pos], head[extent.start : extent.end]
        if code in EIGHT_BYTE_NUMBERS:
            return int.from_bytes(content, "big", signed=True)
        return content.decode() if code in STRINGS else decode_value(head[extent.pos : extent.end])

    def property_values(self, head: bytes) -> dict[str, Any]:
        """The application properties of a message that has this layout."""
        return {
            value_id.name: decode_value(head[extent.pos : extent.end])
            for value_id, extent in self.properties.items()
        }

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
    return byte_strings(joined, 0, size, size, len(joined) // size)


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
        values = self.extents.items()
        mask, deferrable = self.mask(body), self.are_valid()
        literal = np.frombuffer(head, np.uint8) & mask
        return FixedLayout(
            head,
            mask,
            literal,
            int.from_bytes(mask.tobytes(), "big"),
            int.from_bytes(literal.tobytes(), "big"),
            {at: extent for at, extent in values if at.section != APPLICATION_PROPERTIES},
            {at: extent for at, extent in values if at.section == APPLICATION_PROPERTIES},
            body.pos + 1,
            deferrable,
        )

    def mask(self, body: Extent) -> Bytes:
        """Zero for bytes that may differ. Texts in ASCII must remain ASCII, so they are valid."""
        mask = np.full(body.start, 0xFF, np.uint8)
        for extent in self.extents.values():
            mask[extent.start : extent.end] = 0x80 if self.is_ascii(extent) else 0
        mask[body.pos + 1 :] = 0
        return mask

    def is_ascii(self, extent: Extent) -> bool:
        """Whether a value is a text in ASCII."""
        return self.frame[extent.pos] in TEXTS and self.content(extent).isascii()

    def are_valid(self) -> bool:
        """Whether all values remain valid, whatever the mask lets them be."""
        codes = [(self.frame[extent.pos], extent) for extent in self.extents.values()]
        return all(code in VALID and (code not in TEXTS or self.is_ascii(at)) for code, at in codes)

    def content(self, extent: Extent) -> bytes:
        return self.frame[extent.start : extent.end]


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
