"""User code may change the list of events that it gets: it is a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pumphouse import CloseReason, Event
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.handling.event_processors import PartitionContext
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    FixedPartitionOptions,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

BODIES = ["a", "b", "c", "d"]
EVERY_EVENT = CheckpointPolicy(every_events=1)
SKIP = PoisonPolicy(then="skip", first_s=0.1, most_s=0.1)


class Emptying:
    """Takes the events off the list, and fails the first time that it has this body."""

    def __init__(self, fails_on: bytes = b"b", times: int = 1) -> None:
        self.handled: list[bytes] = []
        self.fails_on, self.failures = fails_on, times

    def take(self, events: list[Event]) -> None:
        while events:
            event = events.pop(0)
            if event.body == self.fails_on and self.failures:
                self.failures -= 1
                raise ConnectionError("once")
            self.handled.append(event.body)

    async def awaited(self, partition: PartitionClient, events: list[Event]) -> None:
        self.take(events)

    def plain(self, partition: PartitionClient, events: list[Event]) -> None:
        self.take(events)


class EmptyingProcessor:
    """The same as a class of an EventProcessorHost."""

    def __init__(self, emptying: Emptying) -> None:
        self.emptying = emptying

    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        self.emptying.take(messages)


class EmptyingInThread(EmptyingProcessor):
    def process_events(  # type: ignore[override]
        self, context: PartitionContext, messages: list[Event]
    ) -> None:
        self.emptying.take(messages)


def options(**more: Any) -> ProcessorOptions:
    return ProcessorOptions(checkpoints=EVERY_EVENT, poison=SKIP, **more)


async def as_coroutine(env: HubAndStore, emptying: Emptying) -> None:
    await run_handler(env, emptying, emptying.awaited, options())


async def as_plain_function(env: HubAndStore, emptying: Emptying) -> None:
    await run_handler(env, emptying, emptying.plain, options())


async def with_concurrency(env: HubAndStore, emptying: Emptying) -> None:
    await run_handler(env, emptying, emptying.awaited, options(concurrency=4))


async def run_handler(
    env: HubAndStore, emptying: Emptying, handler: Any, settings: ProcessorOptions
) -> None:
    processor = Processor(env.connection, store=env.store, options=settings)
    running = asyncio.create_task(processor.run(handler=handler))
    await handled(emptying)
    await processor.stop()
    await running


async def as_class(env: HubAndStore, emptying: Emptying) -> None:
    await run_host(env, emptying, EmptyingProcessor)


async def as_class_in_threads(env: HubAndStore, emptying: Emptying) -> None:
    await run_host(env, emptying, EmptyingInThread)


async def run_host(
    env: HubAndStore, emptying: Emptying, processor: type[EmptyingProcessor]
) -> None:
    settings = EventProcessorOptions(checkpoints=EVERY_EVENT, poison=SKIP)
    async with EventProcessorHost("host", env.connection, store=env.store) as host:
        await host.register(lambda: processor(emptying), settings)
        await handled(emptying)


async def as_two_batch_handlers(env: HubAndStore, emptying: Emptying) -> None:
    settings = FixedPartitionOptions(poison=SKIP)
    async with FixedPartitionProcessor(
        env.connection, store=env.store, partitions=1, options=settings
    ) as processor:
        first = Emptying(b"")
        processor.on_batch(first.awaited)
        processor.on_batch(emptying.awaited)
        await handled(emptying)


async def handled(emptying: Emptying) -> None:
    await until(lambda: set(emptying.handled) == {body.encode() for body in BODIES})


Api = Callable[[HubAndStore, Emptying], Awaitable[None]]
APIS: list[Api] = [
    as_coroutine,
    as_plain_function,
    with_concurrency,
    as_class,
    as_class_in_threads,
    as_two_batch_handlers,
]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
async def test_a_handler_that_takes_events_off_its_list_loses_none(api: Api) -> None:
    async with HubAndStore(1) as env:
        await env.send(*BODIES)
        await api(env, Emptying())
        await env.until_checkpoint(3)


def test_an_event_that_always_fails_is_found_although_the_list_is_empty() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        emptying = Emptying(times=100)
        async with HubAndStore(1) as env:
            await env.send(*BODIES)
            processor = Processor(
                env.connection,
                store=env.store,
                clock=env.clock,
                options=options(),
                on_error=lambda partition, error: errors.append(error),
            )
            running = asyncio.create_task(processor.run(handler=emptying.awaited))
            await env.until_checkpoint(3)
            await processor.stop()
            await running
        assert [error.sequence for error in errors if hasattr(error, "sequence")] == [1]
        assert set(emptying.handled) == {b"a", b"c", b"d"}

    run(scenario())


@pytest.mark.parametrize("change", [list.clear, list.reverse], ids=["clear", "reverse"])
def test_a_loop_that_changes_its_batch_checkpoints_all_of_it(change: Any) -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            await env.send(*BODIES)

            async def serve(partition: PartitionClient) -> None:
                async for batch in partition.batches():
                    change(batch)
                    await partition.checkpoint()

            processor = Processor(env.connection, store=env.store, clock=env.clock)
            running = asyncio.create_task(processor.run(serve))
            await env.until_checkpoint(3)
            await processor.stop()
            await running

    run(scenario())
