"""One thread for blocking calls, off the event loop, with a deadline for each call.

Calls run one after another. Waiting calls are passed to the thread one at a time, so a call whose
deadline passes while it waits is never made.

    SqliteStore -> DatabaseThread.run -> thread
                   ^^^^^^^^^^^^^^ this module
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
    """One thread. A job receives its deadline as a monotonic time."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = asyncio.Lock()

    async def run(self, job: Callable[[float], T], deadline_s: float) -> T:
        """Run the job. After a TimeoutError it may still run, or may never start."""
        until = time.monotonic() + deadline_s
        async with asyncio.timeout(deadline_s):
            await self._lock.acquire()
            return await asyncio.wrap_future(self._start(job, until))

    def _start(self, job: Callable[[float], T], until: float) -> Future[T]:
        loop = asyncio.get_running_loop()

        def release(done: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(self._lock.release)

        future = self._thread.submit(job, until)
        # The next call starts when the thread is free, not when the caller stops waiting.
        future.add_done_callback(release)
        return future

    async def close(self, last: Callable[[], object], deadline_s: float) -> None:
        """Accept no more jobs, and run `last` after the current one.

        `last` runs even if the deadline for waiting passes first.
        """
        future = self._thread.submit(last)
        self._thread.shutdown(wait=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(asyncio.wrap_future(future))
