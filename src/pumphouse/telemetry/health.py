"""Health checks of a process: liveness and readiness.

Liveness fails if the process cannot recover by itself: restart it. Readiness fails while the
process cannot work, for instance because its store does not respond: send it no work, and wait.

A check runs in the thread of the HTTP server, so it only reads values: it calls nothing that waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

# Returns None if all is well, or a sentence that says what is wrong.
Check = Callable[[], str | None]

LIVE, READY = "live", "ready"
TURN_EVERY_S = 1.0
BLOCKED_S = 15.0  # longer than any pause of a healthy process on a busy machine


class HealthChecks:
    """The named checks of a process. A process is not ready if it is not live."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._checks: dict[tuple[str, str], Check] = {}

    def add(self, kind: str, name: str, check: Check) -> None:
        with self._lock:
            self._checks[kind, name] = check

    def remove(self, kind: str, name: str) -> None:
        with self._lock:
            self._checks.pop((kind, name), None)

    def has(self, kind: str, name: str) -> bool:
        with self._lock:
            return (kind, name) in self._checks

    def failures(self, kind: str) -> dict[str, str]:
        """By name, what is wrong."""
        kinds = (LIVE,) if kind == LIVE else (LIVE, READY)
        with self._lock:
            checks = [(name, check) for (of, name), check in self._checks.items() if of in kinds]
        results = ((name, result_of(check)) for name, check in checks)
        return {name: failure for name, failure in results if failure is not None}


def result_of(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        return f"the check failed: {error}"


class LoopCheck:
    """Fails while the event loop is blocked. `run` is a task of that loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turned_s = clock()

    async def run(self) -> None:
        while True:
            self._turned_s = self._clock()
            await asyncio.sleep(TURN_EVERY_S)

    def failure(self) -> str | None:
        blocked_s = self._clock() - self._turned_s
        if blocked_s < BLOCKED_S:
            return None
        return f"it has not run for {blocked_s:.0f} s: a call blocks it"


CHECKS = HealthChecks()  # of this process


@contextmanager
def checking(kind: str, name: str, check: Check) -> Iterator[None]:
    """Add a health check of this process for the duration of a block."""
    CHECKS.add(kind, name, check)
    try:
        yield
    finally:
        CHECKS.remove(kind, name)


@contextmanager
def checking_loop(
    name: str = "event loop", clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Let /livez fail while the running event loop is blocked."""
    check = LoopCheck(clock)
    turning = asyncio.get_running_loop().create_task(check.run(), name="loop check")
    try:
        with checking(LIVE, name, check.failure):
            yield
    finally:
        turning.cancel()
