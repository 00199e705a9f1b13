"""Batches: the loop over the batches of a partition.

    PartitionClient.batches() -> Batches -> async for batch in ...: your code
                                 ^^^^^^^ this module

This is an object and not an asynchronous generator. When a loop is left by `break` or by an
exception, the event loop closes a generator some time later. Until then the batch would count as
the current one, and a checkpoint after the loop would cover a batch that failed. A plain object is
freed at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from pumphouse.events import Event


class Batches:
    """An asynchronous iterator. Requesting the next batch means that the last one is handled."""

    def __init__(
        self,
        enter: Callable[[], None],
        receive: Callable[[], Awaitable[list[Event] | None]],
        handled: Callable[[list[Event]], None],
        leave: Callable[[], None],
    ) -> None:
        self._enter, self._receive, self._handled, self._leave = enter, receive, handled, leave
        self._batch: list[Event] | None = None
        self._entered = self._left = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Event]:
        if self._left:
            raise StopAsyncIteration
        if not self._entered:
            self._enter()
            self._entered, self._loop = True, asyncio.get_running_loop()
        try:
            if self._batch is not None:
                self._handled(self._batch)
            self._batch = await self._receive()
        except BaseException:
            self._end()
            raise
        if self._batch is None:
            self._end()
            raise StopAsyncIteration
        return list(self._batch)  # your code may change its list

    async def aclose(self) -> None:
        """Leave the loop. The current batch does not count as handled."""
        self._end()

    def _end(self) -> None:
        if self._entered and not self._left:
            self._left = True
            self._leave()

    def __del__(self) -> None:
        if not self._entered or self._left:
            return
        if threading.get_ident() == self._thread:
            self._end()
        elif self._loop is not None:  # the garbage collector runs in any thread
            self._left = True
            with suppress(RuntimeError):  # the event loop is closed: nothing waits for this
                self._loop.call_soon_threadsafe(self._leave)
