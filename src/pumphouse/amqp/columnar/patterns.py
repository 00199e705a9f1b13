"""Patterns: messages with the same structure, split one by one with a regular expression.

This is for code that makes an object per message and reads a few dozen messages at a time. There,
numpy (layouts.py) has too much overhead. One message, decoded exactly, becomes a pattern:

    \\x00Sr\\xc1 (.) \\x08 ... x-opt-offset\\xa1\\x05 ([0-9]{5}) ... \\x00Su (\\xa0.|\\xb0.{4}) (.*)

The expression only proposes where the values are. Then the decoder must consume every byte of each
value, and each map and the body must have their encoded size. AMQP can be read in one way only, so
a match is exactly what the decoder returns. Everything else is left to the decoder.

    one message -> learn_pattern -> Pattern        messages -> Pattern.cut -> columns -> values
                   ^^^^^^^^^^^^^ this module ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import sub
from struct import unpack
from typing import Any

import numpy as np

from pumphouse.amqp.codec import decode
from pumphouse.amqp.columnar.buffer_view import BODY, Mask, ValueId
from pumphouse.amqp.columnar.message_visitor import (
    ANNOTATIONS,
    LayoutMismatch,
    content_of,
    visit_message,
)
from pumphouse.amqp.constructors import NAMES, NUMBERS, WIDTHS
from pumphouse.amqp.messages import PROPERTIES, decode_message, scan
from pumphouse.errors import MalformedBytes

SHORT_MAX, LONG_MAX = 0xFF, 4096  # bytes of a value with a short and with a long size
DIGITS_MAX = 20  # of a number written as text
CACHE_MAX, CACHED_BYTES_MAX = 1 << 14, 64  # cached values, and the bytes of one
EIGHT_BYTE_NUMBERS = (0x81, 0x83)  # long and timestamp, returned as plain ints

SHORT_STRING = 0xA1
# The format letters of struct, as numpy types.
NUMPY_KINDS = {ord("I"): "u4", ord("i"): "i4", ord("Q"): "u8", ord("q"): "i8"} | {
    ord("f"): "f4",
    ord("d"): "f8",
}
BODY_SHAPE = rb"(\xa0.|\xb0.{4})(.*)"  # the size, which is checked, and the content
# Numpy types of numbers of four and more bytes. Such numbers seldom repeat, so they are not cached.
WIDE_NUMBERS = {
    code: np.dtype([("code", "u1"), ("number", f">{layout.format[1:].translate(NUMPY_KINDS)}")])
    for code, (layout, _) in NUMBERS.items()
    if layout.size >= 4
}
# Non-greedy expressions for the size and the content of a value, by the upper half byte of its
# constructor.
CONTENTS = {
    0xA: b".{1,%d}?" % (1 + SHORT_MAX),
    0xB: b".{4,%d}?" % (4 + LONG_MAX),
}

Row = tuple[bytes, ...]  # the groups of one message
Column = tuple[bytes, ...]  # one group of many messages
Read = Callable[[Column], Sequence[Any]]


class DecodedValues(dict[bytes, Any]):
    """A cache of values by their bytes: producers repeat their values."""

    def __missing__(self, raw: bytes) -> Any:
        value, after = decode(raw)
        if after != len(raw):
            raise LayoutMismatch
        if len(raw) <= CACHED_BYTES_MAX and raw[0] not in WIDE_NUMBERS:
            if len(self) >= CACHE_MAX:
                self.clear()
            self[raw] = value
        return value


class BodySizes(dict[bytes, int]):
    """A cache of body lengths by the encoded size."""

    def __missing__(self, head: bytes) -> int:
        size = int.from_bytes(head[1:], "big")
        if len(self) < CACHE_MAX:
            self[head] = size
        return size


DECODED, SIZES = DecodedValues(), BodySizes()  # hold immutable values only


def numbers(column: Column) -> Sequence[int]:
    return unpack(f">{len(column)}q", b"".join(column))


def digits(column: Column) -> Sequence[str]:
    return [text.decode() for text in column]


def values(column: Column) -> Sequence[Any]:
    """Values of any type: wide numbers all at once, others from the cache."""
    code, size = column[0][0], len(column[0])
    if code in WIDE_NUMBERS:
        joined = b"".join(column)
        if set(map(len, column)) == {size} and joined[::size].count(code) == len(column):
            return wide_numbers(joined, code)
        return [decode_value(raw) for raw in column]
    known = DECODED
    return [known[raw] for raw in column]


def decode_value(raw: bytes) -> Any:
    if raw[0] not in WIDE_NUMBERS:
        return DECODED[raw]
    layout, kind = NUMBERS[raw[0]]
    return kind(layout.unpack_from(raw, 1)[0])


def wide_numbers(joined: bytes, code: int) -> Sequence[Any]:
    """Concatenated encoded numbers that all have the same constructor."""
    kind = NUMBERS[code][1]
    plain: list[Any] = np.frombuffer(joined, WIDE_NUMBERS[code])["number"].tolist()
    return plain if type(plain[0]) is kind else list(map(kind, plain))


@dataclass(frozen=True, slots=True)
class Compound:
    """A list or map whose size differs from message to message."""

    group: int  # the group with the size
    width: int  # in bytes
    base: int  # the number of its bytes outside of `parts`
    parts: tuple[int, ...]  # the groups of variable size in it

    def check(self, columns: Sequence[Column]) -> None:
        """Raise LayoutMismatch if an encoded size is wrong."""
        joined = b"".join(columns[self.group])
        remainders: Iterable[int] = (
            joined if self.width == 1 else unpack(f">{len(joined) // 4}I", joined)
        )
        for part in self.parts:
            remainders = map(sub, remainders, map(len, columns[part]))
        if set(remainders) != {self.base}:
            raise LayoutMismatch


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The structure of some messages."""

    cut: Callable[[bytes], re.Match[bytes] | None]
    value_ids: dict[ValueId, tuple[int, Read]]  # the group, and its reader
    codes: dict[ValueId, int]  # constructors of the values with a fixed constructor
    compounds: tuple[Compound, ...]
    head: int  # the group with the size of the body; the body is the next group

    def __repr__(self) -> str:
        return f"<Pattern {' '.join(value_id.name for value_id in self.value_ids)} body>"

    def fits(self, message: bytes) -> bool:
        """Whether a message has this structure."""
        match = self.cut(message)
        try:
            return match is not None and bool(self.columns([match.groups()]))
        except (LayoutMismatch, MalformedBytes):
            return False

    def columns(self, rows: Sequence[Row]) -> dict[ValueId, Sequence[Any]]:
        """The values of matched messages, by their ids.

        Raises LayoutMismatch or MalformedBytes if one of them does not have this structure.
        """
        columns = tuple(zip(*rows, strict=True))
        for compound in self.compounds:
            compound.check(columns)
        bodies = columns[self.head + 1]
        known = SIZES
        if [known[head] for head in columns[self.head]] != list(map(len, bodies)):
            raise LayoutMismatch
        values_by_id = {
            value_id: read(columns[group]) for value_id, (group, read) in self.value_ids.items()
        }
        values_by_id[BODY] = bodies
        return values_by_id


