"""The only place that knows real time.

Code that depends on time takes a `Clock`, so that a test can move it: retention, token expiry and
enqueued times follow the clock they were given.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps, monotonic time for durations, and a way to wait."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start; a machine's sleep counts."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long by this clock."""


# Python's monotonic clock stands still on Linux while the machine sleeps, and a lease would outlast
# the night. Where there is a clock that counts such time too, that is the one.
_SINCE_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def awake_or_asleep() -> float:
    """Seconds that never go back, those included for which the machine slept, if it can tell."""
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return awake_or_asleep()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MovableClock:
    """The machine's clock with an offset that a test can change.

    Give it to a hub, and an hour passes when you say so: tokens run out, events expire.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once."""
        self._ahead_s += seconds

    def now(self) -> float:
        return time.time() + self._ahead_s

    def monotonic(self) -> float:
        return awake_or_asleep() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def now_ms(clock: Clock) -> int:
    """The clock's wall time in whole milliseconds, as AMQP timestamps count."""
    return int(clock.now() * 1000)
