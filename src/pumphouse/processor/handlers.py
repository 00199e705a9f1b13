"""Calling a handler with batches, and what becomes of a batch on which it raises.

A coroutine function is awaited. A plain function runs in one of a few threads, so that one that
computes for long holds up neither renewals nor other partitions. Per partition there is one call at
a time either way.

    Engine -> Handling.serve -> your handler
              ^^^^^^^^ this module  -> dead letters, report

    raises -> retry with back-off -> one by one -> stop | skip | dead-letter
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from random import Random
from typing import Any

from pumphouse.errors import OptionError, OwnershipLost, PoisonEvent, PumphouseError
from pumphouse.events import Event
from pumphouse.processor.dead_letters import DeadLetter, DeadLetters
from pumphouse.processor.options import (
    DEAD_LETTER,
    SKIP,
    STOP,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import to_end
from pumphouse.processor.threads import Calling, in_thread

Handler = Callable[[PartitionClient, list[Event]], Awaitable[None] | None]
Report = Callable[[str | None, Exception], None]
JITTER = 0.1


class Gone(Exception):
    """We have to leave the partition; what is in hand was not handled."""


class Handling:
    """Serves partitions by calling one handler. `report` hears of every time it raises."""

    def __init__(
        self,
        handler: Handler,
        options: ProcessorOptions,
        report: Report,
        *,
        dead_letters: DeadLetters | None = None,
        group: str = "",
        host: str = "",
        rng: Random | None = None,
    ) -> None:
        if options.poison.then == DEAD_LETTER and dead_letters is None:
            raise OptionError("the poison policy says dead-letter: say where, with dead_letters=")
        self._handler, self._policy, self._report = handler, options.poison, report
        self._dead_letters, self._group, self._host = dead_letters, group, host
        self._rng = rng or Random()
        self._threads = (
            None
            if is_async(handler)
            else ThreadPoolExecutor(options.handler_threads, "pumphouse handler")
        )

    async def serve(self, partition: PartitionClient) -> None:
        """Handle the batches of a partition until it ends here. For `Engine(..., serve=)`."""
        async with aclosing(partition.batches()) as batches:
            async for batch in batches:
                try:
                    await self.handle(partition, batch)
                except Gone:
                    return

    async def close(self) -> None:
        """Let go of the threads, without waiting for one that hangs, and of the dead letters."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._dead_letters is not None:
            await self._dead_letters.close()

    async def handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        """Handle one batch, by whatever it takes. Gone if the partition ends before that."""
        raised = await self._try(partition, batch, self._policy.retries)
        if raised is None:
            return
        if len(batch) == 1:
            await self._bury(partition, batch[0], raised)
        elif batch:
            await self._one_by_one(partition, batch)

    async def _try(
        self, partition: PartitionClient, batch: list[Event], retries: int
    ) -> Exception | None:
        """Call the handler until it does not raise; the last exception if it always does."""
        raised: Exception | None = None
        for failures in range(retries + 1):
            if failures and not await partition.sleep(delay_s(failures, self._policy, self._rng)):
                raise Gone
            if not partition.live:
                raise Gone
            partition.in_hand(batch)
            try:
                await self._call(partition, batch)
                return None
            except asyncio.CancelledError:
                if to_end():
                    raise
                raised = RuntimeError("something that the handler awaited was cancelled")
                self._report(partition.id, raised)
            except OwnershipLost:
                raise Gone from None
            except Exception as error:
                raised = error
                self._report(partition.id, error)
        return raised

    async def _call(self, partition: PartitionClient, batch: list[Event]) -> None:
        if self._threads is None:
            told: Any = self._handler(partition, batch)
        else:
            told = await in_thread(self._threads, Calling(self._handler, partition, batch))
        if inspect.isawaitable(told):
            await told

    async def _one_by_one(self, partition: PartitionClient, batch: list[Event]) -> None:
        """Only the events that cannot be handled by themselves meet their end."""
        for event in batch:
            raised = await self._try(partition, [event], 0)
            if raised is not None:
                await self._bury(partition, event, raised)
            partition.handled([event])

    async def _bury(self, partition: PartitionClient, event: Event, cause: Exception) -> None:
        tried, then = self._policy.retries + 1, self._policy.then
        poison = PoisonEvent(partition.id, event.sequence, tried, THEN[then])
        poison.__cause__ = cause
        if then == STOP:
            raise poison
        if then == DEAD_LETTER:
            letter = DeadLetter(event, partition.id, self._group, self._host, tried, cause)
            await self._post(partition, letter)
        self._report(partition.id, poison)

    async def _post(self, partition: PartitionClient, letter: DeadLetter) -> None:
        """Keep a dead letter; until that has succeeded nothing further is handled."""
        assert self._dead_letters is not None
        failures = 0
        while True:
            try:
                return await self._dead_letters.write(letter)
            except PumphouseError as failed:
                failures += 1
                self._report(partition.id, failed)
            if not await partition.sleep(delay_s(failures, self._policy, self._rng)):
                raise Gone


THEN = {
    STOP: "the partition stops until it is resumed",
    SKIP: "it was skipped",
    DEAD_LETTER: "it went to the dead letters",
}


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: a function, a method, or an object with __call__."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


def delay_s(failures: int, policy: PoisonPolicy, rng: Random) -> float:
    """How long to wait after so many failures in a row."""
    full_s = min(policy.most_s, policy.first_s * 2.0 ** min(failures - 1, 30))
    return full_s * (1 - JITTER * rng.random())