# --- Learning ------------------------------------------------------------------------------------


class PatternBuilder:
    """Collects the parts of a pattern while one message is visited."""

    def __init__(self, message: bytes) -> None:
        self.frame = message  # MessageVisitor requires the name; here without a frame header
        self.value_ids: dict[ValueId, tuple[int, Read]] = {}
        self.codes: dict[ValueId, int] = {}
        self.compounds: list[Compound] = []
        self.head: int | None = None  # set with the body
        self._parts: list[bytes] = []
        self._groups = 0
        self._literal = b""  # the current literal
        self._loose = False  # whether a value of any size precedes the literal
        self._opened = 0, 0, b""  # open compound: index of its part, of its group, and its size
        self._base = 0  # `base` of the open compound
        self._inside: list[int] = []  # its `parts`

    def literal(self, start: int, end: int) -> None:
        self._literal += self.frame[start:end]
        self._base += end - start

    def fixed(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        self.check(value_id, pos, allowed)
        self.codes[value_id] = self.frame[pos]
        start, length = content_of(self.frame, pos)
        if self.frame[pos] in EIGHT_BYTE_NUMBERS:
            self.literal(pos, start)
            self.sized(value_id, b"", length, numbers)
        else:
            self.sized(value_id, self.frame[pos:start], length, values)

    def value(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        self.check(value_id, pos, allowed)
        start, length = content_of(self.frame, pos)
        if value_id == BODY:
            self.body()
        elif value_id.section in ANNOTATIONS and self.is_number_text(pos):
            # An offset: most other messages have the same number of digits.
            self.literal(pos, start)
            self.sized(value_id, b"", length, digits)
        elif value_id.section == PROPERTIES:
            # No literal separates the fields of a list, so their sizes must be fixed.
            self.sized(value_id, self.frame[pos:start], length, values)
        else:
            self.loose(value_id, allowed)

    def check(self, value_id: ValueId, pos: int, allowed: Mask) -> None:
        if not allowed[self.frame[pos]] or value_id in self.value_ids:
            raise LayoutMismatch

    def is_number_text(self, pos: int) -> bool:
        """Whether the value at `pos` is a short string of digits."""
        start, length = content_of(self.frame, pos)
        text = self.frame[start : start + length]
        return self.frame[pos] == SHORT_STRING and length <= DIGITS_MAX and text.isdigit()

    def sized(self, value_id: ValueId, head: bytes, length: int, read: Read) -> None:
        """Add a value of known size after a fixed head."""
        kind = b"[0-9]" if read is digits else b"."
        self.add(b"(%s%s{%d})" % (re.escape(head), kind, length))
        self.value_ids[value_id] = self._groups - 1, read
        self._base += len(head) + length

    def loose(self, value_id: ValueId, allowed: Mask) -> None:
        """Add a value of any size, up to the first occurrence of the next literal."""
        # Atomic: no backtracking, which may be slow. A value that contains the next literal is left
        # to the decoder.
        self.add(b"(?>(%s)" % alternatives(allowed))
        self._loose = True
        self.value_ids[value_id] = self._groups - 1, values
        self._inside.append(self._groups - 1)

    def open(self, pos: int) -> tuple[int, int]:
        width = WIDTHS[self.frame[pos] >> 4]
        count, items = pos + 1 + width, pos + 1 + 2 * width
        self.literal(pos, pos + 1)
        self.add(b"(.{%d})" % width)
        self._opened = len(self._parts) - 1, self._groups - 1, self.frame[pos + 1 : count]
        self._base, self._inside = 0, []
        self.literal(count, items)
        return items, int.from_bytes(self.frame[count:items], "big")

    def close(self) -> None:
        part, group, size = self._opened
        if self._inside:
            compound = Compound(group, len(size), self._base, tuple(self._inside))
            self.compounds.append(compound)
        else:
            self._parts[part] = b"(%s)" % re.escape(size)  # equal in all messages

    def body(self) -> None:
        self.add(BODY_SHAPE)
        self.head = self._groups - 1
        self._groups += 1

    def add(self, shape: bytes) -> None:
        """End the current literal and start a new group."""
        self.flush()
        self._parts.append(shape)
        self._groups += 1

    def flush(self) -> None:
        # Nothing may follow the body, and a literal must follow a loose value.
        if self.head is not None or (self._loose and not self._literal):
            raise LayoutMismatch
        self._parts.append(re.escape(self._literal) + b")" * self._loose)
        self._literal, self._loose = b"", False

    def pattern(self) -> Pattern:
        if self.head is None or self._literal:
            raise LayoutMismatch
        cut = re.compile(b"".join(self._parts), re.DOTALL).fullmatch
        return Pattern(cut, self.value_ids, self.codes, tuple(self.compounds), self.head)


def alternatives(allowed: Mask) -> bytes:
    """An expression for a value of any allowed constructor."""
    widths: dict[int, list[int]] = {}
    for code in NAMES:
        if allowed[code]:
            widths.setdefault(code >> 4, []).append(code)
    shapes = []
    for upper, codes in sorted(widths.items(), reverse=True):
        one_of = b"[%s]" % b"".join(b"\\x%02x" % code for code in codes)
        shapes.append(one_of + CONTENTS.get(upper, b".{%d}" % WIDTHS[upper]))
    return b"|".join(shapes)


def learn_pattern(message: bytes) -> Pattern | None:
    """The pattern of a message; None if only the decoder can read it.

    Raises MalformedBytes if the message is invalid.
    """
    decode_message(message)
    builder = PatternBuilder(message)
    try:
        visit_message(builder, scan(message, 0, len(message)))
        pattern = builder.pattern()
    except LayoutMismatch:
        return None
    # The message itself may not fit: a value may be too long, or contain the literal that
    # follows it.
    return pattern if pattern.fits(message) else None
