"""Calls a handler with batches, and applies the poison policy to a batch on which it raises.

A coroutine function is awaited. A plain function runs in one of a few threads, so that a long
computation delays neither renewals nor other partitions. Either way there is one call at a time per
partition.

    Engine -> Handling.serve -> your handler
              ^^^^^^^^ this module  -> dead letters, reporter

    raises -> retry with back-off -> one by one -> stop | skip | dead-letter
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
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
from pumphouse.processor.reporting import Reporter, log_callback_failure
from pumphouse.processor.term import is_cancelled

Handler = Callable[[PartitionClient, list[Event]], Awaitable[None] | None]
JITTER = 0.1


class PartitionEnded(Exception):
    """The partition ends here; the batch in hand was not handled."""


class Handling:
    """Serves partitions by calling one handler. Every exception that it raises is reported."""

    def __init__(
        self,
        handler: Handler,
        options: ProcessorOptions,
        reporter: Reporter,
        *,
        dead_letters: DeadLetters | None = None,
        group: str = "",
        host: str = "",
        rng: Random | None = None,
    ) -> None:
        if options.poison.then == DEAD_LETTER and dead_letters is None:
            raise OptionError(
                "the poison policy is 'dead-letter' and dead_letters is missing: "
                "give dead_letters=DeadLetterFile(...) or DeadLetterHub(...)"
            )
        self._handler, self._policy, self._reporter = handler, options.poison, reporter
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
                except PartitionEnded:
                    return

    async def close(self) -> None:
        """Close the dead letters, and the threads without waiting for one that hangs."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._dead_letters is not None:
            await self._dead_letters.close()

    async def handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        """Handle one batch under the poison policy. PartitionEnded if the partition ends first."""
        raised = await self._try(partition, batch, self._policy.retries)
        if raised is None:
            return
        if len(batch) == 1:
            await self._end_poison(partition, batch[0], raised)
        elif batch:
            await self._one_by_one(partition, batch)

    async def _try(
        self, partition: PartitionClient, batch: list[Event], retries: int
    ) -> Exception | None:
        """Call the handler until it does not raise; the last exception if it always does."""
        raised: Exception | None = None
        for failures in range(retries + 1):
            if failures and not await partition.sleep(delay_s(failures, self._policy, self._rng)):
                raise PartitionEnded
            if not partition.live:
                raise PartitionEnded
            partition.set_in_hand(batch)
            try:
                await self._call(partition, batch)
                self._reporter.recovered("handler_failed", partition.id)
                return None
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                raised = RuntimeError("the handler awaited a task or future that was cancelled")
                self._reporter.failed("handler_failed", partition.id, raised)
            except OwnershipLost:
                raise PartitionEnded from None
            except Exception as error:
                raised = error
                self._reporter.failed("handler_failed", partition.id, error)
        return raised

    async def _call(self, partition: PartitionClient, batch: list[Event]) -> None:
        if self._threads is None:
            result: Any = self._handler(partition, batch)
        else:
            result = await in_thread(self._threads, ThreadCall(self._handler, partition, batch))
        if inspect.isawaitable(result):
            await result

    async def _one_by_one(self, partition: PartitionClient, batch: list[Event]) -> None:
        """Apply the policy only to the events that fail by themselves."""
        for event in batch:
            raised = await self._try(partition, [event], 0)
            if raised is not None:
                await self._end_poison(partition, event, raised)
            partition.mark_handled([event])

    async def _end_poison(self, partition: PartitionClient, event: Event, cause: Exception) -> None:
        tried, then = self._policy.retries + 1, self._policy.then
        poison = PoisonEvent(partition.id, event.sequence, tried, CONSEQUENCES[then])
        poison.__cause__ = cause
        if then == STOP:
            raise poison
        if then == DEAD_LETTER:
            letter = DeadLetter(event, partition.id, self._group, self._host, tried, cause)
            await self._write_letter(partition, letter)
        self._reporter.failed("event_poisoned", partition.id, poison)

    async def _write_letter(self, partition: PartitionClient, letter: DeadLetter) -> None:
        """Write a dead letter, with retries. The partition handles nothing else meanwhile."""
        assert self._dead_letters is not None
        failures = 0
        while True:
            try:
                await self._dead_letters.write(letter)
                self._reporter.recovered("dead_letter_failed", partition.id)
                return
            except PumphouseError as error:
                failures += 1
                self._reporter.failed("dead_letter_failed", partition.id, error)
            if not await partition.sleep(delay_s(failures, self._policy, self._rng)):
                raise PartitionEnded


CONSEQUENCES = {
    STOP: "the partition stops until it is resumed",
    SKIP: "it was skipped",
    DEAD_LETTER: "it went to the dead letters",
}


def delay_s(failures: int, policy: PoisonPolicy, rng: Random) -> float:
    """Seconds to wait after this many failures in a row."""
    full_s = min(policy.most_s, policy.first_s * 2.0 ** min(failures - 1, 30))
    return full_s * (1 - JITTER * rng.random())


# -- calling user code ----------------------------------------------------------------------------


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: a function, a method, or an object with __call__."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


class ThreadCall:
    """One call in a thread. It may still run after the caller has stopped waiting."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self._function, self._args = function, args
        self.runs = False

    def __call__(self) -> Any:
        """StopIteration becomes RuntimeError: a future cannot hold it and would never complete."""
        self.runs = True
        try:
            return self._function(*self._args)
        except StopIteration as stop:
            raise RuntimeError("the handler raised StopIteration") from stop
        finally:
            self.runs = False


async def in_thread(threads: Executor | None, call: ThreadCall) -> Any:
    """The result of a call in one of these threads, with the caller's context variables."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    return await loop.run_in_executor(threads, context.run, call)


async def call_user_code(
    threads: Executor | None, function: Callable[..., Any], *args: object
) -> None:
    """Await a coroutine function; run a plain one in a thread, and await what it returns."""
    if is_async(function):
        await function(*args)
        return
    result = await in_thread(threads, ThreadCall(function, *args))
    if inspect.isawaitable(result):
        await result


class CallbackThreads:
    """Calls the callbacks of the user. Each lane has one thread of its own.

    A lane is a kind of callback. One thread per lane keeps the order of its calls: with several
    threads, two errors in quick succession could reach `on_exception` and `on_error` in different
    orders. A callback that hangs delays only its own lane, and neither handlers nor renewals.
    """

    def __init__(self, host: str, *lanes: str) -> None:
        self._host = host
        self._threads = {name: ThreadPoolExecutor(1, f"pumphouse {name}") for name in lanes}

    async def call(self, lane: str, callback: Callable[..., Any], *args: object) -> None:
        """Call one callback; its exceptions are logged and do not prevent other calls."""
        try:
            await call_user_code(self._threads[lane], callback, *args)
        except Exception as error:
            log_callback_failure(self._host, error)

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
