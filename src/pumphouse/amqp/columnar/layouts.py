"""Layouts: frames with the same structure, read thousands at a time.

A producer writes its events with the same structure: the same sections, and the same annotations
and properties in the same order. Only the values differ. So one frame, decoded exactly, determines
where the values of all others are. A layout describes these positions in two kinds of steps:

    literal  02 00 00 00 00 53 14 c0 __ 0b 70 00 00 00 00 70 __ __ __ __ a0 ... x-opt-offset
    value    x-opt-offset
    literal  a3 13 x-opt-enqueued-time 83 __ __ __ __ __ __ __ __ a3 13 x-opt-partition-key
    value    x-opt-partition-key
    ...

All frames take each step together; their cursors are one numpy array. A literal must match byte for
byte, except for its gaps: numbers to record, and the sizes of lists and maps, which are checked. A
value may have any simple type. A frame that does not match is removed: it has another layout, or is
decoded on its own. A frame that matches to the end is read exactly as by the decoder, except that
text is not checked to be UTF-8.

    one frame -> learn_layout -> Layout        frames -> Layout.match -> positions of all values
                 ^^^^^^^^^^^^ this module ^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.amqp.codec import skip
from pumphouse.amqp.columnar.buffer_view import (
    DELIVERY_ID,
    FIXED_WIDTHS,
    IS_SYMBOL,
    IS_UINT,
    NAME_BYTES_MAX,
    SINGLE_KIND,
    SIZE_BYTES,
    SMALL,
    SYMBOLS,
    WORD,
    BufferView,
    IntArray,
    Mask,
    ValueId,
    Values,
    all_true,
)
from pumphouse.amqp.columnar.message_visitor import LayoutMismatch, content_of, visit_message
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.constructors import WIDTHS
from pumphouse.amqp.messages import decode_message, scan
from pumphouse.amqp.performatives import Transfer


class FrameMatcher:
    """Frames that take the steps of a layout together."""

    def __init__(self, view: BufferView, rows: IntArray, cursors: IntArray, ends: IntArray) -> None:
        self.view = view
        self.rows = rows  # the numbers of the frames that match so far
        self.cursors = cursors
        self.ends = ends
        self.opened: list[IntArray] = []  # ends of the open compounds
        self.values: dict[ValueId, Values] = {}

    def keep(self, mask: Mask) -> None:
        """Continue only with the frames where the mask is true."""
        if all_true(mask):
            return
        self.rows, self.cursors, self.ends = self.rows[mask], self.cursors[mask], self.ends[mask]
        self.opened = [ends[mask] for ends in self.opened]
        self.values = {value_id: values.keep(mask) for value_id, values in self.values.items()}

    def literal(self, literal: Literal) -> None:
        """Compare the bytes at the cursors with a literal."""
        if literal.size:
            self.compare(literal)
        self.cursors = self.cursors + literal.size
        for mark in literal.marks:
            mark(self)

    def compare(self, literal: Literal) -> None:
        width = len(literal.words)
        rows = self.view.byte_rows(self.cursors, width * WORD).view(np.uint64)
        for word, mask in literal.gaps:
            rows[:, word] &= mask
        # Comparing each row with the next is several times faster than comparing all with `words`.
        flat = rows.reshape(-1)
        if not (
            all_true(flat[:width] == literal.words) and all_true(flat[width:] == flat[:-width])
        ):
            self.keep((rows == literal.words).all(axis=1))

    def fixed(self, value_id: ValueId, code: int, back: int, length: int) -> None:
        """Record a value of fixed size, `back` bytes before the cursors."""
        count = len(self.rows)
        codes, lengths = np.full(count, code, np.uint8), np.full(count, length, np.int64)
        self.values[value_id] = Values(codes, self.cursors - back, lengths, SINGLE_KIND[code])

    def open(self, back: int, width: int) -> None:
        """Read the size of a compound, `back` bytes before the cursors: it gives its end."""
        at = self.cursors - back
        self.opened.append(at + width + self.size_at(at, width))

    def close(self, back: int) -> None:
        """Check that a compound ends `back` bytes before the cursors."""
        ends = self.opened.pop()
        self.keep(ends == self.cursors - back)

    def value(self, value_id: ValueId, allowed: Mask, rest: int) -> None:
        """Read a value of any allowed constructor; at least `rest` bytes must follow it."""
        codes = self.view.bytes[self.cursors]
        first = int(codes[0])
        if allowed[first] and all_true(codes == first):  # the usual case
            values = Values(codes, *self.extent(first, self.cursors), SINGLE_KIND[first])
        else:
            valid = allowed[codes]
            self.keep(valid)
            values = self.extents(codes if all_true(valid) else codes[valid])
        self.values[value_id] = values
        self.cursors = values.starts + values.lengths
        self.keep(self.cursors + rest <= self.ends)
        if values.kinds & SYMBOLS:
            self.keep(self.is_ascii(self.values[value_id]))

    def end(self) -> None:
        """Check that the message ends with the frame."""
        self.keep(self.cursors == self.ends)

    def extents(self, codes: npt.NDArray[np.uint8]) -> Values:
        """The content of the value at each cursor."""
        present = np.zeros(256, np.bool_)
        present[codes] = True
        kinds = frozenset(np.flatnonzero(present).tolist())
        if max(kinds, default=0) < 0xA0:
            return Values(codes, self.cursors + 1, FIXED_WIDTHS[codes], kinds)
        starts, lengths = np.empty_like(self.cursors), np.empty_like(self.cursors)
        for code in kinds:
            selection = codes == code
            starts[selection], lengths[selection] = self.extent(code, self.cursors[selection])
        return Values(codes, starts, lengths, kinds)

    def extent(self, code: int, cursors: IntArray) -> tuple[IntArray, IntArray]:
        width = WIDTHS[code >> 4]
        if code < 0xA0:
            return cursors + 1, np.full(len(cursors), width, np.int64)
        return cursors + (1 + width), self.size_at(cursors + 1, width)

    def size_at(self, positions: IntArray, width: int) -> IntArray:
        if width == SMALL:
            return self.view.bytes[positions].astype(np.int64)
        return self.view.sizes(positions)

    def is_ascii(self, values: Values) -> Mask:
        """Whether each symbol among the values is ASCII.

        False for symbols longer than NAME_BYTES_MAX, so that the decoder reads them.
        """
        lengths = np.where(IS_SYMBOL[values.codes], values.lengths, 0)
        short = lengths <= NAME_BYTES_MAX
        size = min(int(lengths.max(initial=0)), NAME_BYTES_MAX)
        # All reads have the same size, so near the end of the buffer they start before the value.
        starts = np.minimum(values.starts, len(self.view.data) - size)
        if not size or not (high := self.view.byte_rows(starts, size) >= 0x80).any():
            return short
        columns = np.arange(size) - (values.starts - starts)[:, None]
        inside = (columns >= 0) & (columns < lengths[:, None])
        return short & ~(high & inside).any(axis=1)


Mark = Callable[[FrameMatcher], None]  # records or checks something within a literal
Step = Callable[[FrameMatcher, int], None]


class Literal(NamedTuple):
    """Bytes that all frames of a layout have at the same position."""

    words: npt.NDArray[np.uint64]  # zero where bytes may differ
    gaps: tuple[tuple[int, np.uint64], ...]  # indexes and masks of words with such bytes
    size: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The structure of some frames."""

    steps: tuple[tuple[Step, int], ...]  # each with the minimum number of bytes after it
    size_min: int  # of a frame
    settled: bool
    text: str  # for repr

    def __repr__(self) -> str:
        return f"<Layout {self.text}>"

    def match(
        self, view: BufferView, rows: IntArray, starts: IntArray, ends: IntArray
    ) -> FrameMatcher:
        """The frames with this layout and their values; `rows` are the frame numbers."""
        matcher = FrameMatcher(view, rows, starts + SIZE_BYTES, ends)
        matcher.keep(ends - starts >= self.size_min)
        for step, rest in self.steps:
            if not len(matcher.rows):
                break
            step(matcher, rest)
        return matcher


