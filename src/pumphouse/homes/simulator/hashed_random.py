"""Random numbers computed by hashing (seed, home, purpose, time), in place of a random sequence.

The simulator must produce any minute without the minutes before it, and several senders must agree.
So a random number is not the next of a sequence but a hash of what it is for. The hash is the
finalizer of SplitMix64, written out here so that no release of numpy can change a byte.

    home_keys(seed, homes) -> random_bits(keys, purpose, when) -> quarters -> below, ...
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

UInt64s: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
UInt8s: TypeAlias = npt.NDArray[np.uint8]
Indices: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Flags: TypeAlias = npt.NDArray[np.bool_]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(word: int) -> int:
    """One number, well stirred: the same function as `mix_array`, for Python's own integers."""
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def mix_array(words: UInt64s) -> UInt64s:
    """Every word, well stirred. Works in place on a copy: memory is what this costs."""
    out: UInt64s = words + np.uint64(_GOLDEN)
    out ^= out >> np.uint64(30)
    out *= np.uint64(_FIRST)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_SECOND)
    out ^= out >> np.uint64(31)
    return out


def home_keys(seed: int, numbers: npt.NDArray[Any]) -> UInt64s:
    """What stands for each home in every random_bits."""
    return mix_array(numbers.astype(np.uint64) + np.uint64(mix(seed & _MASK)))


def random_bits(keys: UInt64s, purpose: int, when: int = 0) -> UInt64s:
    """64 fair bits for each home, for one purpose at one time."""
    return mix_array(keys ^ np.uint64(mix(mix(purpose) + when)))


def random_bits_at(keys: UInt64s, purpose: int, when: npt.NDArray[Any]) -> UInt64s:
    """The same where each home has a time of its own."""
    return mix_array(random_bits(keys, purpose) ^ when.astype(np.uint64))


def quarters(words: UInt64s) -> tuple[Ints, Ints, Ints, Ints]:
    """Four throws of 0..65535 out of each 64 bits."""
    q = np.ascontiguousarray(words).view("<u2").reshape(-1, 4).astype(np.int32)
    return q[:, 0], q[:, 1], q[:, 2], q[:, 3]


def below(quarter: Ints, count: int | Ints) -> Ints:
    """A quarter as a number below `count`, which is at most 32,767."""
    out: Ints = (quarter * count) >> 16
    return out


def with_probability(quarter: Ints, probability: float) -> Flags:
    """Whether it happens; fine to one in 65,536."""
    return quarter < round(probability * 65536)


def with_small_probability(words: UInt64s, probability: float) -> Flags:
    """Whether it happens, for probabilities that may be very small."""
    return words < np.uint64(min(int(probability * 2.0**64), _MASK))
