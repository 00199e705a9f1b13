"""One thread for blocking calls, off the event loops, with a deadline for each call.

Calls run one after another, in the order in which they were made, from any number of event loops. A
call whose deadline passes while it waits is never made.

    SqliteStore -> DatabaseThread.run -> thread
                   ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import threading
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
        self._lock = threading.Lock()  # of the attributes below; never held while a job runs
        # The oldest first. Not in the queue of the executor: a cancelled job would stay in it.
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._running = False

    async def run(self, job: Callable[[float], T], deadline_s: float) -> T:
        """Run the job. After a TimeoutError it may still run, or may never start."""
        until = time.monotonic() + deadline_s
        future: Future[T] = Future()
        try:
            async with asyncio.timeout(deadline_s):
                self._put(future, lambda: run_in_time(job, until))
                return await asyncio.wrap_future(future)
        finally:
            with self._lock:
                self._waiting.pop(future, None)

    def _put(self, future: Future[Any], job: Callable[[], Any]) -> None:
        with self._lock:
            if not self._running:
                self._thread.submit(self._run_all)
                self._running = True
            self._waiting[future] = job

    def _run_all(self) -> None:
        """In the thread: run jobs until none waits."""
        while (oldest := self._take()) is not None:
            future, job = oldest
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as failure:
                    future.set_exception(failure)
                else:
                    future.set_result(result)

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            for future in self._waiting:
                return future, self._waiting.pop(future)
            self._running = False
            return None

    async def close(self, last: Callable[[], object], deadline_s: float) -> None:
        """Accept no more jobs, and run `last` after those that wait.

        `last` runs even if the deadline for waiting passes first.
        """
        future = self._thread.submit(last)
        self._thread.shutdown(wait=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(asyncio.wrap_future(future))


def run_in_time(job: Callable[[float], T], until: float) -> T:
    """Run a job; TimeoutError if its event loop could not cancel it at the deadline."""
    if time.monotonic() >= until:
        raise TimeoutError
    return job(until)
