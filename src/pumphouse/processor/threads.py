"""Calling plain functions of the user's in threads.

Handling, EventProcessorHost, FixedPartitionProcessor -> in_thread -> your function
                                                         ^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

REPORT_THREADS = 2  # for those who hear of errors: they must not wait behind a handler that hangs


class Calling:
    """One call, which may run on though nobody waits for it any more."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self._function, self._args = function, args
        self.runs = False

    def __call__(self) -> Any:
        """No future takes a StopIteration: whoever waited for one would wait for ever."""
        self.runs = True
        try:
            return self._function(*self._args)
        except StopIteration as stop:
            raise RuntimeError("the handler raised StopIteration") from stop
        finally:
            self.runs = False


async def in_thread(threads: Executor | None, call: Calling) -> Any:
    """What it returns, from one of these threads, with the context variables of whoever asks."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    return await loop.run_in_executor(threads, context.run, call)
