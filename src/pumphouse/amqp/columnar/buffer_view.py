"""A buffer of received bytes as numpy arrays, and the positions of encoded values in it.

    buffer -> BufferView -> Layout.match -> Values: position of each value of each frame
              ^^^^^^^^^^ this module        ^^^^^^ and this

The tables at the end classify the constructors for vectorised lookups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.amqp.constructors import NAMES, WIDTHS
from pumphouse.amqp.messages import DATA
from pumphouse.amqp.performatives import Transfer
from pumphouse.amqp.types import Symbol, UInt

IntArray = npt.NDArray[np.int64]  # positions in a buffer, or lengths
Mask = npt.NDArray[np.bool_]

# Bytes required after the last frame. Numbers are read as eight bytes, so reading the last number
# of a frame may read beyond the end of the frame.
SLACK = 16
WORD = 8
SIZE_BYTES = 4  # length of the size field at the start of a frame
SMALL, WIDE = 1, 4  # bytes of the size and of the count of a compound
NAME_BYTES_MAX = 256  # longer symbols are left to the decoder


class ValueId(NamedTuple):
    """Identifies a value of a message: its section, and its name there."""

    section: int
    name: str


BODY = ValueId(DATA, "body")
DELIVERY_ID = ValueId(Transfer.CODE, "delivery-id")


class Values(NamedTuple):
    """One value of each of many frames: its constructor, and the position of its content."""

    codes: npt.NDArray[np.uint8]
    starts: IntArray
    lengths: IntArray
    kinds: frozenset[int]  # contains every constructor in `codes`; after `keep` also others

    def keep(self, selection: Mask | IntArray) -> Values:
        """The values where the mask is true, or at these indexes."""
        return Values(
            self.codes[selection], self.starts[selection], self.lengths[selection], self.kinds
        )


def all_true(mask: Mask) -> bool:
    """`mask.all()`, in a third of the time for small masks."""
    return int(np.count_nonzero(mask)) == mask.size


class BufferView:
    """A buffer as numpy arrays of numbers that may start at any byte."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._arrays: dict[str, npt.NDArray[np.generic]] = {}

    def as_type(self, kind: str) -> npt.NDArray[np.generic]:
        """The number (">u4", ">i8", ...) or byte string ("V24") at each position."""
        array = self._arrays.get(kind)
        if array is None:
            count = max(0, len(self.data) - np.dtype(kind).itemsize + 1)
            array = self._arrays[kind] = np.ndarray((count,), kind, self.data, strides=(1,))
        return array

    def sizes(self, positions: IntArray) -> IntArray:
        """The four bytes at each position as a size."""
        return self.as_type(">u4")[positions].astype(np.int64)

    def frame_heads(self, frames: IntArray) -> npt.NDArray[np.uint64]:
        """The eight bytes after the size of each frame."""
        return self.as_type("u8")[frames + SIZE_BYTES].view(np.uint64)

    def byte_rows(self, positions: IntArray, size: int) -> npt.NDArray[np.uint8]:
        """A matrix with the `size` bytes at each position as a row."""
        rows = self.as_type(f"V{size}")[positions]
        return rows.view(np.uint8).reshape(len(positions), size)

    def integers(self, values: Values) -> IntArray:
        """Values whose constructors are all in INTEGERS, as numbers."""
        # Read eight bytes from the start of each number and shift out the bytes after it. The
        # shift of a number without bytes (such as uint0) gives zero, which is its value.
        words = self.as_type(">i8")[values.starts].astype(np.int64)
        if values.kinds <= EIGHT_BYTES:
            return words
        if values.kinds <= SIGNED:
            return words >> SHIFTS[values.codes]
        unsigned = (words.view(np.uint64) >> SHIFTS[values.codes].view(np.uint64)).view(np.int64)
        return np.where(IS_SIGNED[values.codes], words >> SHIFTS[values.codes], unsigned)


# --- Constructors --------------------------------------------------------------------------------


def mask_of(*codes: int) -> Mask:
    """A lookup table by constructor: true for these codes."""
    mask = np.zeros(256, np.bool_)
    mask[list(codes)] = True
    return mask


STRINGS = frozenset((0xA1, 0xB1))
SYMBOLS = frozenset((0xA3, 0xB3))
BINARIES = frozenset((0xA0, 0xB0))
IS_SYMBOL = mask_of(*SYMBOLS)
NULL, EMPTY_LIST = 0x40, 0x45
# Left to the decoder: empty lists, and booleans (0x56) and characters (0x73), whose bytes may be
# invalid.
CHECKED_BY_DECODER = (EMPTY_LIST, 0x56, 0x73)
# All other scalars, binaries, strings and symbols: no lists, maps or arrays.
SIMPLE = mask_of(*(code for code in NAMES if code < 0xC0 and code not in CHECKED_BY_DECODER))
# The same without null.
PRESENT = SIMPLE & ~mask_of(NULL)
IS_BINARY = mask_of(*BINARIES)
IS_UINT = mask_of(0x43, 0x52, 0x70)
EIGHT_BYTES = frozenset((0x81, 0x83))
SIGNED = EIGHT_BYTES | {0x51, 0x54, 0x55, 0x61, 0x71}
# Without ulong (0x80), whose values may not fit into signed 64 bits. Its short forms fit.
INTEGERS = SIGNED | {0x43, 0x44, 0x50, 0x52, 0x53, 0x60, 0x70}
IS_SIGNED = mask_of(*SIGNED)
# Bytes after the constructor, for constructors without a size.
FIXED_WIDTHS = np.array([WIDTHS.get(code >> 4, 0) for code in range(256)], np.int64)
# Right shift that extracts a number from the eight bytes that start with it.
SHIFTS = np.array([64 - 8 * min(WIDTHS.get(code >> 4, 8), 8) for code in range(256)], np.int64)
SINGLE_KIND = [frozenset((code,)) for code in range(256)]
# Declared type of a message field -> the constructors that need no decoder.
FIELD_KINDS = {
    object: PRESENT,
    bytes: IS_BINARY,
    str: mask_of(*STRINGS, *SYMBOLS),
    Symbol: IS_SYMBOL,  # the decoder also accepts strings
    UInt: IS_UINT,
}
