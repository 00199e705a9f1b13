"""Whether the events of a partition are handled more slowly than they arrive. Pure.

The delay of an event is the time from its arrival in the hub until it is handed out. Both clocks
are read at every sample, so a constant difference between them does not count: only growth does.

    partition client -> DelayTrend -> supervisor.state -> the ownership row
                        ^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

GROWTH_S = 10.0  # a smaller growth is normal: batches take time, and samples are seconds apart
GROWS_FOR_S = 30.0  # a growth within less time may be a single slow batch
WINDOW_S = 300.0  # a delay that has not grown for this long is the normal one


@dataclass(slots=True)
class DelayTrend:
    """The delays of one partition in the last minutes."""

    _samples: deque[tuple[float, float]] = field(default_factory=deque)  # (at_s, delay_s)
    _batches: int = -1

    def add(self, at_s: float, batches: int, delay_s: float | None, busy: bool) -> None:
        """Add a sample: batches so far, delay of the newest one, and whether one is being handled.

        A partition that waits for events keeps up, whatever its delays were before.
        """
        if batches != self._batches:
            self._batches = batches
            if delay_s is not None:
                self._samples.append((at_s, delay_s))
        elif not busy:
            self._samples.clear()
        while self._samples and self._samples[0][0] < at_s - WINDOW_S:
            self._samples.popleft()

    @property
    def grows(self) -> bool:
        """Whether the newest delay is well above an earlier one."""
        if not self._samples:
            return False
        at_s, delay_s = self._samples[-1]
        low_s, low_delay_s = min(self._samples, key=lambda sample: sample[1])
        return delay_s >= low_delay_s + GROWTH_S and at_s >= low_s + GROWS_FOR_S
