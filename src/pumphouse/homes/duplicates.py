"""Has this reading been seen before? Exact, in a few bytes per sensor, and without a clock.

Of each sensor the highest sequence number is remembered, and with a bit each which of the 64 up to
it have been seen, as a receiver of network packets guards against replays. So repeats are found
for 64 readings (an hour of a sensor that reads once a minute) however late they come; nothing is
dropped for being late. A reading older than that is taken as new: rather twice than never.

    kept readings, SequenceWindows -> admit_new -> which are new, SequenceWindows
                           ^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 64  # bits of a word

Keys = NDArray[np.int32]
Numbers = NDArray[np.int64]
Bits = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SequenceWindows:
    """By sensor, in the order of `keys`: the highest number, and the bits of those up to it.

    Bit n stands for `highest - n`.
    """

    keys: Keys
    highest: Numbers
    bits: Bits

    def to_bytes(self) -> bytes:
        return b"".join((self.keys.tobytes(), self.highest.tobytes(), self.bits.tobytes()))

    @classmethod
    def from_bytes(cls, packed: bytes) -> SequenceWindows:
        count = len(packed) // 20
        return cls(
            np.frombuffer(packed, np.int32, count),
            np.frombuffer(packed, np.int64, count, 4 * count),
            np.frombuffer(packed, np.uint64, count, 12 * count),
        )


NOTHING = SequenceWindows(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))


def admit_new(seen: SequenceWindows, keys: Keys, numbers: Numbers) -> tuple[Mask, SequenceWindows]:
    """Which of these (sensor, number) are new, the first of equal ones; and what is seen then."""
    order = np.lexsort((numbers, keys))  # stable: of equal ones the first stays the first
    key, number = keys[order], numbers[order]
    first = np.ones(len(order), bool)
    first[1:] = (key[1:] != key[:-1]) | (number[1:] != number[:-1])
    seen = with_sensors(seen, key)
    at = np.searchsorted(seen.keys, key)
    behind = seen.highest[at] - number
    within = (behind >= 0) & (behind < WINDOW)
    known = within & bit_set(seen.bits[at], behind)
    fresh = first & ~known
    new = np.zeros(len(order), bool)
    new[order] = fresh
    return new, marked(seen, at[fresh], number[fresh])


def with_sensors(seen: SequenceWindows, keys: Keys) -> SequenceWindows:
    """With a place for each of these, which are in order; the new ones have seen nothing."""
    unknown = missing(seen.keys, keys)
    if not len(unknown):
        return seen
    together = np.union1d(seen.keys, unknown).astype(np.int32)
    highest = np.full(len(together), np.iinfo(np.int64).min // 2)
    bits = np.zeros(len(together), np.uint64)
    old = np.searchsorted(together, seen.keys)
    highest[old], bits[old] = seen.highest, seen.bits
    return SequenceWindows(together, highest, bits)


def missing(known: Keys, keys: Keys) -> Keys:
    """Those of the keys that are not known; `known` are in order. Nearly always there are none, and
    a search for few among many takes a hundredth of the time that sorting all of them does."""
    if not len(known):
        return keys
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    out: Keys = keys[known[at] != keys]
    return out


def marked(seen: SequenceWindows, at: NDArray[np.intp], numbers: Numbers) -> SequenceWindows:
    """With these numbers seen; `at` is where each one's sensor stands."""
    highest, bits = seen.highest.copy(), seen.bits.copy()
    np.maximum.at(highest, at, numbers)
    bits = shifted(bits, highest - seen.highest)
    behind = highest[at] - numbers
    near = behind < WINDOW
    np.bitwise_or.at(bits, at[near], np.uint64(1) << behind[near].astype(np.uint64))
    return SequenceWindows(seen.keys, highest, bits)


def shifted(bits: Bits, by: Numbers) -> Bits:
    """A shift by 64 or more leaves nothing; the machine's own would leave the word as it is."""
    moved = bits << np.minimum(by, WINDOW - 1).astype(np.uint64)
    return np.where(by < WINDOW, moved, np.uint64(0))


def bit_set(bits: Bits, place: Numbers) -> Mask:
    usable = np.clip(place, 0, WINDOW - 1).astype(np.uint64)
    found: Mask = (bits >> usable) & np.uint64(1) == 1
    return found
