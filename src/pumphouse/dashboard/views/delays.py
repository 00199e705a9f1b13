"""How long a reading takes from the sensor to the page.

Two stretches are measured for each reading: from the sensor to the hub `activity` (through the
sift), and from there to here. What the page shows is the median of the last few seconds; old
readings that are caught up with say nothing about that and are left out.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

SPAN_MS = 10_000
FRESH_MS = 60_000  # enqueued longer ago: we are catching up
SAMPLES_MAX = 5_000


class Delays:
    """The delays of the last few seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)
        self.behind_ms = 0  # how old the last event was, when it came

    def note(self, at_ms: int, enqueued_ms: int, now_ms: int) -> None:
        """One reading that has just come: when it was read, enqueued, received."""
        self.behind_ms = max(0, now_ms - enqueued_ms)
        if self.behind_ms < FRESH_MS:
            self._samples.append((now_ms, enqueued_ms - at_ms, self.behind_ms))

    def shown(self, now_ms: int) -> dict[str, Any]:
        """Seconds, or None if nothing fresh has come lately."""
        while self._samples and self._samples[0][0] < now_ms - SPAN_MS:
            self._samples.popleft()
        if not self._samples:
            return {"hub_s": None, "page_s": None, "total_s": None}
        hub = median(sample[1] for sample in self._samples) / 1000
        page = median(sample[2] for sample in self._samples) / 1000
        return {
            "hub_s": round(hub, 2),
            "page_s": round(page, 2),
            "total_s": round(max(0.0, hub + page), 2),
        }
