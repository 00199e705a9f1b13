"""Stops of an engine: a close that raises, and stops by handlers and callbacks."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.errors import PoisonEvent
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    ExceptionReceived,
    PoisonPolicy,
    ProcessorOptions,
    host_engine_options,
)
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run


class IdleProcessor:
    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None: ...

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...


def make_host(env: HubAndStore, **options: Any) -> EventProcessorHost:
    return EventProcessorHost("a", env.connection, store=env.store, clock=env.clock, **options)


def test_a_close_that_raises_does_not_hide_a_poison_event() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        opened: list[str] = []

        class FailingProcessor(IdleProcessor):
            async def open(self, context: PartitionContext) -> None:
                opened.append(context.partition_id)

            async def close(self, context: PartitionContext, reason: CloseReason) -> None:
                raise RuntimeError("cannot close")

            async def process_events(self, context: PartitionContext, messages: list[Event]) -> Any:
                raise ValueError("bad")

        async def record(received: ExceptionReceived) -> None:
            errors.append(received.exception)

        options = EventProcessorOptions(
            poison=PoisonPolicy(retries=0, then="stop"), on_exception=record
        )
        async with HubAndStore(1) as env, make_host(env) as host:
            await env.send("a")
            await host.register(FailingProcessor, options)
            await asyncio.sleep(300)
            assert opened == ["0"], "the partition is not re-opened before a resume"
            kinds = [type(failed) for failed in errors]
            assert kinds == [ValueError, PoisonEvent, RuntimeError]

    run(scenario())


async def test_a_partition_whose_handler_still_runs_at_stop_is_neither_released_nor_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In real time: a virtual loop does not wait for a thread."""
    started, resume = threading.Event(), threading.Event()
    closed: list[str] = []

    class PlainProcessor:
        def open(self, context: PartitionContext) -> None: ...

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            closed.append(context.partition_id)
            raise RuntimeError("cannot close")

        def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            started.set()
            resume.wait(60)

        def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    short_stop = lambda *args: replace(host_engine_options(*args), stop_s=0.2)  # noqa: E731
    monkeypatch.setattr("pumphouse.processor.host.host_engine_options", short_stop)
    async with EmbeddedHub({HUB: 1}) as hub, open_client(hub.connection_string(HUB)) as client:
        await (await client.sender()).send([Event(b"x")])
        store = MemoryStore()
        host = EventProcessorHost("a", hub.connection_string(HUB), store=store)
        await host.register(PlainProcessor)
        try:
            assert await asyncio.to_thread(started.wait, 60)
            await host.unregister()
            (row,) = (await store.list_ownership(Group(client.namespace, HUB))).ownerships
        finally:
            resume.set()
    assert (row.owner, closed) == ("a", [])


# -- stopped by a handler or a callback -----------------------------------------------------------


def test_a_handler_may_stop_its_host() -> None:
    async def scenario() -> None:
        class StoppingProcessor(IdleProcessor):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                await host.unregister()
                await context.checkpoint()

        async with HubAndStore(1) as env:
            host = make_host(env)
            await env.send("a")
            await host.register(StoppingProcessor)
            async with asyncio.timeout(5):
                await host.run()
            await host.unregister()
            assert repr(host) == "<EventProcessorHost a | not registered>"
            (row,) = (await env.store.list_ownership(env.group)).ownerships
            assert row.owner == ""
            await env.until_checkpoint(0)

    run(scenario())


def test_a_callback_may_stop_its_engine_without_a_deadlock() -> None:
    async def scenario() -> None:
        took_s: list[float] = []

        async def serve(partition: PartitionClient) -> None:
            raise ValueError("fatal")

        async def stop(partition: str | None, failed: Exception) -> None:
            if isinstance(failed, ValueError) and not took_s:
                before_s = env.clock.monotonic()
                await engine.stop()
                took_s.append(env.clock.monotonic() - before_s)

        async with HubAndStore(1) as env:
            engine = Engine(env.connection, serve, store=env.store, clock=env.clock, on_error=stop)
            async with engine:
                await until(lambda: took_s)
            assert took_s[0] < 1

    run(scenario())


def test_a_partition_claimed_during_a_stop_is_reported_as_released() -> None:
    async def scenario() -> None:
        changes: list[str] = []

        class SlowStore(MemoryStore):
            async def claim_ownership(self, *args: Any) -> Any:
                await asyncio.sleep(2)
                return await super().claim_ownership(*args)

        async def serve(partition: PartitionClient) -> None:
            async for _ in partition.batches():
                pass

        async with HubAndStore(1) as env:
            engine = Engine(
                env.connection,
                serve,
                store=SlowStore(env.clock),
                clock=env.clock,
                options=ProcessorOptions(),
                on_ownership=lambda change, partition: changes.append(change),
            )
            await engine.start()
            await asyncio.sleep(1)
            await engine.stop()
            assert changes == ["claimed", "released"]

    run(scenario())
