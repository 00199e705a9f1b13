"""Messages that are laid out alike, cut one by one with a regular expression.

For code that wants an object per message and gets them by the dozen, where numpy would not have got
going yet (layouts.py). One message, taken apart by the exact decoder, is made into a pattern:

    \\x00Sr\\xc1 (.) \\x08 ... x-opt-offset\\xa1\\x05 ([0-9]{5}) ... \\x00Su (\\xa0.|\\xb0.{4}) (.*)

The expression only finds where things might be. What it has cut out is then held to account: each
value must decode to its last byte, each map must have the size that it says, the body too. There is
one way only to read AMQP, so what passes is exactly what the decoder would have read; what does not
pass is left to the decoder.

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
from pumphouse.amqp.columnar.cells import BODY, Mask, Place
from pumphouse.amqp.columnar.learned import ANNOTATIONS, NotAlike, content, learn_message
from pumphouse.amqp.constructors import NAMES, NUMBERS, WIDTHS
from pumphouse.amqp.messages import PROPERTIES, decode_message, scan
from pumphouse.errors import MalformedBytes

SHORT_MAX, LONG_MAX = 0xFF, 4096  # bytes of a value with a short and with a long size
DIGITS_MAX = 20  # of a number written as text
REMEMBERED_MAX, REMEMBERED_BYTES = 1 << 14, 64  # values, and the bytes of one
EIGHT_BYTE_NUMBERS = (0x81, 0x83)  # long and time, which come out as plain ints

SHORT_STRING = 0xA1
# The letters of struct, as numpy writes them.
NUMPY_KINDS = {ord("I"): "u4", ord("i"): "i4", ord("Q"): "u8", ord("q"): "i8"} | {
    ord("f"): "f4",
    ord("d"): "f8",
}
BODY_SHAPE = rb"(\xa0.|\xb0.{4})(.*)"  # the size, which must be right, and the rest
# Numbers of four bytes and more, which seldom come again: how they are laid out.
WIDE_NUMBERS = {
    code: np.dtype([("code", "u1"), ("number", f">{layout.format[1:].translate(NUMPY_KINDS)}")])
    for code, (layout, _) in NUMBERS.items()
    if layout.size >= 4
}
# What follows a constructor that announces a size, by its upper half: as little as will do.
CONTENTS = {
    0xA: b".{1,%d}?" % (1 + SHORT_MAX),
    0xB: b".{4,%d}?" % (4 + LONG_MAX),
}

Row = tuple[bytes, ...]  # what the groups of the expression have cut out of one message
Column = tuple[bytes, ...]  # what one group has cut out of many
Read = Callable[[Column], Sequence[Any]]


class Decoded(dict[bytes, Any]):
    """Values by their bytes. Producers say the same things over and over."""

    def __missing__(self, raw: bytes) -> Any:
        value, after = decode(raw)
        if after != len(raw):
            raise NotAlike
        if len(raw) <= REMEMBERED_BYTES and raw[0] not in WIDE_NUMBERS:
            if len(self) >= REMEMBERED_MAX:
                self.clear()
            self[raw] = value
        return value


class Sizes(dict[bytes, int]):
    """How long a body is, by the bytes that stand before it."""

    def __missing__(self, head: bytes) -> int:
        size = int.from_bytes(head[1:], "big")
        if len(self) < REMEMBERED_MAX:
            self[head] = size
        return size


DECODED, SIZES = Decoded(), Sizes()  # only values that cannot change are in them


def numbers(found: Column) -> Sequence[int]:
    return unpack(f">{len(found)}q", b"".join(found))


def digits(found: Column) -> Sequence[str]:
    return [text.decode() for text in found]


def values(found: Column) -> Sequence[Any]:
    """Values of any kind: numbers that differ at once, all else by what is known."""
    code, size = found[0][0], len(found[0])
    if code in WIDE_NUMBERS:
        joined = b"".join(found)
        if set(map(len, found)) == {size} and joined[::size].count(code) == len(found):
            return wide_numbers(joined, code)
        return [one_value(raw) for raw in found]
    known = DECODED
    return [known[raw] for raw in found]


def one_value(raw: bytes) -> Any:
    if raw[0] not in WIDE_NUMBERS:
        return DECODED[raw]
    layout, kind = NUMBERS[raw[0]]
    return kind(layout.unpack_from(raw, 1)[0])


def wide_numbers(joined: bytes, code: int) -> Sequence[Any]:
    """Encoded numbers, one behind the other, that all have the same constructor."""
    kind = NUMBERS[code][1]
    plain: list[Any] = np.frombuffer(joined, WIDE_NUMBERS[code])["number"].tolist()
    return plain if type(plain[0]) is kind else list(map(kind, plain))


@dataclass(frozen=True, slots=True)
class Compound:
    """A list or map whose size differs from message to message."""

    group: int  # where the size is
    width: int  # in bytes
    base: int  # what is always in it
    parts: tuple[int, ...]  # the groups of what else is in it

    def check(self, columns: Sequence[Column]) -> None:
        joined = b"".join(columns[self.group])
        left: Iterable[int] = joined if self.width == 1 else unpack(f">{len(joined) // 4}I", joined)
        for part in self.parts:
            left = map(sub, left, map(len, columns[part]))
        if set(left) != {self.base}:
            raise NotAlike


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """How some messages are laid out."""

    cut: Callable[[bytes], re.Match[bytes] | None]
    places: dict[Place, tuple[int, Read]]  # the group, and what it means
    codes: dict[Place, int]  # the constructors of those values that all have the same
    compounds: tuple[Compound, ...]
    head: int  # the group that says how long the body is, which is the next one

    def __repr__(self) -> str:
        return f"<Pattern {' '.join(place.name for place in self.places)} body>"

    def fits(self, message: bytes) -> bool:
        """Whether a message is laid out so."""
        found = self.cut(message)
        try:
            return found is not None and bool(self.columns([found.groups()]))
        except (NotAlike, MalformedBytes):
            return False

    def columns(self, rows: Sequence[Row]) -> dict[Place, Sequence[Any]]:
        """The values of messages that were cut, by their places; raises NotAlike or MalformedBytes
        if one of them is not laid out so after all."""
        columns = tuple(zip(*rows, strict=True))
        for compound in self.compounds:
            compound.check(columns)
        bodies = columns[self.head + 1]
        known = SIZES
        if [known[head] for head in columns[self.head]] != list(map(len, bodies)):
            raise NotAlike
        found = {place: read(columns[at]) for place, (at, read) in self.places.items()}
        found[BODY] = bodies
        return found


# --- Learning ------------------------------------------------------------------------------------


class Expression:
    """The parts of a pattern, collected while one message is taken apart."""

    def __init__(self, message: bytes) -> None:
        self.frame = message
        self.places: dict[Place, tuple[int, Read]] = {}
        self.codes: dict[Place, int] = {}
        self.compounds: list[Compound] = []
        self.head: int | None = None  # once the body has come
        self._parts: list[bytes] = []
        self._groups = 0
        self._said = b""  # the literal that is being put together
        self._loose = False  # the part before it ends where it begins
        self._opened = 0, 0, b""  # which part and group is the size of a compound, and the size
        self._base = 0
        self._inside: list[int] = []

    def literal(self, start: int, end: int) -> None:
        self._said += self.frame[start:end]
        self._base += end - start

    def fixed(self, place: Place, pos: int, allowed: Mask) -> None:
        self.check(place, pos, allowed)
        self.codes[place] = self.frame[pos]
        start, length = content(self.frame, pos)
        if self.frame[pos] in EIGHT_BYTE_NUMBERS:
            self.literal(pos, start)
            self.sized(place, b"", length, numbers)
        else:
            self.sized(place, self.frame[pos:start], length, values)

    def value(self, place: Place, pos: int, allowed: Mask) -> None:
        self.check(place, pos, allowed)
        start, length = content(self.frame, pos)
        if place == BODY:
            self.body()
        elif place.section in ANNOTATIONS and self.counts(pos):
            # A position that the hub counts: as wide in most others.
            self.literal(pos, start)
            self.sized(place, b"", length, digits)
        elif place.section == PROPERTIES:
            # Nothing stands between the fields of a list, so their sizes must be known.
            self.sized(place, self.frame[pos:start], length, values)
        else:
            self.loose(place, allowed)

    def check(self, place: Place, pos: int, allowed: Mask) -> None:
        if not allowed[self.frame[pos]] or place in self.places:
            raise NotAlike

    def counts(self, pos: int) -> bool:
        """Whether the value at `pos` is a number, written as text."""
        start, length = content(self.frame, pos)
        text = self.frame[start : start + length]
        return self.frame[pos] == SHORT_STRING and length <= DIGITS_MAX and text.isdigit()

    def sized(self, place: Place, head: bytes, length: int, read: Read) -> None:
        """A value that has a known size, behind a head that must be there."""
        kind = b"[0-9]" if read is digits else b"."
        self.add(b"(%s%s{%d})" % (re.escape(head), kind, length))
        self.places[place] = self._groups - 1, read
        self._base += len(head) + length

    def loose(self, place: Place, allowed: Mask) -> None:
        """A value of any size: it goes on to where the literal behind it is first seen."""
        # Atomic: a second look for another end would be of no use, and there could be many.
        self.add(b"(?>(%s)" % alternatives(allowed))
        self._loose = True
        self.places[place] = self._groups - 1, values
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
            self._parts[part] = b"(%s)" % re.escape(size)  # the same in all of them

    def body(self) -> None:
        self.add(BODY_SHAPE)
        self.head = self._groups - 1
        self._groups += 1

    def add(self, shape: bytes) -> None:
        """End the literal so far, and begin with a new group."""
        self.flush()
        self._parts.append(shape)
        self._groups += 1

    def flush(self) -> None:
        # Nothing may follow a body, which has no end of its own, nor a value without a literal.
        if self.head is not None or (self._loose and not self._said):
            raise NotAlike
        self._parts.append(re.escape(self._said) + b")" * self._loose)
        self._said, self._loose = b"", False

    def pattern(self) -> Pattern:
        if self.head is None or self._said:
            raise NotAlike
        cut = re.compile(b"".join(self._parts), re.DOTALL).fullmatch
        return Pattern(cut, self.places, self.codes, tuple(self.compounds), self.head)


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
    """The pattern of a message; None if there is something in it that only the decoder can read.

    Raises MalformedBytes if the message is not what it should be: only good ones are learned from.
    """
    decode_message(message)
    expression = Expression(message)
    try:
        learn_message(expression, scan(message, 0, len(message)))
        found = expression.pattern()
    except NotAlike:
        return None
    # A value may be too long, or hold what should only follow it.
    return found if found.fits(message) else None
