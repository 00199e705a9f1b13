"""What happens to a handler that does not return within `handler_timeout_s`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from pumphouse.errors import HandlerStuck, OptionError
from pumphouse.events import Event
from pumphouse.processor.engine import Engine
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    FixedPartitionOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from tests.processor.handling.test_handlers import OPTIONS, HandlerHost
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

LIMITED = replace(OPTIONS, handler_timeout_s=5.0)


def test_a_cancelled_handler_is_retried() -> None:
    async def scenario() -> None:
        calls: list[list[bytes]] = []

        async def hang_once(partition: PartitionClient, batch: list[Event]) -> None:
            calls.append([event.body for event in batch])
            if len(calls) == 1:
                await asyncio.Event().wait()

        options = replace(LIMITED, on_handler_timeout="cancel")
        async with HandlerHost(hang_once, options) as host:
            await host.send(b"a")
            await host.until_checkpoint(0)
        assert calls == [[b"a"], [b"a"]]
        assert [type(error) for _, error in host.errors] == [HandlerStuck]

    run(scenario())


def test_a_handler_that_is_cancelled_every_time_is_poison() -> None:
    async def scenario() -> None:
        handled: list[bytes] = []

        async def hang(partition: PartitionClient, batch: list[Event]) -> None:
            if batch[0].body == b"bad":
                await asyncio.Event().wait()
            handled.extend(event.body for event in batch)

        options = replace(LIMITED, on_handler_timeout="cancel", batch_events_max=1)
        async with HandlerHost(hang, options) as host:
            await host.send(b"bad")
            await host.send(b"good")
            await host.until_checkpoint(1)
        assert handled == [b"good"]

    run(scenario())


def test_a_partition_whose_handler_hangs_is_given_up() -> None:
    async def scenario() -> None:
        hanging: list[str] = []

        async def hang(partition: PartitionClient, batch: list[Event]) -> None:
            hanging.append(partition.id)
            await asyncio.Event().wait()

        options = replace(LIMITED, on_handler_timeout="give-up")
        async with HandlerHost(hang, options) as host:
            await host.send(b"a")
            await host.until(lambda: "0" not in host.engine.owned and "0" in hanging)
            assert "1" in host.engine.owned
            assert hanging.count("0") == 1, "the host does not take it again at once"
            await asyncio.sleep(5)
        assert [type(error) for partition, error in host.errors if partition == "0"] == [
            HandlerStuck
        ], "each error once"

    run(scenario())


def test_another_host_handles_the_events_of_a_partition_that_was_given_up() -> None:
    async def scenario() -> None:
        hanging, handled = list[bytes](), list[bytes]()

        async def hang(context: PartitionContext, event: Event) -> None:
            hanging.append(event.body)
            await asyncio.Event().wait()

        async def handle(context: PartitionContext, event: Event) -> None:
            handled.append(event.body)

        async with HubAndStore(1) as env:
            hosts = [
                EventProcessorHost(name, env.connection, store=env.store, clock=env.clock)
                for name in "ab"
            ]
            options = EventProcessorOptions(handler_timeout_s=5.0, on_handler_timeout="give-up")
            await env.send("a", "b")
            await hosts[0].start(hang, options=options)
            await until(lambda: hanging)
            await hosts[1].start(handle)
            await until(lambda: len(handled) == 2)
            assert (hanging, handled) == ([b"a"], [b"a", b"b"])
            for host in hosts:
                await host.stop()

    run(scenario())


@pytest.mark.parametrize(
    "options", [ProcessorOptions, EventProcessorOptions, FixedPartitionOptions]
)
def test_an_unknown_action_is_refused(options: type) -> None:
    with pytest.raises(OptionError, match="on_handler_timeout must be one of report, cancel, give"):
        options(on_handler_timeout="kill")


@pytest.mark.parametrize("swallow", ["and continues", "and returns"])
def test_a_handler_that_ignores_its_cancellation_is_reported(swallow: str) -> None:
    async def scenario() -> None:
        calls = 0

        async def ignore_once(partition: PartitionClient, batch: list[Event]) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                return
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            if swallow == "and continues":
                await asyncio.sleep(60)

        options = replace(LIMITED, on_handler_timeout="cancel")
        async with HandlerHost(ignore_once, options) as host:
            await host.send(b"a")
            await host.until(lambda: host.errors)
            await host.until_checkpoint(0)
        assert calls == 2, "a cancelled batch is retried"
        assert {type(error) for _, error in host.errors} == {HandlerStuck}

    run(scenario())


def test_a_plain_open_does_not_make_an_idle_partition_stuck() -> None:
    """The host calls `open` in a thread, before there is a batch."""

    async def scenario() -> None:
        idle_s: list[float] = []

        async def serve(partition: PartitionClient) -> None:
            partition.handler_waits()
            partition.handler_starts()
            partition.handler_ends()
            await partition.sleep(60)
            idle_s.append(partition.in_hand_for_s())
            await partition.wait_until_stopping()

        async with HubAndStore(1) as env:
            engine = Engine(env.connection, serve, store=env.store, clock=env.clock)
            async with engine:
                await until(lambda: idle_s)
        assert idle_s == [0.0]

    run(scenario())


@pytest.mark.parametrize("handler_timeout_s", [5.0, None])
def test_a_stuck_handler_is_reported_once_though_the_host_stops(
    handler_timeout_s: float | None,
) -> None:
    """At the stop it has hung for longer: that is not another failure."""

    async def scenario() -> None:
        started = asyncio.Event()

        async def hang(partition: PartitionClient, batch: list[Event]) -> None:
            started.set()
            await asyncio.Event().wait()

        options = replace(LIMITED, handler_timeout_s=handler_timeout_s)
        async with HandlerHost(hang, options) as host:
            await host.send(b"a")
            await started.wait()
            await asyncio.sleep(20)
        assert host.kinds() == ["HandlerStuck"]

    run(scenario())
