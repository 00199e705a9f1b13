"""How those who look tell those who show that there is something new.

A stream waits for the next beat and then sends what it has not sent yet. Nothing is queued for a
slow browser: it misses version, and gets what is true when it is ready.
"""

from __future__ import annotations

import asyncio


class UpdateSignal:
    """Beats that any number of streams wait for. Closing it ends all of them."""

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
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def wait_after(self, version: int, patience_s: float) -> int:
        """Wait until there is a beat after this one, it is closed, or the patience is used up."""
        try:
            async with asyncio.timeout(patience_s):
                while self.version <= version and not self.closed:
                    await self._next.wait()
        except TimeoutError:
            pass
        return self.version
