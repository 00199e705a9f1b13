"""Which homes have sent a reading recently.

    events of the hub `sensors` -> home_numbers -> HeardHomes -> count
                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

The key of a reading is its home, so bodies are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pumphouse.dashboard.views.columns import is_home
from pumphouse.homes.schema import HOMES_MAX, MINUTE_MS

# Every home sends once a minute. A reading may be sent at any second of its minute, so two readings
# of a home can be up to two minutes apart.
HEARD_MS = 2 * MINUTE_MS


def home_numbers(keys: Iterable[str | None]) -> list[int]:
    """The numbers of the homes among these keys."""
    return [int(key[1:]) for key in set(keys) if key is not None and is_home(key)]


class HeardHomes:
    """When each home was last heard, in ms."""

    def __init__(self, homes: int) -> None:
        self._last: npt.NDArray[np.int64] = np.zeros(homes, np.int64)

    def add(self, homes: list[int], at_ms: int) -> None:
        """Note that these homes were heard at a time."""
        if not homes:
            return
        highest = max(homes)
        if highest >= len(self._last):
            size = min(HOMES_MAX, max(highest + 1, 2 * len(self._last)))
            self._last = np.pad(self._last, (0, size - len(self._last)))
        self._last[homes] = np.maximum(self._last[homes], at_ms)

    def count(self, now_ms: int) -> int:
        return int(np.count_nonzero(self._last > now_ms - HEARD_MS))

    def are_heard(self, now_ms: int, homes: int) -> npt.NDArray[np.bool_]:
        """For each of the first homes, whether it was heard recently."""
        heard = np.zeros(homes, np.bool_)
        known = self._last[:homes]
        heard[: len(known)] = known > now_ms - HEARD_MS
        return heard
