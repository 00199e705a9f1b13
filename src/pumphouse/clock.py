"""Clocks. No other module reads the real time.

Code that depends on time takes a `Clock`, so that tests can advance it: retention, token expiry and
enqueued times follow the given clock.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for durations, and a way to wait."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never decrease, from an arbitrary start; sleep of the machine counts."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of this clock."""


# time.monotonic stops on Linux while the machine sleeps, so a lease would never expire then. The
# boot time clock, where available, includes sleep.
_SINCE_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_time() -> float:
    """Seconds that never go back, those included for which the machine slept, if it can tell."""
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return boot_time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MovableClock:
    """The clock of the machine with an offset that a test can change.

    Advance the clock of a hub, and tokens and events expire.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._ahead_s += seconds

    def now(self) -> float:
        return time.time() + self._ahead_s

    def monotonic(self) -> float:
        return boot_time() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def now_ms(clock: Clock) -> int:
    """The wall time in whole milliseconds, as in AMQP timestamps."""
    return int(clock.now() * 1000)
