"""A clock that stands still until a test advances it: rates and delays are then exact."""

from __future__ import annotations

import asyncio
import time


class StepClock:
    """The clock of a page and of its hub."""

    def __init__(self) -> None:
        self._began_s, self._passed_s = time.time(), 0.0
        self._advanced = asyncio.Event()

    def advance(self, seconds: float) -> None:
        self._passed_s += seconds
        self._advanced.set()
        self._advanced = asyncio.Event()

    def now(self) -> float:
        return self._began_s + self._passed_s

    def monotonic(self) -> float:
        return self._passed_s

    async def sleep(self, seconds: float) -> None:
        until_s = self._passed_s + seconds
        while self._passed_s < until_s:
            await self._advanced.wait()
        await asyncio.sleep(0)