# --- Learning ------------------------------------------------------------------------------------


class LayoutBuilder:
    """Collects the steps of a layout while one frame is visited."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.value_ids: dict[ValueId, None] = {}  # in their order
        self._steps: list[tuple[Step, int]] = []  # each with its minimum number of bytes
        # The current literal. `_marks` has functions that make marks, with their positions in the
        # literal. `flush` calls each with its distance from the end of the literal.
        self._bytes, self._mask = bytearray(), bytearray()
        self._marks: list[tuple[Callable[[int], Mark], int]] = []

    def literal(self, start: int, end: int) -> None:
        self._bytes += self.frame[start:end]
        self._mask += b"\xff" * (end - start)

    def gap(self, size: int, mark: Callable[[int], Mark] | None = None) -> None:
        """Add bytes that differ from frame to frame."""
        if mark is not None:
            self._marks.append((mark, len(self._bytes)))
        self._bytes += bytes(size)
        self._mask += bytes(size)

    def fixed(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        """Add the value at `pos`, with the same constructor and size in all frames."""
        self.register(value_id, pos, allowed)
        code, start, length = self.frame[pos], *content_of(self.frame, pos)
        self.literal(pos, start)
        self.gap(length, lambda back: lambda matcher: matcher.fixed(value_id, code, back, length))

    def ignored(self, pos: int) -> None:
        """Skip the value at `pos`, with the same constructor and size in all frames."""
        start, length = content_of(self.frame, pos)
        self.literal(pos, start)
        self.gap(length)

    def value(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        """Add the value at `pos`, which may have any allowed constructor in another frame."""
        self.register(value_id, pos, allowed)
        self.flush()
        self._steps.append((lambda matcher, rest: matcher.value(value_id, allowed, rest), 1))

    def register(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        """Add the id of a value; LayoutMismatch for a duplicate or a constructor not allowed."""
        if not allowed[self.frame[pos]] or value_id in self.value_ids:
            raise LayoutMismatch
        self.value_ids[value_id] = None

    def open(self, pos: int) -> tuple[int, int]:
        """Add the head of the list or map at `pos`; returns start and number of its items."""
        width = WIDTHS[self.frame[pos] >> 4]
        count_at, items_at = pos + 1 + width, pos + 1 + 2 * width
        self.literal(pos, pos + 1)
        self.gap(width, lambda back: lambda matcher: matcher.open(back, width))
        self.literal(count_at, items_at)
        return items_at, int.from_bytes(self.frame[count_at:items_at], "big")

    def close(self) -> None:
        self.gap(0, lambda back: lambda matcher: matcher.close(back))

    def flush(self) -> None:
        """Turn the collected literal into a step."""
        size = len(self._bytes)
        marks = tuple(mark(size - at) for mark, at in self._marks)
        words, masks = (
            np.frombuffer(bytes(part.ljust(-(-size // WORD) * WORD, b"\0")), np.uint64)
            for part in (self._bytes, self._mask)
        )
        gaps = tuple((word, mask) for word, mask in enumerate(masks) if ~mask)
        literal = Literal(words, gaps, size, marks)
        if size or marks:
            self._steps.append((lambda matcher, _: matcher.literal(literal), size))
        self._bytes, self._mask, self._marks = bytearray(), bytearray(), []

    def layout(self, settled: bool) -> Layout:
        self.flush()
        self._steps.append((lambda matcher, _: matcher.end(), 0))
        rest = total = sum(size for _, size in self._steps)
        steps = []
        for step, size in self._steps:
            rest -= size
            steps.append((step, rest))
        text = " ".join(value_id.name for value_id in self.value_ids)
        return Layout(tuple(steps), SIZE_BYTES + total, settled, text)


def learn_layout(frame: bytes) -> Layout | None:
    """The layout of a frame; None if only the decoder can read it.

    Raises MalformedBytes if the frame is invalid.
    """
    transfer, message = decode_performative(frame, frame[4] * 4, len(frame))
    if not isinstance(transfer, Transfer) or transfer.more or transfer.aborted:
        return None  # an incomplete or aborted delivery
    if transfer.delivery_id is None:
        return None
    decode_message(frame, message, len(frame))
    builder = LayoutBuilder(frame)
    try:
        add_transfer(builder, message, bool(transfer.settled))
        visit_message(builder, scan(frame, message, len(frame)))
    except LayoutMismatch:
        return None
    return builder.layout(bool(transfer.settled))


def add_transfer(builder: LayoutBuilder, message: int, settled: bool) -> None:
    """Add the frame header and the transfer: all literal, except for delivery id and tag."""
    frame = builder.frame
    start = skip_descriptor(frame, frame[4] * 4)
    builder.literal(SIZE_BYTES, start)
    handle, _ = builder.open(start)
    delivery_id = skip(frame, handle)
    builder.literal(handle, delivery_id)
    if not IS_UINT[frame[delivery_id]]:
        raise LayoutMismatch
    if settled:
        builder.ignored(delivery_id)
    else:
        builder.fixed(DELIVERY_ID, delivery_id, IS_UINT)
    tag = skip(frame, delivery_id)
    if tag < message:
        builder.ignored(tag)
        tag = skip(frame, tag)
    builder.literal(tag, message)
    builder.close()


def skip_descriptor(frame: bytes, pos: int) -> int:
    """The start of the value after a descriptor."""
    return skip(frame, pos + 1)
