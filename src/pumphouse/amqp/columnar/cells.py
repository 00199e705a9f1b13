"""A buffer of received bytes, seen as numbers; and what stands in it, told as places.

    buffer -> Cells -> Layout.match -> Values: where each value of each frame is
              ^^^^^ this module        ^^^^^^ and this

The tables at the end say which constructors are what, for lookups by the thousand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.amqp.constructors import NAMES, WIDTHS
from pumphouse.amqp.messages import DATA
from pumphouse.amqp.performatives import Transfer
from pumphouse.amqp.types import Symbol, UInt

Places = npt.NDArray[np.int64]  # positions in a buffer, or lengths
Mask = npt.NDArray[np.bool_]

SLACK = 16  # bytes that a buffer must have behind its last frame: words are read past the end of it
WORD = 8
SIZE_BYTES = 4  # of a frame; whoever found the frame has read them
SMALL, WIDE = 1, 4  # bytes in the size and in the count of a compound
NAME_BYTES_MAX = 256


class Place(NamedTuple):
    """What a value is: the section it stands in, and its name there."""

    section: int
    name: str


BODY = Place(DATA, "body")
DELIVERY_ID = Place(Transfer.CODE, "delivery-id")


class Values(NamedTuple):
    """One value of each of many frames: its constructor, and where its content lies."""

    codes: npt.NDArray[np.uint8]
    starts: Places
    lengths: Places
    kinds: frozenset[int]  # there are no other constructors among them

    def keep(self, good: Mask | Places) -> Values:
        """Some of them: where the mask is true, or those in these places."""
        return Values(self.codes[good], self.starts[good], self.lengths[good], self.kinds)


def every(mask: Mask) -> bool:
    """What mask.all() says, in a third of the time if the mask is small."""
    return int(np.count_nonzero(mask)) == mask.size


class Cells:
    """A buffer, seen as numbers that may start at any byte."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._each: dict[str, npt.NDArray[np.generic]] = {}

    def each(self, kind: str) -> npt.NDArray[np.generic]:
        """The number (">u4", ">i8", ...) or the stretch of bytes ("V24") at each position."""
        found = self._each.get(kind)
        if found is None:
            count = max(0, len(self.data) - np.dtype(kind).itemsize + 1)
            found = self._each[kind] = np.ndarray((count,), kind, self.data, strides=(1,))
        return found

    def sizes(self, places: Places) -> Places:
        """The four bytes at each place as a size."""
        return self.each(">u4")[places].astype(np.int64)

    def heads(self, frames: Places) -> npt.NDArray[np.uint64]:
        """The eight bytes behind the size of each frame."""
        return self.each("u8")[frames + SIZE_BYTES].view(np.uint64)

    def stretches(self, places: Places, size: int) -> npt.NDArray[np.uint8]:
        """The bytes at each place, a row of `size` for each."""
        found = self.each(f"V{size}")[places]
        return found.view(np.uint8).reshape(len(places), size)

    def integers(self, values: Values) -> Places:
        """Values whose constructors are all in INTEGERS, as numbers."""
        # Whatever its width, a number is the first of eight bytes: what follows is shifted out. Of
        # one that has no bytes at all nothing is left, which is right: it is a zero.
        found = self.each(">i8")[values.starts].astype(np.int64)
        if values.kinds <= EIGHT_BYTES:
            return found
        if values.kinds <= SIGNED:
            return found >> SHIFTS[values.codes]
        unsigned = (found.view(np.uint64) >> SHIFTS[values.codes].view(np.uint64)).view(np.int64)
        return np.where(IS_SIGNED[values.codes], found >> SHIFTS[values.codes], unsigned)


# --- Constructors --------------------------------------------------------------------------------


def table(*codes: int) -> Mask:
    """Which constructors are allowed, by their number."""
    allowed = np.zeros(256, np.bool_)
    allowed[list(codes)] = True
    return allowed


STRINGS = frozenset((0xA1, 0xB1))
SYMBOLS = frozenset((0xA3, 0xB3))
BINARIES = frozenset((0xA0, 0xB0))
IS_SYMBOL = table(*SYMBOLS)
NULL, EMPTY_LIST = 0x40, 0x45
# Booleans in two bytes and characters may hold what they must not: the decoder looks at those.
CHECKED_ALONE = (EMPTY_LIST, 0x56, 0x73)
SIMPLE = table(*(code for code in NAMES if code < 0xC0 and code not in CHECKED_ALONE))
PRESENT = SIMPLE & ~table(NULL)
IS_BINARY = table(*BINARIES)
IS_UINT = table(0x43, 0x52, 0x70)
# All that fit 64 bits with a sign: of unsigned longs only the short forms do.
EIGHT_BYTES = frozenset((0x81, 0x83))
SIGNED = EIGHT_BYTES | {0x51, 0x54, 0x55, 0x61, 0x71}
INTEGERS = SIGNED | {0x43, 0x44, 0x50, 0x52, 0x53, 0x60, 0x70}
IS_SIGNED = table(*SIGNED)
# Bytes behind the constructor, where there is no size.
FIXED_WIDTHS = np.array([WIDTHS.get(code >> 4, 0) for code in range(256)], np.int64)
# By how many bits to shift eight bytes that start with a number, to be left with the number.
SHIFTS = np.array([64 - 8 * min(WIDTHS.get(code >> 4, 8), 8) for code in range(256)], np.int64)
ALONE = [frozenset((code,)) for code in range(256)]
FIELD_KINDS = {
    object: PRESENT,
    bytes: IS_BINARY,
    str: table(*STRINGS, *SYMBOLS),
    Symbol: IS_SYMBOL,  # a string may be taken for one; the decoder looks whether it could be
    UInt: IS_UINT,
}
