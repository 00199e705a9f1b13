"""Errors reach everybody who asked to hear of them, whatever handlers and listeners do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.errors import HandlerStuck
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.hub_and_store import HUB, Place, until
from tests.processor.test_handlers import Scene
from tests.processor.virtual_time import run

SKIP = PoisonPolicy(retries=0, then="skip")


class Plain:
    """An event processor without a coroutine."""

    def open(self, context: PartitionContext) -> None: ...

    def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    def process_events(self, context: PartitionContext, messages: list[Event]) -> None: ...

    def process_error(self, context: PartitionContext, error: Exception) -> None: ...


async def until_in_real_time(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_errors_are_reported_while_all_handler_threads_hang() -> None:
    """In real time: a virtual loop would not wait for a thread."""
    go, heard, names = threading.Event(), [], set()

    class Hangs(Plain):
        def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            go.wait(60)

    def hear(failed: Exception) -> None:
        heard.append(failed)
        names.add(threading.current_thread().name)

    options = EventProcessorOptions(handler_timeout_s=0.2)
    async with EmbeddedHub({HUB: 8}) as hub, open_client(hub.connection_string(HUB)) as client:
        for partition in range(8):
            await (await client.sender(str(partition))).send([Event(b"x")])
        host = EventProcessorHost(
            "a", hub.connection_string(HUB), store=MemoryStore(), strategy="greedy", on_error=hear
        )
        async with host:
            await host.register(Hangs, options)
            try:
                await until_in_real_time(lambda: len(heard) == 8)
            finally:
                go.set()
    assert {type(failed) for failed in heard} == {HandlerStuck}
    assert all(name.startswith("pumphouse on_error") for name in names)


def test_an_error_callback_that_raises_does_not_prevent_the_others() -> None:
    async def scene() -> None:
        heard: list[str] = []

        class Bad:
            async def open(self, context: PartitionContext) -> None: ...

            async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

            async def process_events(self, context: PartitionContext, messages: list[Event]) -> Any:
                raise ValueError("bad")

            async def process_error(self, context: PartitionContext, error: Exception) -> None:
                raise KeyError("in process_error")

        async def raises(received: object) -> None:
            raise KeyError("in on_exception")

        async def hear(failed: Exception) -> None:
            heard.append(type(failed).__name__)

        async with Place(1) as place:
            host = EventProcessorHost(
                "a", place.connection, store=place.store, clock=place.clock, on_error=hear
            )
            await place.send("a")
            async with host:
                await host.register(Bad, EventProcessorOptions(poison=SKIP, on_exception=raises))
                await until(lambda: heard == ["ValueError", "PoisonEvent"])

    run(scene())


def test_a_fixed_callback_that_raises_does_not_prevent_the_others() -> None:
    async def scene() -> None:
        heard: list[str] = []
        async with Place(1) as place:
            processor = FixedPartitionProcessor(
                place.connection, partitions=1, store=place.store, clock=place.clock, poison=SKIP
            )

            async def raises(*given: object) -> None:
                raise KeyError("in a listener")

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                raise ValueError("bad")

            async def assigned(partition: str) -> None:
                heard.append(f"assigned {partition}")

            async def failed(partition: str | None, error: Exception) -> None:
                heard.append(type(error).__name__)

            processor.on_assigned(raises)
            processor.on_assigned(assigned)
            processor.on_error(raises)
            processor.on_error(failed)
            await place.send("a")
            async with processor:
                await until(lambda: heard == ["assigned 0", "ValueError", "PoisonEvent"])

    run(scene())


@pytest.mark.parametrize("face", ["class", "functions", "fixed"])
async def test_stop_iteration_of_a_plain_handler_is_reported(face: str) -> None:
    """In real time: a virtual loop would not wait for a thread."""
    heard: list[str] = []

    def bad(*given: object) -> None:
        next(iter([]))

    async def hear(*given: object) -> None:
        heard.append(str(given[-1]))

    async with EmbeddedHub({HUB: 1}) as hub, open_client(hub.connection_string(HUB)) as client:
        await (await client.sender()).send([Event(b"x")])
        async with await start(face, hub.connection_string(HUB), bad, hear):
            await until_in_real_time(lambda: len(heard) == 2)
    assert heard[0] == "the handler raised StopIteration"


async def test_stop_iteration_of_a_plain_function_is_reported() -> None:
    def bad(partition: PartitionClient, batch: list[Event]) -> None:
        next(iter([]))

    async with Scene(bad, ProcessorOptions(poison=SKIP), clock=SystemClock()) as scene:
        await scene.send(b"x")
        await until_in_real_time(lambda: len(scene.errors) == 2)
        assert scene.kinds() == ["RuntimeError", "PoisonEvent"]


async def start(face: str, connection: str, bad: Any, hear: Any) -> Any:
    if face == "fixed":
        fixed = FixedPartitionProcessor(connection, partitions=1, store=MemoryStore(), poison=SKIP)
        fixed.on_batch(bad)
        fixed.on_error(hear)
        return fixed
    host = EventProcessorHost("a", connection, store=MemoryStore(), on_error=hear)
    options = EventProcessorOptions(poison=SKIP)
    if face == "functions":
        await host.start(bad, None, options)
    else:
        await host.register(type("Bad", (Plain,), {"process_events": bad}), options)
    return host
