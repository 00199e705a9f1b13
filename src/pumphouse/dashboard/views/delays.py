"""The delay of readings from the sensor to the page.

Two parts are measured: from the sensor to the hub `activity` (through the stage sift), and from the
hub to the page. The page shows the medians of the last few seconds. Old readings, which are read
while catching up, are ignored.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

SPAN_MS = 10_000
FRESH_MS = 60_000  # an older event is read while catching up
SAMPLES_MAX = 5_000


class Delays:
    """The delays of the last few seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)
        self.behind_ms = 0  # age of the last event when it was received

    def add(self, at_ms: int, enqueued_ms: int, now_ms: int) -> None:
        """Add a reading by the times of measurement, enqueueing and receipt."""
        self.behind_ms = max(0, now_ms - enqueued_ms)
        if self.behind_ms < FRESH_MS:
            self._samples.append((now_ms, enqueued_ms - at_ms, self.behind_ms))

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """The delays in seconds; None without a recent reading."""
        while self._samples and self._samples[0][0] < now_ms - SPAN_MS:
            self._samples.popleft()
        if not self._samples:
            return {"hub_s": None, "page_s": None, "total_s": None}
        hub_s = median(sample[1] for sample in self._samples) / 1000
        page_s = median(sample[2] for sample in self._samples) / 1000
        return {
            "hub_s": round(hub_s, 2),
            "page_s": round(page_s, 2),
            "total_s": round(max(0.0, hub_s + page_s), 2),
        }
