"""Who may declare the current batch handled: only the task or the thread that handles it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pumphouse.events import Event
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.checkpoints.test_checkpointing import STOP_AT_ONCE, stored
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.outage_store import FAST, OutageStore
from tests.processor.support.user_code import APIS, Errors, HostOptions, host_of
from tests.processor.support.virtual_time import run

Checkpoint = Callable[..., Awaitable[None]]
MANUAL = ProcessorOptions(batch_events_max=5, checkpoint_on_stop=False)
TEN = tuple(map(str, range(10)))


# -- a loop that was left -------------------------------------------------------------------------


async def left_by_break(partition: PartitionClient) -> None:
    async for _batch in partition.batches():
        break
    await partition.checkpoint()


async def left_by_return(partition: PartitionClient) -> None:
    try:
        async for _batch in partition.batches():
            return
    finally:
        await partition.checkpoint()


async def left_by_exception(partition: PartitionClient) -> None:
    try:
        async for _batch in partition.batches():
            raise ConnectionError
    except ConnectionError:
        pass
    await partition.checkpoint()


async def closed_by_hand(partition: PartitionClient) -> None:
    batches = partition.batches()
    await anext(batches)
    await batches.aclose()
    await partition.checkpoint()


@pytest.mark.parametrize("loop", [left_by_break, left_by_return, left_by_exception, closed_by_hand])
def test_a_checkpoint_after_the_loop_does_not_cover_its_last_batch(
    loop: Callable[[PartitionClient], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        left = asyncio.Event()

        async def serve(partition: PartitionClient) -> None:
            await loop(partition)
            left.set()
            await partition.wait_until_stopping()

        async with HubAndStore(1) as env:
            await env.send(*TEN)
            processor = Processor(env.connection, store=env.store, options=MANUAL, clock=env.clock)
            async with processor:
                running = asyncio.create_task(processor.run(serve))
                await left.wait()
            await running
            assert await stored(env) is None

    run(scenario())


def test_a_loop_that_was_left_can_be_started_again_at_once() -> None:
    async def scenario() -> None:
        handled: list[bytes] = []

        async def serve(partition: PartitionClient) -> None:
            async for batch in partition.batches():
                handled.extend(event.body for event in batch)
                break
            async for batch in partition.batches():
                handled.extend(event.body for event in batch)

        async with HubAndStore(1) as env:
            await env.send(*TEN)
            processor = Processor(env.connection, store=env.store, options=MANUAL, clock=env.clock)
            async with processor:
                running = asyncio.create_task(processor.run(serve))
                await until(lambda: len(handled) == 10)
            await running
        assert handled == [body.encode() for body in TEN]

    run(scenario())


# -- other tasks ----------------------------------------------------------------------------------


async def in_finally(checkpoint: Checkpoint, fail: Callable[[], None]) -> None:
    async def save() -> None:
        await checkpoint()

    try:
        fail()
    finally:
        await asyncio.create_task(save())


async def while_it_handles(checkpoint: Checkpoint, fail: Callable[[], None]) -> None:
    async def save_regularly() -> None:
        while True:
            await asyncio.sleep(0.1)
            await checkpoint()

    saving = asyncio.create_task(save_regularly())
    try:
        await asyncio.sleep(1)
        fail()
    finally:
        saving.cancel()


@pytest.mark.parametrize("saved", [in_finally, while_it_handles])
@pytest.mark.parametrize("api", APIS)
def test_a_checkpoint_by_another_task_does_not_cover_a_batch_that_fails(
    api: str, saved: Callable[[Checkpoint, Callable[[], None]], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        failures = 0
        errors: Errors = []

        def fail() -> None:
            nonlocal failures
            failures += 1
            raise ValueError("the database is down")

        async def handle(checkpoint: Checkpoint, batch: list[Event]) -> None:
            await saved(checkpoint, fail)

        options = HostOptions(poison=STOP_AT_ONCE, checkpoint_on_stop=False)
        async with HubAndStore(1) as env:
            await env.send(*TEN)
            async with host_of(api, env, env.store, handle, errors, options=options):
                await until(lambda: failures >= 1)
                await asyncio.sleep(5)
            assert await stored(env) is None

    run(scenario())


# -- a store that fails ---------------------------------------------------------------------------


class SavesInErrorCallback:
    """Checkpoints every event, and once more when an error is reported."""

    handled: list[bytes]
    calls: int

    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        for event in messages:
            self.handled.append(event.body)
            await context.checkpoint(event)

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        type(self).calls += 1
        await context.checkpoint()


def test_an_error_callback_does_not_cover_the_batch_whose_checkpoint_failed() -> None:
    """And the failing store does not get more and more requests."""

    async def scenario() -> None:
        SavesInErrorCallback.handled, SavesInErrorCallback.calls = [], 0
        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            host = EventProcessorHost("a", env.connection, store=store, clock=env.clock)
            options = EventProcessorOptions(max_batch_size=10, checkpoint_on_stop=False)
            await env.send(*TEN[:1])
            await host.register(SavesInErrorCallback, options)
            await until(lambda: SavesInErrorCallback.handled)
            store.away = FAST
            await env.send(*TEN[1:])
            await until(lambda: len(SavesInErrorCallback.handled) == 2)
            await asyncio.sleep(5)
            assert SavesInErrorCallback.calls <= 30
            assert store.refused_checkpoints <= 30
            store.away = ""
            await env.until_checkpoint(9)
            assert len(SavesInErrorCallback.handled) == 10
            await host.unregister()

    run(scenario())


@pytest.mark.parametrize("api", ["class", "functions", "fixed"])
def test_a_handler_that_waits_for_its_checkpoint_is_not_stuck(api: str) -> None:
    """The time in which the store fails does not count as handling."""

    async def scenario() -> None:
        handled: list[bytes] = []
        errors: Errors = []

        async def handle(checkpoint: Checkpoint, batch: list[Event]) -> None:
            handled.extend(event.body for event in batch)
            await checkpoint()

        options = HostOptions(
            poison=PoisonPolicy(retries=0, then="skip"),
            handler_timeout_s=2.0,
            on_handler_timeout="cancel",
        )
        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            async with host_of(api, env, store, handle, errors, options=options):
                await env.send(*TEN[:1])
                await env.until_checkpoint(0)
                outage = asyncio.create_task(store.outage(FAST, 12))
                await asyncio.sleep(0)
                await env.send(*TEN[1:])
                await outage
                await env.until_checkpoint(9)
        assert sorted(handled) == sorted(body.encode() for body in TEN)
        assert {type(error).__name__ for _, error in errors} <= {"StoreUnavailable", "StoreError"}

    run(scenario())
