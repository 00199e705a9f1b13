"""Finds duplicate readings exactly, in a few bytes per sensor, and without a clock.

For each sensor the highest sequence number is stored, and one bit for each of the 64 numbers up to
it. (IPsec detects replayed packets in the same way.) So a duplicate is found if it is among the
last 64 numbers of its sensor, which is an hour of a sensor that sends once a minute. No reading is
dropped because it is late. A reading older than the window counts as new, because a duplicate is
better than a loss.

    kept readings, SequenceWindows -> admit_new -> which are new, SequenceWindows
                                      ^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 64  # sequence numbers per sensor, one bit each in a uint64

Keys = NDArray[np.int32]
Numbers = NDArray[np.int64]
Bits = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SequenceWindows:
    """The highest sequence number of each sensor, and the window of 64 bits up to it.

    `keys` are the ids of the sensors, sorted; the other columns have the same order.

    Bit n is set if `highest - n` was received. The byte layout is part of the checkpoint.
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


NO_WINDOWS = SequenceWindows(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))


def admit_new(
    windows: SequenceWindows, keys: Keys, numbers: Numbers
) -> tuple[Mask, SequenceWindows]:
    """Which of these (sensor, number) pairs are new, and the windows after receiving them. Of equal
    pairs, only the first is new."""
    order = np.lexsort((numbers, keys))  # stable: keeps the order of equal pairs
    key, number = keys[order], numbers[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (key[1:] != key[:-1]) | (number[1:] != number[:-1])
    windows = with_sensors(windows, key)
    at = np.searchsorted(windows.keys, key)  # the index of the sensor of each pair
    behind = windows.highest[at] - number
    in_window = (behind >= 0) & (behind < WINDOW)
    is_duplicate = in_window & is_bit_set(windows.bits[at], behind)
    is_new = is_first & ~is_duplicate
    admitted = np.zeros(len(order), bool)
    admitted[order] = is_new
    return admitted, with_numbers(windows, at[is_new], number[is_new])


def with_sensors(windows: SequenceWindows, keys: Keys) -> SequenceWindows:
    """The windows with an entry for each of these sorted keys; new windows are empty."""
    unknown = missing(windows.keys, keys)
    if not len(unknown):
        return windows
    all_keys = np.union1d(windows.keys, unknown).astype(np.int32)
    highest = np.full(len(all_keys), np.iinfo(np.int64).min // 2)
    bits = np.zeros(len(all_keys), np.uint64)
    known_rows = np.searchsorted(all_keys, windows.keys)
    highest[known_rows], bits[known_rows] = windows.highest, windows.bits
    return SequenceWindows(all_keys, highest, bits)


def missing(known: Keys, keys: Keys) -> Keys:
    """The keys that are not in the sorted `known`. Usually there are none, and this search is
    about 100 times faster than sorting all keys."""
    if not len(known):
        return keys
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    out: Keys = keys[known[at] != keys]
    return out


def with_numbers(
    windows: SequenceWindows, at: NDArray[np.intp], numbers: Numbers
) -> SequenceWindows:
    """The windows after receiving these numbers; `at` is the index of each number's sensor."""
    highest, bits = windows.highest.copy(), windows.bits.copy()
    np.maximum.at(highest, at, numbers)
    rows = np.unique(at)  # few: a batch has readings of a small part of the sensors
    bits[rows] = shifted(bits[rows], highest[rows] - windows.highest[rows])
    behind = highest[at] - numbers
    inside = behind < WINDOW
    np.bitwise_or.at(bits, at[inside], np.uint64(1) << behind[inside].astype(np.uint64))
    return SequenceWindows(windows.keys, highest, bits)


def shifted(bits: Bits, by: Numbers) -> Bits:
    """Bits shifted left. A shift by 64 or more gives 0."""
    moved = bits << np.minimum(by, WINDOW - 1).astype(np.uint64)
    return np.where(by < WINDOW, moved, np.uint64(0))


def is_bit_set(bits: Bits, position: Numbers) -> Mask:
    usable = np.clip(position, 0, WINDOW - 1).astype(np.uint64)
    is_set: Mask = (bits >> usable) & np.uint64(1) == 1
    return is_set
