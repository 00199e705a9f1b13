"""Event processors whose close raises, and hosts that are stopped from within."""

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
from tests.processor.hub_and_store import HUB, Place, until
from tests.processor.virtual_time import run


class Quiet:
    async def open(self, context: PartitionContext) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None: ...

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...


def make_host(place: Place, **more: Any) -> EventProcessorHost:
    return EventProcessorHost("a", place.connection, store=place.store, clock=place.clock, **more)


def test_a_close_that_raises_does_not_hide_a_poison_event() -> None:
    async def scene() -> None:
        heard: list[Exception] = []
        opened: list[str] = []

        class Bad(Quiet):
            async def open(self, context: PartitionContext) -> None:
                opened.append(context.partition_id)

            async def close(self, context: PartitionContext, reason: CloseReason) -> None:
                raise RuntimeError("it does not close")

            async def process_events(self, context: PartitionContext, messages: list[Event]) -> Any:
                raise ValueError("bad")

        async def hear(received: ExceptionReceived) -> None:
            heard.append(received.exception)

        options = EventProcessorOptions(
            poison=PoisonPolicy(retries=0, then="stop"), on_exception=hear
        )
        async with Place(1) as place, make_host(place) as host:
            await place.send("a")
            await host.register(Bad, options)
            await asyncio.sleep(300)
            assert opened == ["0"], "it waits for a resume"
            kinds = [type(failed) for failed in heard]
            assert kinds == [ValueError, RuntimeError, PoisonEvent]

    run(scene())


async def test_a_method_that_still_runs_at_stop_keeps_its_row_and_is_not_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In real time: a virtual loop would not wait for a thread."""
    began, go = threading.Event(), threading.Event()
    closed: list[str] = []

    class Plain:
        def open(self, context: PartitionContext) -> None: ...

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            closed.append(context.partition_id)
            raise RuntimeError("it does not close")

        def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            began.set()
            go.wait(60)

        def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    hasty = lambda *both: replace(host_engine_options(*both), stop_s=0.2)  # noqa: E731
    monkeypatch.setattr("pumphouse.processor.host.host_engine_options", hasty)
    async with EmbeddedHub({HUB: 1}) as hub, open_client(hub.connection_string(HUB)) as client:
        await (await client.sender()).send([Event(b"x")])
        store = MemoryStore()
        host = EventProcessorHost("a", hub.connection_string(HUB), store=store)
        await host.register(Plain)
        try:
            assert await asyncio.to_thread(began.wait, 60)
            await host.unregister()
            (row,) = (await store.list_ownership(Group(client.namespace, HUB))).ownerships
        finally:
            go.set()
    assert (row.owner, closed) == ("a", [])


# -- stopped from within --------------------------------------------------------------------------


def test_a_handler_may_stop_its_host() -> None:
    async def scene() -> None:
        class Last(Quiet):
            async def process_events(
                self, context: PartitionContext, messages: list[Event]
            ) -> None:
                await host.unregister()
                await context.checkpoint()

        async with Place(1) as place:
            host = make_host(place)
            await place.send("a")
            await host.register(Last)
            async with asyncio.timeout(5):
                await host.run()
            await host.unregister()
            assert repr(host) == "<EventProcessorHost a | not registered>"
            (row,) = (await place.store.list_ownership(place.group)).ownerships
            assert row.owner == ""
            await place.until_checkpoint(0)

    run(scene())


def test_a_callback_may_stop_its_engine_without_a_deadlock() -> None:
    async def scene() -> None:
        took_s: list[float] = []

        async def serve(partition: PartitionClient) -> None:
            raise ValueError("fatal")

        async def stop(partition: str | None, failed: Exception) -> None:
            if isinstance(failed, ValueError) and not took_s:
                before_s = place.clock.monotonic()
                await engine.stop()
                took_s.append(place.clock.monotonic() - before_s)

        async with Place(1) as place:
            engine = Engine(
                place.connection, serve, store=place.store, clock=place.clock, on_error=stop
            )
            async with engine:
                await until(lambda: took_s)
            assert took_s[0] < 1

    run(scene())


def test_a_partition_claimed_during_a_stop_is_reported_as_released() -> None:
    async def scene() -> None:
        words: list[str] = []

        class Slow(MemoryStore):
            async def claim_ownership(self, *given: Any) -> Any:
                await asyncio.sleep(2)
                return await super().claim_ownership(*given)

        async def serve(partition: PartitionClient) -> None:
            async for _ in partition.batches():
                pass

        async with Place(1) as place:
            engine = Engine(
                place.connection,
                serve,
                store=Slow(place.clock),
                clock=place.clock,
                options=ProcessorOptions(),
                on_ownership=lambda word, partition: words.append(word),
            )
            await engine.start()
            await asyncio.sleep(1)
            await engine.stop()
            assert words == ["claimed", "released"]

    run(scene())
