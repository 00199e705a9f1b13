"""The event loop of these tests: virtual timers, real threads."""

from __future__ import annotations

import asyncio
from threading import Event, Timer

from tests.processor.support.virtual_time import run


def test_the_end_of_the_loop_waits_for_threads_in_real_time() -> None:
    ended = Event()

    async def leave_a_thread_behind() -> None:
        asyncio.get_running_loop().run_in_executor(None, ended.wait)

    timer = Timer(0.05, ended.set)
    timer.start()
    run(leave_a_thread_behind())  # in Python 3.12 and later: RuntimeWarning after 300 virtual s
    assert ended.is_set()
    timer.join()
