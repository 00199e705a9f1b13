"""Chance that anybody can look up: a hash of (seed, home, purpose, time) in place of a stream.

The generator must answer for any minute without the minutes before it, and many producers must
agree, so a throw is not taken from a sequence but computed from where it is needed. The hash is the
finalizer of SplitMix64, written out here so that no release of numpy can change a single byte.

    Dice(seed, homes) -> keys -> throw(keys, purpose, when) -> below, chance, quarters
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Small: TypeAlias = npt.NDArray[np.uint8]
Rows: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Flags: TypeAlias = npt.NDArray[np.bool_]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(word: int) -> int:
    """One number, well stirred: the same function as `stir`, for Python's own integers."""
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def stir(words: Words) -> Words:
    """Every word, well stirred. Works in place on a copy: memory is what this costs."""
    out: Words = words + np.uint64(_GOLDEN)
    out ^= out >> np.uint64(30)
    out *= np.uint64(_FIRST)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_SECOND)
    out ^= out >> np.uint64(31)
    return out


def keys_of(seed: int, numbers: npt.NDArray[Any]) -> Words:
    """What stands for each home in every throw."""
    return stir(numbers.astype(np.uint64) + np.uint64(mixed(seed & _MASK)))


def throw(keys: Words, purpose: int, when: int = 0) -> Words:
    """64 fair bits for each home, for one purpose at one time."""
    return stir(keys ^ np.uint64(mixed(mixed(purpose) + when)))


def throw_each(keys: Words, purpose: int, when: npt.NDArray[Any]) -> Words:
    """The same where each home has a time of its own."""
    return stir(throw(keys, purpose) ^ when.astype(np.uint64))


def quarters(words: Words) -> tuple[Ints, Ints, Ints, Ints]:
    """Four throws of 0..65535 out of each 64 bits."""
    q = np.ascontiguousarray(words).view("<u2").reshape(-1, 4).astype(np.int32)
    return q[:, 0], q[:, 1], q[:, 2], q[:, 3]


def below(quarter: Ints, count: int | Ints) -> Ints:
    """A quarter as a number below `count`, which is at most 32,767."""
    out: Ints = (quarter * count) >> 16
    return out


def chance(quarter: Ints, probability: float) -> Flags:
    """Whether it happens; fine to one in 65,536."""
    return quarter < round(probability * 65536)


def rarely(words: Words, probability: float) -> Flags:
    """Whether it happens, for probabilities that may be very small."""
    return words < np.uint64(min(int(probability * 2.0**64), _MASK))
