"""Which partition the readings of a home go to: the service's own hash, for all homes at once.

A sender that knows the partition of each key can send large batches to partitions, each event with
its key, where one batch per key would be needed otherwise. The official .NET client does the same
for those who hand it single events (its buffered producer). The hash is that of the hub's routing,
which hashes one key at a time; a test holds the two together.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pumphouse.homes.simulator.hashed_random import Ints

Half: TypeAlias = npt.NDArray[np.uint32]

# Bob Jenkins' lookup3, of keys of up to twelve bytes: no rounds, only the closing steps.
_TURNS: Final = (14, 11, 25, 16, 4, 14, 24)
_START: Final = 0xDEADBEEF


def partitions_of(numbers: Ints, partitions: int) -> Ints:
    """The partition of each home, by its number."""
    keys = np.array([f"h{number:06d}" for number in numbers.tolist()], "S12")
    words = keys.view("<u4").reshape(-1, 3)
    start = np.uint32((_START + len("h000000")) & 0xFFFFFFFF)
    b, c = _closing(*(words[:, place] + start for place in range(3)))
    hashed = (b ^ c).astype(np.uint16).view(np.int16).astype(np.int32)
    out: Ints = np.abs(hashed) % partitions
    return out


def _closing(a: Half, b: Half, c: Half) -> tuple[Half, Half]:
    for turn in _TURNS:
        c = (c ^ b) - (b << np.uint32(turn) | b >> np.uint32(32 - turn))
        a, b, c = b, c, a
    return a, b
