"""The partition of each home: the hash that Event Hubs applies to keys, for many homes at once.

A sender that knows the partition of each key can send large batches to partitions, each event with
its key; otherwise it would need one batch per key. The buffered producer of the official .NET
client does the same. The hub's routing hashes one key at a time; a test checks that both give
the same partition.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pumphouse.homes.simulator.hashed_random import Ints

UInt32s: TypeAlias = npt.NDArray[np.uint32]

# Bob Jenkins' lookup3 for keys of at most twelve bytes: only its final mixing, no rounds.
_ROTATIONS: Final = (14, 11, 25, 16, 4, 14, 24)
_START: Final = 0xDEADBEEF


def partitions_of(numbers: Ints, partitions: int) -> Ints:
    """The partition of each home, by its number."""
    keys = np.array([f"h{number:06d}" for number in numbers.tolist()], "S12")
    words = keys.view("<u4").reshape(-1, 3)
    start = np.uint32((_START + len("h000000")) & 0xFFFFFFFF)
    b, c = _final_mix(*(words[:, column] + start for column in range(3)))
    hashed = (b ^ c).astype(np.uint16).view(np.int16).astype(np.int32)
    out: Ints = np.abs(hashed) % partitions
    return out


def _final_mix(a: UInt32s, b: UInt32s, c: UInt32s) -> tuple[UInt32s, UInt32s]:
    for bits in _ROTATIONS:
        c = (c ^ b) - (b << np.uint32(bits) | b >> np.uint32(32 - bits))
        a, b, c = b, c, a
    return a, b
