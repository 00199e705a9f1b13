"""The delay of activities from the sensor to the page.

Two parts are measured: from the sensor to the hub `activity` (through the stage sift), and from the
hub to the page. The page shows the medians of the last few seconds. Old activities, which are read
while catching up, are ignored.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SPAN_MS = 10_000
FRESH_MS = 60_000  # an older event is read while catching up
SAMPLES_MAX = 50_000  # 0.8 MB; of more activities, those that arrived first are left out


class Delays:
    """The delays of the last few seconds."""

    def __init__(self) -> None:
        # When a batch arrived, and its delays from the sensor to the hub and from there to here.
        self._batches: deque[tuple[int, Ints, Ints]] = deque()
        self._count = 0

    def add(self, at_ms: Ints, enqueued_ms: Ints, now_ms: int) -> None:
        """Add activities that arrive now, by the times of their readings and of enqueueing."""
        to_page = np.maximum(0, now_ms - enqueued_ms)
        fresh = to_page < FRESH_MS
        self._batches.append((now_ms, (enqueued_ms - at_ms)[fresh], to_page[fresh]))
        self._count += int(np.count_nonzero(fresh))
        while self._count > SAMPLES_MAX and len(self._batches) > 1:
            self._remove_first()

    def _remove_first(self) -> None:
        self._count -= len(self._batches.popleft()[1])

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """The delays in seconds; None without a recent activity."""
        while self._batches and self._batches[0][0] < now_ms - SPAN_MS:
            self._remove_first()
        if not self._count:
            return {"hub_s": None, "page_s": None, "total_s": None}
        to_hub = np.concatenate([batch[1] for batch in self._batches])
        to_page = np.concatenate([batch[2] for batch in self._batches])
        return {
            "hub_s": median_s(to_hub),
            "page_s": median_s(to_page),
            "total_s": max(0.0, median_s(to_hub + to_page)),
        }


def median_s(delays_ms: Ints) -> float:
    return round(float(np.median(delays_ms)) / 1000, 2)
