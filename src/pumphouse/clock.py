"""Clocks: the real time, and clocks that tests can advance.

Code whose results depend on time takes a `Clock`: retention, token expiry and enqueued times follow
the given clock. The machine's clock is read directly only for the ages of leases in a SQLite file,
for time limits of IO, and to measure run times.
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
        """Seconds that never decrease, from an arbitrary start; includes time in standby."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of this clock."""


# On Linux, time.monotonic stops while the machine sleeps, so a lease would not expire meanwhile.
# The boot time clock, where available, includes sleep.
_SINCE_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_time() -> float:
    """Seconds that never decrease; they include sleep if the system has a boot time clock."""
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

    Advancing the clock of a hub expires its events, and the tokens of its connections. Clients sign
    tokens by the clock of the machine. A token that is put again and is valid by that clock is
    accepted for the rest of its lifetime.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    @property
    def ahead_s(self) -> float:
        """How far this clock is ahead of the machine's."""
        return self._ahead_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._ahead_s += seconds

    def now(self) -> float:
        return time.time() + self._ahead_s

    def monotonic(self) -> float:
        return boot_time() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def machine_now(clock: Clock) -> float:
    """The wall time without the offset of a MovableClock: the time that clients have."""
    return clock.now() - ahead_s(clock)


def ahead_s(clock: Clock) -> float:
    """How far a clock is ahead of the machine's: 0 unless it is a MovableClock."""
    return clock.ahead_s if isinstance(clock, MovableClock) else 0.0


def now_ms(clock: Clock) -> int:
    """The wall time in whole milliseconds, as in AMQP timestamps."""
    return int(clock.now() * 1000)
