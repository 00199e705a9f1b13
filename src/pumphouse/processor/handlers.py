"""Calls a handler with batches, and applies the poison policy to a batch on which it raises.

A coroutine function is awaited. A plain function runs in one of a few threads, so that a long
computation delays neither renewals nor other partitions. Either way there is one call at a time per
partition, or with concurrency (handling/concurrent.py) per key.

    Engine -> Handling.serve -> your handler
              ^^^^^^^^ this module  -> dead letters, reporter

    raises -> retry with back-off -> one by one -> stop | skip | dead-letter

If the store or a hub fails inside a handler, the handler is not to blame: its batch is retried
until the failure is over, or until this host stops serving the partition. `blame` decides this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from enum import Enum
from random import Random
from typing import Any

from pumphouse.errors import (
    AuthError,
    CheckpointRefused,
    ConnectionFailed,
    EventTooLarge,
    HandlerStuck,
    HubNotFound,
    OptionError,
    OwnershipLost,
    PoisonEvent,
    PumphouseError,
    ReaderEvicted,
    StoreError,
)
from pumphouse.events import Event
from pumphouse.processor.dead_letters import DeadLetter, DeadLetters
from pumphouse.processor.handling.cancellation import (
    raise_pending_cancellation,
    withdraw_cancellations,
)
from pumphouse.processor.handling.concurrent import CANCELLED, ConcurrentServing
from pumphouse.processor.handling.raised import as_failure
from pumphouse.processor.handling.threads import (
    DaemonThreads,
    ThreadCall,
    finish,
    in_thread,
    is_async,
)
from pumphouse.processor.options import (
    DEAD_LETTER,
    SKIP,
    STOP,
    STOP_KEY,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.recording.recorder import CALL
from pumphouse.processor.reporting import Reporter
from pumphouse.processor.term import PartitionEnded

Handler = Callable[[PartitionClient, list[Event]], Awaitable[None] | None]
JITTER = 0.1
CAUSES_MAX = 20  # of a chain of exceptions; one may even be its own cause
OUTAGES = (StoreError, ConnectionFailed, AuthError, HubNotFound)
FENCED = (OwnershipLost, CheckpointRefused, ReaderEvicted)


class Blame(Enum):
    """Why a handler has raised."""

    HANDLER = "handler"
    OUTAGE = "outage"  # the store or a hub failed in the handler
    FENCED = "fenced"  # the partition has another owner, or its checkpoint was moved


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
        self._rng, self._options = rng or Random(), options
        self._threads = (
            None
            if is_async(handler)
            else DaemonThreads(options.handler_threads, "pumphouse handler")
        )

    async def serve(self, partition: PartitionClient) -> None:
        """Handle the batches of a partition while we serve it. For `Engine(..., serve=)`."""
        partition.calls.use(CALL)
        if partition.order is not None:
            serving = ConcurrentServing(partition, partition.order, self.handle, self._options)
            await serving.run()
            return
        async with aclosing(partition.batches()) as batches:
            async for batch in batches:
                try:
                    await self.handle(partition, batch)
                except PartitionEnded:
                    return

    async def close(self) -> None:
        """Close the dead letters, and the threads without waiting for one that hangs."""
        if self._threads is not None:
            self._reporter.abandoned(self._threads.close())
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
        failures = outages = 0
        while True:
            if not partition.live:
                raise PartitionEnded
            # A transaction of an earlier attempt may have committed: its events are handled.
            left = partition.uncommitted(batch)
            raised = await self._attempt(partition, left) if left or not batch else None
            if raised is None:
                self._reporter.recovered("handler_failed", partition.id)
                self._reporter.recovered("handler_waiting", partition.id)
                return None
            if blame(raised) is Blame.OUTAGE:
                outages += 1
                self._reporter.failed("handler_waiting", partition.id, raised)
            else:
                failures += 1
                self._reporter.failed("handler_failed", partition.id, raised)
                if failures > retries:
                    return raised
            delay = delay_s(failures + outages, self._policy, self._rng)
            if not await partition.sleep(delay):
                raise PartitionEnded

    async def _attempt(self, partition: PartitionClient, batch: list[Event]) -> Exception | None:
        """Call the handler once; the exception if it raises."""
        partition.set_in_hand(batch)
        try:
            async with partition.interruptible():
                with partition.calls.calling(CALL, batch):
                    await self._call(partition, batch)
            return None
        except asyncio.CancelledError:
            partition.set_failed()
            await withdraw_cancellations(partition.handlers.owner)
            return RuntimeError(CANCELLED)
        except PartitionEnded:
            partition.set_failed()
            raise
        except BaseException as raised:
            partition.set_failed()  # before the error callbacks: they may checkpoint too
            error = as_failure(raised)
            given_up = isinstance(error, HandlerStuck) and not partition.live
            if given_up or blame(error) is Blame.FENCED:
                raise PartitionEnded from error
            return error

    async def _call(self, partition: PartitionClient, batch: list[Event]) -> None:
        batch = list(batch)  # the handler may change its list
        if self._threads is None:
            result: Any = self._handler(partition, batch)
            await finish(await result)
        else:
            call = ThreadCall(self._handler, partition, batch, timer=partition)
            await finish(await in_thread(self._threads, call))
        await raise_pending_cancellation(partition.handlers.owner)

    async def _one_by_one(self, partition: PartitionClient, batch: list[Event]) -> None:
        """Handle the events one at a time, and apply the policy only to those that fail."""
        for event in batch:
            if partition.must_stop:  # a stop does not wait for the rest of the batch
                raise PartitionEnded
            raised = await self._try(partition, [event], 0)
            if raised is not None:
                await self._end_poison(partition, event, raised)
            partition.mark_handled([event])

    async def _end_poison(self, partition: PartitionClient, event: Event, cause: Exception) -> None:
        tried, then = self._policy.retries + 1, self._policy.then
        if then == DEAD_LETTER:
            letter = DeadLetter(event, partition.id, self._group, self._host, tried, cause)
            then = await self._write_letter(partition, letter)
        poison = PoisonEvent(partition.id, event.sequence, tried, CONSEQUENCES[then])
        poison.__cause__ = cause
        if then in (STOP, TOO_LARGE):
            partition.poison = poison
        # Reported here: the event processor is closed when the supervisor gets the exception.
        self._reporter.poisoned(partition.id, poison, then)
        if partition.poison is poison or then == STOP_KEY:
            raise poison

    async def _write_letter(self, partition: PartitionClient, letter: DeadLetter) -> str:
        """Write a dead letter, with retries. The partition handles nothing else meanwhile.

        Returns DEAD_LETTER, or TOO_LARGE if no retry can succeed.
        """
        assert self._dead_letters is not None
        failures = 0
        while True:
            try:
                await self._dead_letters.write(letter)
                self._reporter.recovered("dead_letter_failed", partition.id)
                return DEAD_LETTER
            except EventTooLarge as error:
                self._reporter.failed("dead_letter_failed", partition.id, error)
                return TOO_LARGE
            except PumphouseError as error:
                failures += 1
                self._reporter.failed("dead_letter_failed", partition.id, error)
            if not await partition.sleep(delay_s(failures, self._policy, self._rng)):
                raise PartitionEnded


TOO_LARGE = "too large"
CONSEQUENCES = {
    TOO_LARGE: "its dead letter is too large, so the partition stops until it is resumed",
    STOP: "the partition stops until it is resumed",
    STOP_KEY: "its key waits until the partition is resumed",
    SKIP: "it was skipped",
    DEAD_LETTER: "it went to the dead letters",
}


def blame(error: BaseException) -> Blame:
    """Who is to blame for the exception of a handler. A mixed group is the handler's own."""
    causes = list(root_causes(error, CAUSES_MAX))
    if all(isinstance(cause, FENCED) for cause in causes):
        return Blame.FENCED
    if all(isinstance(cause, OUTAGES + FENCED) for cause in causes):
        return Blame.OUTAGE
    return Blame.HANDLER


def root_causes(error: BaseException, depth: int) -> Iterator[BaseException]:
    """The innermost exceptions of groups and causes. Causes of OUTAGES and FENCED do not count."""
    if isinstance(error, BaseExceptionGroup) and depth:
        for inner in error.exceptions:
            yield from root_causes(inner, depth - 1)
    elif error.__cause__ is None or isinstance(error, OUTAGES + FENCED) or not depth:
        yield error
    else:
        yield from root_causes(error.__cause__, depth - 1)


def delay_s(failures: int, policy: PoisonPolicy, rng: Random) -> float:
    """Seconds to wait after this many failures in a row."""
    full_s = min(policy.most_s, policy.first_s * 2.0 ** min(failures - 1, 30))
    return full_s * (1 - JITTER * rng.random())
