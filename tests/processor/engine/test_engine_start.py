"""Starts of an engine: stopped meanwhile, cancelled, or concurrent."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.events import Event
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import LoopClock, run


class SlowStore(MemoryStore):
    """Opens slowly, and counts how often it is open."""

    def __init__(self, opens_s: float) -> None:
        super().__init__(LoopClock())
        self.opens_s, self.open = opens_s, 0

    async def __aenter__(self) -> Self:
        await asyncio.sleep(self.opens_s)
        self.open += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.open -= 1


class IdleProcessor:
    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None: ...

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...


async def serve(partition: PartitionClient) -> None:
    async for _ in partition.batches():
        pass


def make_engine(env: HubAndStore, store: MemoryStore) -> Engine:
    return Engine(env.connection, serve, store=store, host="a", clock=env.clock)


def make_host(env: HubAndStore, store: MemoryStore, **more: Any) -> EventProcessorHost:
    return EventProcessorHost("a", env.connection, store=store, clock=env.clock, **more)


def test_an_engine_stopped_during_its_start_does_not_start() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = SlowStore(1)
            engine = make_engine(env, store)
            starting = asyncio.create_task(engine.start())
            await asyncio.sleep(0.5)
            await engine.stop()
            with pytest.raises(OptionError, match="a was stopped while it started"):
                await starting
            assert store.open == 0
            await engine.start()  # as after any failed start
            await until(lambda: engine.owned == ("0",))
            await engine.stop()
            assert store.open == 0

    run(scenario())


def test_a_stop_cancels_a_start_that_hangs() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            engine = make_engine(env, SlowStore(10_000))
            starting = asyncio.create_task(engine.start())
            await asyncio.sleep(0.5)
            async with asyncio.timeout(engine.options.stop_s):
                await engine.stop()
            with pytest.raises(OptionError, match="was stopped while it started"):
                await starting

    run(scenario())


def test_a_cancelled_start_raises() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            engine = make_engine(env, SlowStore(10_000))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await engine.start()
            await engine.stop()

    run(scenario())


def test_two_concurrent_starts_are_refused() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = SlowStore(1)
            engine = make_engine(env, store)
            starting = asyncio.create_task(engine.start())
            await asyncio.sleep(0.5)
            with pytest.raises(OptionError, match="a is being started already"):
                await engine.start()
            await starting
            await engine.stop()
            assert store.open == 0

    run(scenario())


def test_a_host_unregistered_during_its_registration_does_not_start() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = SlowStore(1)
            host = make_host(env, store)
            registering = asyncio.create_task(host.register(IdleProcessor))
            await asyncio.sleep(0.5)
            await host.unregister()
            with pytest.raises(OptionError, match="was stopped while it started"):
                await registering
            assert repr(host) == "<EventProcessorHost a | not registered>"
            assert store.open == 0
            await host.register(IdleProcessor)
            await until(lambda: host.owned == ("0",))
            await host.unregister()

    run(scenario())


def test_a_host_with_invalid_options_can_be_registered_again() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env, make_host(env, env.store) as host:
            nowhere = EventProcessorOptions(poison=PoisonPolicy(then="dead-letter"))
            with pytest.raises(OptionError, match="dead_letters is missing"):
                await host.register(IdleProcessor, nowhere)
            await host.register(IdleProcessor)

    run(scenario())


def test_a_second_register_and_a_missing_hub_are_refused() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env, make_host(env, env.store) as host:
            await host.register(IdleProcessor)
            with pytest.raises(OptionError, match="a is registered already"):
                await host.register(IdleProcessor)
            nowhere = env.hub.connection_string(HUB).replace(f"={HUB}", "=nowhere")
            missing = EventProcessorHost("b", nowhere, store=env.store)
            with pytest.raises(PumphouseError, match="nowhere"):
                await missing.register(IdleProcessor)
            await missing.unregister()

    run(scenario())
