"""The signal from the monitors to the streams that there is something new to show.

A stream waits for the next update and then sends what it has not sent yet. Nothing is queued for a
slow browser: it skips updates and gets the current state when it is ready.
"""

from __future__ import annotations

import asyncio


class UpdateSignal:
    """A version number that any number of streams wait for. Closing ends all waits."""

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        self._next = asyncio.Event()

    def notify(self) -> None:
        self.version += 1
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._next = self._next, asyncio.Event()
        waiting.set()

    async def wait_after(self, version: int, timeout_s: float) -> int:
        """Wait for a version above `version`, the close or the time-out; returns the version."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version <= version and not self.closed:
                    await self._next.wait()
        except TimeoutError:
            pass
        return self.version
