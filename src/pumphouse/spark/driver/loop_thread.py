"""An asyncio event loop in a thread of its own, for callbacks of Spark that cannot await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from pumphouse.errors import PumphouseError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str, close_s: float) -> None:
        self._close_s = close_s
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float | None) -> T:
        """Wait for the result; after `limit_s` cancel the work and raise TimeoutError."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run the last work, then end the loop and its thread. Each step has a deadline."""
        for work in (last, end_tasks()):
            with suppress(TimeoutError, PumphouseError):
                asyncio.run_coroutine_threadsafe(work, self.loop).result(self._close_s)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(self._close_s)
        if not self._thread.is_alive():
            self.loop.close()


async def end_tasks() -> None:
    """Cancel the other tasks of this loop, and let closed connections end.

    A request that timed out may still wait for its response.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # a closed connection ends in the next turn of the loop
