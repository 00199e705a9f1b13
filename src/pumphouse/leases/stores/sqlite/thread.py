"""One thread for calls that block, off the event loop, and a deadline for whoever waits.

Calls run one after another. Of those that wait for their turn only one is ever handed to the
thread, so a call whose deadline has passed while it waited is not made at all.

    sqlite -> DatabaseThread.run -> thread
              ^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class DatabaseThread:
    """A thread of its own. A job is told until when (monotonic) it may take."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._turn = asyncio.Lock()

    async def run(self, job: Callable[[float], T], deadline_s: float) -> T:
        """Do it; TimeoutError if that takes too long (it may then still be done, or not)."""
        until = time.monotonic() + deadline_s
        async with asyncio.timeout(deadline_s):
            await self._turn.acquire()
            return await asyncio.wrap_future(self._start(job, until))

    def _start(self, job: Callable[[float], T], until: float) -> Future[T]:
        loop = asyncio.get_running_loop()

        def free(done: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._turn.release)

        future = self._thread.submit(job, until)
        # The next one's turn comes when the thread is done, not when we stop waiting for it.
        future.add_done_callback(free)
        return future

    async def close(self, last: Callable[[], object], deadline_s: float) -> None:
        """Take no more; when what is under way has ended, do this as the last thing.

        It is done whether or not somebody can wait for it.
        """
        future = self._thread.submit(last)
        self._thread.shutdown(wait=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(asyncio.wrap_future(future))
