"""Opened: a client or a store that is opened at its first use, and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Generic, TypeVar

from pumphouse.errors import PumphouseError

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])
R = TypeVar("R")

CLOSE_S = 5.0  # for closing the connection to a peer that may not respond


class Opened(Generic[T]):
    """Keeps what `make` returns open between uses. A failed use closes it."""

    def __init__(self, make: Callable[[], T], deadline_s: float) -> None:
        self._make, self._deadline_s = make, deadline_s
        self._stack = AsyncExitStack()
        self._value: T | None = None

    async def use(self, work: Callable[[T], Awaitable[R]]) -> R:
        """Open it if needed and call `work`, both within the deadline."""
        try:
            async with asyncio.timeout(self._deadline_s):
                return await work(await self._opened())
        except BaseException:
            await self.close()
            raise

    async def _opened(self) -> T:
        value = self._value
        if value is None:
            made = self._make()
            await self._stack.enter_async_context(made)
            value = self._value = made
        return value

    async def close(self) -> None:
        self._value = None
        with suppress(PumphouseError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._stack.aclose()
