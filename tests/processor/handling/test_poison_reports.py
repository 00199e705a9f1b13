"""A partition that poison stops: which callbacks get the error, and how it is started again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pumphouse.errors import PoisonEvent
from pumphouse.events import Event
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

STOP = PoisonPolicy(retries=0)


def new_host(env: HubAndStore) -> EventProcessorHost:
    return EventProcessorHost("host-a", env.connection, store=env.store, clock=env.clock)


def poisons(calls: list[Any]) -> list[Any]:
    return [call for call in calls if isinstance(call, PoisonEvent)]


@pytest.mark.parametrize("form", ["coroutine", "plain"])
def test_process_error_gets_poison_before_close(form: str) -> None:
    async def scenario() -> None:
        calls: list[Any] = []

        class Failing:
            async def open(self, context: PartitionContext) -> None: ...

            async def close(self, context: PartitionContext, reason: CloseReason) -> None:
                calls.append("close")

            async def process_events(self, context: PartitionContext, batch: list[Event]) -> None:
                raise ValueError("cannot")

            async def process_error(self, context: PartitionContext, error: Exception) -> None:
                calls.append(error)

        class Plain(Failing):
            def process_error(self, context: Any, error: Exception) -> None:  # type: ignore[override]
                calls.append(error)

        factory: Any = Plain if form == "plain" else Failing
        async with HubAndStore(1) as env, new_host(env) as host:
            await env.send("bad")
            await host.register(factory, EventProcessorOptions(poison=STOP))
            await until(lambda: poisons(calls))
            await asyncio.sleep(60)
            assert len(poisons(calls)) == 1, "each error once"
            if form == "coroutine":
                assert [type(call) for call in calls] == [ValueError, PoisonEvent, str]
            assert host.owned == ("0",)

    run(scenario())


def test_on_error_of_start_gets_poison_and_may_resume() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        handled: list[bytes] = []
        repaired = False

        async def on_message(context: PartitionContext, event: Event) -> None:
            if event.body == b"bad" and not repaired:
                raise ValueError("cannot")
            handled.append(event.body)

        async def on_error(error: Exception) -> None:
            nonlocal repaired
            errors.append(error)
            if isinstance(error, PoisonEvent):
                repaired = True
                host.resume(error.partition)

        async with HubAndStore(1) as env, new_host(env) as host:
            await env.send("a", "bad", "c")
            await host.start(on_message, on_error, EventProcessorOptions(poison=STOP))
            await until(lambda: len(handled) == 3)
        assert handled == [b"a", b"bad", b"c"]
        assert [error.sequence for error in poisons(errors)] == [1]

    run(scenario())


def test_a_fixed_processor_is_resumed_after_poison() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        handled: list[bytes] = []
        repaired = False
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, poison=STOP, clock=env.clock
            )

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                for event in batch:
                    if event.body == b"bad" and not repaired:
                        raise ValueError("cannot")
                handled.extend(event.body for event in batch)

            @processor.on_error
            async def on_error(partition: str | None, error: Exception) -> None:
                errors.append(error)

            async with processor:
                await env.send("a", "bad", "c")
                await until(lambda: poisons(errors))
                await asyncio.sleep(120)
                assert handled == [b"a"]
                assert len(poisons(errors)) == 1
                repaired = True
                processor.resume("0")
                await until(lambda: len(handled) == 3)
        assert handled == [b"a", b"bad", b"c"]

    run(scenario())


def test_a_paused_fixed_processor_keeps_its_partitions_and_handles_nothing() -> None:
    async def scenario() -> None:
        handled: list[bytes] = []
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock
            )

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                handled.extend(event.body for event in batch)

            async with processor:
                await until(lambda: processor.owned == ("0",))
                processor.pause()
                await env.send("a")
                await asyncio.sleep(300)
                assert (handled, processor.owned) == ([], ("0",))
                processor.resume()
                await until(lambda: handled == [b"a"])

    run(scenario())


def test_an_earlier_resume_does_not_resume_a_later_poison() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        attempts: list[bytes] = []

        async def on_message(context: PartitionContext, event: Event) -> None:
            attempts.append(event.body)
            if event.body == b"bad":
                raise ValueError("cannot")

        async with HubAndStore(1) as env, new_host(env) as host:
            await host.start(on_message, errors.append, EventProcessorOptions(poison=STOP))
            await env.send("a")
            await until(lambda: attempts == [b"a"])
            host.pause()
            host.resume()
            await env.send("bad")
            await until(lambda: poisons(errors))
            await asyncio.sleep(300)
            assert attempts == [b"a", b"bad"]

    run(scenario())


def test_every_stop_of_a_resumed_partition_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        errors: list[Exception] = []

        async def on_message(context: PartitionContext, event: Event) -> None:
            raise ValueError("cannot")

        async with HubAndStore(1) as env, new_host(env) as host:
            await env.send("bad")
            await host.start(on_message, errors.append, EventProcessorOptions(poison=STOP))
            for stops in (1, 2, 3):
                await until(lambda stops=stops: len(poisons(errors)) == stops)  # type: ignore[misc]
                await asyncio.sleep(60)
                host.resume()
            await until(lambda: len(poisons(errors)) == 4)

    run(scenario())
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if line.startswith("event_poisoned")]) == 4
