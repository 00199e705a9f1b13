"""Random numbers computed by hashing (seed, home, purpose, time), in place of a random sequence.

The simulator must produce any minute without the minutes before it, and several senders must agree.
So a random number is not the next of a sequence but a hash of what it is for. The hash is the
finalizer of SplitMix64. It is written out here, so the numbers do not depend on the numpy version.

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
    """The hash of one Python integer: the same function as `mix_array`."""
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def mix_array(words: UInt64s) -> UInt64s:
    """The hash of every word, computed in place on one copy: memory traffic is its main cost."""
    out: UInt64s = words + np.uint64(_GOLDEN)
    out ^= out >> np.uint64(30)
    out *= np.uint64(_FIRST)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_SECOND)
    out ^= out >> np.uint64(31)
    return out


def home_keys(seed: int, numbers: npt.NDArray[Any]) -> UInt64s:
    """One key per home, the input of all its random numbers."""
    return mix_array(numbers.astype(np.uint64) + np.uint64(mix(seed & _MASK)))


def random_bits(keys: UInt64s, purpose: int, when: int = 0) -> UInt64s:
    """64 uniform bits for each home, for one purpose at one time."""
    return mix_array(keys ^ np.uint64(mix(mix(purpose) + when)))


def random_bits_at(keys: UInt64s, purpose: int, when: npt.NDArray[Any]) -> UInt64s:
    """64 uniform bits for each home, for one purpose, each home at its own time."""
    return mix_array(random_bits(keys, purpose) ^ when.astype(np.uint64))


def quarters(words: UInt64s) -> tuple[Ints, Ints, Ints, Ints]:
    """Four numbers from 0 to 65535 out of each 64 bits."""
    q = np.ascontiguousarray(words).view("<u2").reshape(-1, 4).astype(np.int32)
    return q[:, 0], q[:, 1], q[:, 2], q[:, 3]


def below(quarter: Ints, count: int | Ints) -> Ints:
    """A quarter scaled to a number from 0 to `count - 1`; `count` is at most 32,767."""
    out: Ints = (quarter * count) >> 16
    return out


def with_probability(quarter: Ints, probability: float) -> Flags:
    """True with a probability, to a precision of 1 in 65,536."""
    return quarter < round(probability * 65536)


def with_small_probability(words: UInt64s, probability: float) -> Flags:
    """True with a probability that may be very small."""
    return words < np.uint64(min(int(probability * 2.0**64), _MASK))
