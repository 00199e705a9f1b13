"""Calls the official SDK: deadline, error translation and retries of each call.

The SDK's own retries are disabled: it retries permanent errors (an unknown hub, for twelve seconds)
and gives up on transient ones (the fourth broken connection of a reader). So both drivers retry in
the same way: retries.py decides, this module waits.

    AzureClient, AzureReader, AzureSender -> SdkCaller.call_with_retries -> SDK
                                             ^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from pumphouse.client.azure.errors import translate_error
from pumphouse.client.base import RetryOptions
from pumphouse.client.errors import TEXT_CHARS_MAX
from pumphouse.client.retries import delay_s, failure_to_raise
from pumphouse.clock import Clock
from pumphouse.errors import AuthError, PumphouseError
from pumphouse.logs import line

log = logging.getLogger("pumphouse.client")

RESPONSE_S = 30.0  # for every call: a token, a link, a batch, properties
CLOSE_S = 3.0  # for a close, which is then abandoned

T = TypeVar("T")


class SdkCaller:
    """Calls the SDK for everything that one client has opened."""

    def __init__(self, address: str, retry: RetryOptions, clock: Clock, rng: Random) -> None:
        self.address = address
        self.retry = retry
        self.clock = clock
        self.rng = rng

    async def call_with_retries(
        self,
        call: Callable[[], Awaitable[T]],
        broken: PumphouseError | None = None,
        failures: int = 0,
    ) -> T:
        """The result of a call that is retried while its failures are transient.

        If the call replaces a broken link, `broken` is the error that ended the link. `failures` is
        the number of consecutive failures before this call.
        """
        resumed, cause = broken is not None, broken
        while True:
            if cause is not None:
                await self.wait_before_retry(cause, failures, resumed)
            try:
                async with asyncio.timeout(RESPONSE_S):
                    return await call()
            except Exception as failure:
                # The SDK raises exceptions of asyncio, aiohttp and ssl, and AttributeErrors if an
                # object is closed at the wrong moment.
                cause, failures = self.translate(failure), failures + 1

    def translate(self, failure: Exception) -> PumphouseError:
        cause = translate_error(failure, self.address)
        # A traceback shows the text of the cause too, and a hub can make it as large as a frame.
        if cause is not failure and len(str(failure)) <= TEXT_CHARS_MAX:
            cause.__cause__ = failure
        return cause

    async def wait_before_retry(self, cause: PumphouseError, failures: int, resumed: bool) -> None:
        """Wait before the next attempt; raises if no attempt is left."""
        error = failure_to_raise(cause, failures, self.retry, resumed=resumed)
        # The token may have expired while the link was idle. Retry once: a new link puts a new
        # token.
        may_have_expired = resumed and isinstance(cause, AuthError) and failures == 1
        if error is cause and not may_have_expired:
            raise cause
        if error is not None and not may_have_expired:
            raise error from cause
        wait_s = delay_s(failures, self.retry, self.rng)
        fields = {"address": self.address, "failures": failures, "wait_s": wait_s, "cause": cause}
        log.info("%s", line("call_failed", **fields))
        await self.clock.sleep(wait_s)


async def close_quietly(close_call: Awaitable[object], name: str) -> None:
    """Close an object of the SDK, which may raise anything or never return."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await close_call
    except Exception as failure:
        log.debug("%s", line("close_failed", object=name, cause=failure))
