"""Frames that are laid out alike, read thousands at a time.

Producers write their events one like the other: the same sections, the same names of annotations
and properties in the same order; only the values differ. So one frame, taken apart by the exact
decoder, says where to look in all the others. A layout is what it says, as two kinds of steps:

    literal  02 00 00 00 00 53 14 c0 __ 0b 70 00 00 00 00 70 __ __ __ __ a0 ... x-opt-offset
    value    x-opt-offset
    literal  a3 13 x-opt-enqueued-time 83 __ __ __ __ __ __ __ __ a3 13 x-opt-partition-key
    value    x-opt-partition-key
    ...

Many frames walk through the steps abreast, each with a cursor of its own, as one numpy array. A
literal must be there byte for byte, except for its gaps: numbers to be noted, and the sizes of
lists and maps, which must turn out to be right. A value may be of any simple kind. A frame that
does not fit drops out: it has another layout, or is read alone. What comes through to the end is
exactly what the decoder would have read, except that text has not been checked to be UTF-8.

    one frame -> learn -> Layout        frames -> Layout.match -> where each value of each frame is
                 ^^^^^ this module ^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.amqp.codec import skip
from pumphouse.amqp.columnar.cells import (
    ALONE,
    DELIVERY_ID,
    FIXED_WIDTHS,
    IS_SYMBOL,
    IS_UINT,
    NAME_BYTES_MAX,
    SIZE_BYTES,
    SMALL,
    SYMBOLS,
    WORD,
    Cells,
    Mask,
    Place,
    Places,
    Values,
    every,
)
from pumphouse.amqp.columnar.learned import NotAlike, content, learn_message
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.constructors import WIDTHS
from pumphouse.amqp.messages import decode_message, scan
from pumphouse.amqp.performatives import Transfer


class Walk:
    """Frames on their way through the steps, abreast."""

    def __init__(self, cells: Cells, rows: Places, cursors: Places, ends: Places) -> None:
        self.cells = cells
        self.rows = rows  # the numbers of the frames that are still walking
        self.cursors = cursors
        self.ends = ends
        self.opened: list[Places] = []  # where the compounds end that the cursors are in
        self.found: dict[Place, Values] = {}

    def keep(self, good: Mask) -> None:
        """Go on with some of the frames only."""
        if every(good):
            return
        self.rows, self.cursors, self.ends = self.rows[good], self.cursors[good], self.ends[good]
        self.opened = [ends[good] for ends in self.opened]
        self.found = {place: values.keep(good) for place, values in self.found.items()}

    def literal(self, literal: Literal) -> None:
        """Bytes that must be there."""
        if literal.size:
            self.compare(literal)
        self.cursors = self.cursors + literal.size
        for mark in literal.marks:
            mark(self)

    def compare(self, literal: Literal) -> None:
        width = len(literal.words)
        found = self.cells.stretches(self.cursors, width * WORD).view(np.uint64)
        for word, mask in literal.gaps:
            found[:, word] &= mask
        # Each row against the next one is several times quicker than each against the same words.
        flat = found.reshape(-1)
        if not (every(flat[:width] == literal.words) and every(flat[width:] == flat[:-width])):
            self.keep((found == literal.words).all(axis=1))

    def gap(self, place: Place, code: int, back: int, length: int) -> None:
        """A value of fixed size, `back` bytes ago."""
        count = len(self.rows)
        codes, lengths = np.full(count, code, np.uint8), np.full(count, length, np.int64)
        self.found[place] = Values(codes, self.cursors - back, lengths, ALONE[code])

    def open(self, back: int, width: int) -> None:
        """The size of a compound, `back` bytes ago: it says where the compound must end."""
        at = self.cursors - back
        self.opened.append(at + width + self.size_at(at, width))

    def close(self, back: int) -> None:
        """The end of a compound, `back` bytes ago."""
        ends = self.opened.pop()
        self.keep(ends == self.cursors - back)

    def value(self, place: Place, allowed: Mask, rest: int) -> None:
        """A value of any allowed constructor; at least `rest` bytes must follow it."""
        codes = self.cells.bytes[self.cursors]
        first = int(codes[0])
        if allowed[first] and every(codes == first):  # as nearly always
            values = Values(codes, *self.extent(first, self.cursors), ALONE[first])
        else:
            good = allowed[codes]
            self.keep(good)
            values = self.extents(codes if every(good) else codes[good])
        self.found[place] = values
        self.cursors = values.starts + values.lengths
        self.keep(self.cursors + rest <= self.ends)
        if values.kinds & SYMBOLS:
            self.keep(self.is_ascii(self.found[place]))

    def end(self) -> None:
        """The message ends, and the frame must end with it."""
        self.keep(self.cursors == self.ends)

    def extents(self, codes: npt.NDArray[np.uint8]) -> Values:
        """Where the content of the value at each cursor lies."""
        present = np.zeros(256, np.bool_)
        present[codes] = True
        kinds = frozenset(np.flatnonzero(present).tolist())
        if max(kinds, default=0) < 0xA0:
            return Values(codes, self.cursors + 1, FIXED_WIDTHS[codes], kinds)
        starts, lengths = np.empty_like(self.cursors), np.empty_like(self.cursors)
        for code in kinds:
            here = codes == code
            starts[here], lengths[here] = self.extent(code, self.cursors[here])
        return Values(codes, starts, lengths, kinds)

    def extent(self, code: int, cursors: Places) -> tuple[Places, Places]:
        width = WIDTHS[code >> 4]
        if code < 0xA0:
            return cursors + 1, np.full(len(cursors), width, np.int64)
        return cursors + (1 + width), self.size_at(cursors + 1, width)

    def size_at(self, places: Places, width: int) -> Places:
        if width == SMALL:
            return self.cells.bytes[places].astype(np.int64)
        return self.cells.sizes(places)

    def is_ascii(self, values: Values) -> Mask:
        """Whether each value, if it is a symbol, is ASCII; one that is too long to be a name is
        left to the decoder."""
        lengths = np.where(IS_SYMBOL[values.codes], values.lengths, 0)
        short = lengths <= NAME_BYTES_MAX
        size = min(int(lengths.max(initial=0)), NAME_BYTES_MAX)
        # Near the end of the buffer the stretch is read from further left.
        starts = np.minimum(values.starts, len(self.cells.data) - size)
        if not size or not (high := self.cells.stretches(starts, size) >= 0x80).any():
            return short
        columns = np.arange(size) - (values.starts - starts)[:, None]
        inside = (columns >= 0) & (columns < lengths[:, None])
        return short & ~(high & inside).any(axis=1)


Mark = Callable[[Walk], None]
Step = Callable[[Walk, int], None]


class Literal(NamedTuple):
    """Bytes that all frames of a layout have in the same place."""

    words: npt.NDArray[np.uint64]  # zero where the bytes may differ
    gaps: tuple[tuple[int, np.uint64], ...]  # words that have such bytes, with masks for the others
    size: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How some frames are laid out."""

    steps: tuple[tuple[Step, int], ...]  # each with the least number of bytes behind it
    size_min: int  # of a frame
    settled: bool
    text: str  # for people

    def __repr__(self) -> str:
        return f"<Layout {self.text}>"

    def match(self, cells: Cells, rows: Places, starts: Places, ends: Places) -> Walk:
        """The frames that are laid out so, and where their values are; `rows` are their numbers."""
        walk = Walk(cells, rows, starts + SIZE_BYTES, ends)
        walk.keep(ends - starts >= self.size_min)
        for step, rest in self.steps:
            if not len(walk.rows):
                break
            step(walk, rest)
        return walk


