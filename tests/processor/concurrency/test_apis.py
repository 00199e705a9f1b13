"""Several handlers of a partition in every processor API."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pumphouse.clock import SystemClock
from pumphouse.events import Event
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from tests.processor.concurrency.env import (
    Env,
    Handler,
    N,
)
from tests.processor.support.hub_and_store import until
from tests.processor.support.virtual_time import run


def test_functions_get_one_event_per_call() -> None:
    async def scenario() -> None:
        handler = Handler()
        current: list[bool] = []

        async def on_message(context: PartitionContext, event: Event) -> None:
            await handler.handle(event)
            current.append(context.at is event)
            await context.checkpoint()

        async with Env() as env:
            await env.send_keys("abcdeabcde" * 3)
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            await host.start(on_message, options=EventProcessorOptions(concurrency=N))
            await env.until_checkpoint(29)
            await host.stop()
        assert handler.most == N
        assert sorted(handler.sequences()) == list(range(30))
        assert all(current)
        handler.check_order()

    run(scenario())


def test_a_class_is_called_for_several_keys_at_once() -> None:
    async def scenario() -> None:
        handler = Handler()
        calls: list[str] = []

        class Rows:
            async def open(self, context: PartitionContext) -> None:
                calls.append("open")

            async def process_events(self, context: PartitionContext, messages: Any) -> None:
                await handler(context.partition, messages)
                await context.checkpoint(messages[-1])

            async def process_error(self, context: PartitionContext, error: Exception) -> None:
                calls.append(repr(error))

            async def close(self, context: PartitionContext, reason: str) -> None:
                assert not handler.running.total()
                calls.append("close")

        async with Env() as env:
            await env.send_keys("abcdeabcde" * 3)
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            await host.register(Rows, EventProcessorOptions(concurrency=N))
            await env.until_checkpoint(29)
            await host.stop()
        assert handler.most == N
        assert calls == ["open", "close"]

    run(scenario())


def test_a_fixed_processor_handles_keys_at_once() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            await env.send_keys("abcde" * 4)
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock, concurrency=N
            )
            processor.on_batch(handler)
            async with processor:
                await until(lambda: len(handler.handled) == 20)
            await env.until_checkpoint(19)
        assert handler.most == N
        handler.check_order()

    run(scenario())


async def test_plain_functions_run_in_threads_at_once() -> None:
    """In real time: a virtual loop does not wait for a thread."""
    met = threading.Barrier(N)
    handled: list[int | None] = []

    def handle(partition: PartitionClient, events: list[Event]) -> None:
        met.wait(60)
        handled.extend(event.sequence for event in events)

    async with Env() as env:
        await env.send_keys("abcd")
        async with env.host(handle, clock=SystemClock()):
            async with asyncio.timeout(600):
                while len(handled) < N:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await env.until_checkpoint(3)
    assert sorted(each or 0 for each in handled) == [0, 1, 2, 3]
    assert not env.errors
