"""One call to the official SDK: its deadline, what its failure means, and whether to try again.

The SDK's own retries are switched off, since it repeats what can never succeed (an unknown hub, for
twelve seconds) and gives up on what would (a reader's fourth broken connection). Patience is thus
the same for both drivers: retries.py decides, this file waits.

    AzureClient, AzureReader, AzureSender -> Caller.persist -> SDK
                                             ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from pumphouse.client.azure.errors import meaning
from pumphouse.client.base import RetryOptions
from pumphouse.client.retries import delay_s, judge
from pumphouse.clock import Clock
from pumphouse.errors import AuthError, PumphouseError

log = logging.getLogger("pumphouse.client")

ANSWER_S = 30.0  # for whatever the hub is asked: a token, a link, a batch, a property
CLOSE_S = 3.0  # for a good-bye; what is not gone by then is dropped

T = TypeVar("T")


class Caller:
    """Calls the SDK on behalf of everything that one client has opened."""

    def __init__(self, place: str, retry: RetryOptions, clock: Clock, rng: Random) -> None:
        self.place = place
        self.retry = retry
        self.clock = clock
        self.rng = rng

    async def persist(
        self,
        act: Callable[[], Awaitable[T]],
        broken: PumphouseError | None = None,
        failures: int = 0,
    ) -> T:
        """The outcome of an act that is tried again as long as its failures may pass.

        `broken` is why something that worked is to be mended, the so many-th failure in a row.
        """
        again, why = broken is not None, broken
        while True:
            if why is not None:
                await self.hold_out(why, failures, again)
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await act()
            except Exception as failure:
                # The SDK lets through whatever its parts raise: of asyncio, aiohttp, ssl, and its
                # own AttributeErrors where something was closed at a bad moment.
                why, failures = self.understand(failure), failures + 1

    def understand(self, failure: Exception) -> PumphouseError:
        why = meaning(failure, self.place)
        if why is not failure:
            why.__cause__ = failure
        return why

    async def hold_out(self, why: PumphouseError, failures: int, again: bool) -> None:
        """Wait before the next attempt; raises if there is to be none."""
        verdict = judge(why, failures, self.retry, again=again)
        # A token that ran out while nobody listened is put again with the next link, once.
        expired = again and isinstance(why, AuthError) and failures == 1
        if verdict is why and not expired:
            raise why
        if verdict is not None and not expired:
            raise verdict from why
        wait_s = delay_s(failures, self.retry, self.rng)
        log.info("retry place=%s failures=%d wait_s=%.2f why=%s", self.place, failures, wait_s, why)
        await self.clock.sleep(wait_s)


async def bounded(farewell: Awaitable[object], what: str) -> None:
    """Close something of the SDK's, which may raise anything or not come to an end."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await farewell
    except Exception as failure:
        log.debug("close what=%s failed=%r", what, failure)