# --- Learning ------------------------------------------------------------------------------------


class Steps:
    """The steps of a layout, collected while one frame is taken apart."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.places: list[Place] = []
        self._steps: list[tuple[Step, int]] = []  # each with the least number of bytes it takes
        # The literal that is being put together; its marks are told how far back their place is.
        self._said, self._mask = bytearray(), bytearray()
        self._marks: list[tuple[Callable[[int], Mark], int]] = []

    def literal(self, start: int, end: int) -> None:
        self._said += self.frame[start:end]
        self._mask += b"\xff" * (end - start)

    def gap(self, size: int, mark: Callable[[int], Mark] | None = None) -> None:
        """Bytes that differ from frame to frame."""
        if mark is not None:
            self._marks.append((mark, len(self._said)))
        self._said += bytes(size)
        self._mask += bytes(size)

    def fixed(self, place: Place, pos: int, allowed: Mask) -> None:
        """The value at `pos`, which has the same constructor and size in all frames."""
        self.note(place, pos, allowed)
        code, start, length = self.frame[pos], *content(self.frame, pos)
        self.literal(pos, start)
        self.gap(length, lambda back: lambda walk: walk.gap(place, code, back, length))

    def ignored(self, pos: int) -> None:
        """The value at `pos`, which nobody asks for, with the same constructor and size."""
        start, length = content(self.frame, pos)
        self.literal(pos, start)
        self.gap(length)

    def value(self, place: Place, pos: int, allowed: Mask) -> None:
        """The value at `pos`, which may have any allowed constructor in another frame."""
        self.note(place, pos, allowed)
        self.flush()
        self._steps.append((lambda walk, rest: walk.value(place, allowed, rest), 1))

    def note(self, place: Place, pos: int, allowed: Mask) -> None:
        if not allowed[self.frame[pos]] or place in self.places:
            raise NotAlike
        self.places.append(place)

    def open(self, pos: int) -> tuple[int, int]:
        """The head of the list or map at `pos`: where its items start, and how many they are."""
        width = WIDTHS[self.frame[pos] >> 4]
        count, items = pos + 1 + width, pos + 1 + 2 * width
        self.literal(pos, pos + 1)
        self.gap(width, lambda back: lambda walk: walk.open(back, width))
        self.literal(count, items)
        return items, int.from_bytes(self.frame[count:items], "big")

    def close(self) -> None:
        self.gap(0, lambda back: lambda walk: walk.close(back))

    def flush(self) -> None:
        """Make a step of the literal so far."""
        size = len(self._said)
        marks = tuple(mark(size - at) for mark, at in self._marks)
        words, masks = (
            np.frombuffer(bytes(part.ljust(-(-size // WORD) * WORD, b"\0")), np.uint64)
            for part in (self._said, self._mask)
        )
        gaps = tuple((word, mask) for word, mask in enumerate(masks) if ~mask)
        literal = Literal(words, gaps, size, marks)
        if size or marks:
            self._steps.append((lambda walk, _: walk.literal(literal), size))
        self._said, self._mask, self._marks = bytearray(), bytearray(), []

    def layout(self, settled: bool) -> Layout:
        self.flush()
        self._steps.append((lambda walk, _: walk.end(), 0))
        rest = total = sum(size for _, size in self._steps)
        steps = []
        for step, size in self._steps:
            rest -= size
            steps.append((step, rest))
        text = " ".join(place.name for place in self.places)
        return Layout(tuple(steps), SIZE_BYTES + total, settled, text)


def learn(frame: bytes) -> Layout | None:
    """The layout of a frame; None if there is something in it that only the decoder can read.

    Raises MalformedBytes if the frame is not what it should be: only good ones are learned from.
    """
    transfer, message = decode_performative(frame, frame[4] * 4, len(frame))
    if not isinstance(transfer, Transfer) or transfer.more or transfer.aborted:
        return None  # a piece of something
    if transfer.delivery_id is None:
        return None
    decode_message(frame, message, len(frame))
    lesson = Steps(frame)
    try:
        learn_transfer(lesson, message, bool(transfer.settled))
        learn_message(lesson, scan(frame, message, len(frame)))
    except NotAlike:
        return None
    return lesson.layout(bool(transfer.settled))


def learn_transfer(lesson: Steps, message: int, settled: bool) -> None:
    """The frame's head and performative: all of it literal, but for delivery id and tag."""
    frame = lesson.frame
    start = skip_descriptor(frame, frame[4] * 4)
    lesson.literal(SIZE_BYTES, start)
    handle, _ = lesson.open(start)
    delivery_id = skip(frame, handle)
    lesson.literal(handle, delivery_id)
    if not IS_UINT[frame[delivery_id]]:
        raise NotAlike
    if settled:
        lesson.ignored(delivery_id)
    else:
        lesson.fixed(DELIVERY_ID, delivery_id, IS_UINT)
    tag = skip(frame, delivery_id)
    if tag < message:
        lesson.ignored(tag)
        tag = skip(frame, tag)
    lesson.literal(tag, message)
    lesson.close()


def skip_descriptor(frame: bytes, pos: int) -> int:
    """Where a described value itself starts."""
    return skip(frame, pos + 1)
