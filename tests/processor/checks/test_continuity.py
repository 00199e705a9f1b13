"""Events that are gone: retention has passed the checkpoint, or the hub was re-created."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from pumphouse.errors import EventsExpired, OptionError
from pumphouse.events import LATEST, Event
from pumphouse.hub.options import Retention
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    FixedPartitionOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run

RETENTION_S = 600.0
OPTIONS = ProcessorOptions(checkpoints=CheckpointPolicy(every_events=1))


def make_env() -> HubAndStore:
    return HubAndStore(1, retention=Retention(seconds=RETENTION_S))


class Host:
    """An engine that records, in order, the events it handles and the losses it reports."""

    def __init__(self, env: HubAndStore, options: ProcessorOptions = OPTIONS) -> None:
        self.record: list[int | tuple[int, int | None]] = []
        self.errors: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.engine = Engine(
            env.connection,
            self.serve,
            store=env.store,
            host="a",
            options=options,
            on_error=self.failed,
            clock=env.clock,
        )

    async def serve(self, partition: PartitionClient) -> None:
        async for batch in partition.batches():
            await self.gate.wait()
            self.record += [event.sequence or 0 for event in batch]

    def failed(self, partition: str | None, error: Exception) -> None:
        self.errors.append(error)
        if isinstance(error, EventsExpired):
            self.record.append((error.first, error.last))

    @property
    def losses(self) -> list[EventsExpired]:
        return [error for error in self.errors if isinstance(error, EventsExpired)]


async def handle(env: HubAndStore, events: int) -> None:
    """Send events, handle and checkpoint all of them, and stop."""
    await env.send(*map(str, range(events)))
    async with Host(env).engine:
        await env.until_checkpoint(events - 1)


async def expire(env: HubAndStore, events: int = 5) -> None:
    """Send events and let retention remove them."""
    await env.send(*map(str, range(events)))
    await asyncio.sleep(RETENTION_S + 1)
    env.hub.tick()


async def recreate(env: HubAndStore, events: int) -> None:
    env.hub.delete_hub(HUB)
    await asyncio.sleep(1)
    env.hub.create_hub(HUB, 1)
    if events:
        await env.send(*map(str, range(events)))


def test_events_that_expired_after_the_checkpoint_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> Host:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env, 20)
            await env.send("x", "y")
            host = Host(env)
            async with host.engine:
                await env.until_checkpoint(24)
            return host

    with caplog.at_level(logging.WARNING, "pumphouse.processor"):
        host = run(scenario())
    assert host.record == [(3, 22), 23, 24]
    (loss,) = host.losses
    assert (loss.partition, loss.first, loss.last, loss.count) == ("0", 3, 22, 20)
    assert "events 3 to 22 of partition 0 are gone (20 in all)" in str(loss)
    assert host.engine.reporter.counts["expired_events"] == 20
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("events_expired host=a partition=0")]


def test_the_loss_is_reported_even_if_no_event_follows() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env, 4)
            host = Host(env)
            async with host.engine:
                await until(lambda: host.losses)
            assert host.record == [(3, 6)]

    run(scenario())


def test_no_loss_is_reported_if_all_expired_events_were_handled() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await asyncio.sleep(RETENTION_S + 1)
            env.hub.tick()
            await env.send("x")
            host = Host(env)
            async with host.engine:
                await env.until_checkpoint(3)
            assert host.record == [3]
            assert host.errors == []

    run(scenario())


def test_retention_that_passes_a_paused_partition_is_reported() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            host = Host(env, replace(OPTIONS, prefetch=1, batch_events_max=1))
            async with host.engine:
                await env.send("a", "b")
                await env.until_checkpoint(1)
                host.engine.pause()
                await expire(env, 20)
                host.engine.resume()
                await env.send("z")
                await until(lambda: 22 in host.record)
            (loss,) = host.losses
            gap = host.record.index((loss.first, loss.last))
            assert host.record[gap - 1] == loss.first - 1
            assert host.record[gap:] == [(loss.first, 21), 22]

    run(scenario())


def test_retention_that_passes_a_slow_handler_is_reported() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            host = Host(env, replace(OPTIONS, prefetch=1, batch_events_max=1))
            async with host.engine:
                host.gate.clear()
                await expire(env, 20)
                host.gate.set()
                await env.send("z")
                await until(lambda: 20 in host.record)
            (loss,) = host.losses
            assert host.record == [*range(loss.first), (loss.first, 19), 20]

    run(scenario())


def test_fail_stops_the_partition_until_it_is_resumed() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env)
            await env.send("x")
            host = Host(env, replace(OPTIONS, on_expired="fail"))
            async with host.engine:
                await until(lambda: host.losses)
                await asyncio.sleep(100)
                assert host.record == [(3, 7)]
                assert host.engine.owned == ("0",)
                host.engine.resume("0")
                await env.until_checkpoint(8)
            assert host.record == [(3, 7), 8]

    run(scenario())


@pytest.mark.parametrize("api", ["class", "functions"])
def test_the_callbacks_of_a_partition_hear_that_a_loss_has_stopped_it(api: str) -> None:
    async def scenario() -> None:
        heard: list[object] = []

        class Recorder:
            async def open(self, context: object) -> None: ...

            async def close(self, context: object, reason: object) -> None:
                heard.append("closed")

            async def process_events(self, context: object, batch: list[Event]) -> None:
                heard.extend(event.sequence for event in batch)

            async def process_error(self, context: object, error: Exception) -> None:
                heard.append(error)

        async def on_message(context: object, event: Event) -> None:
            heard.append(event.sequence)

        async with make_env() as env:
            await handle(env, 3)
            await expire(env)
            await env.send("x")
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            options = EventProcessorOptions(on_expired="fail")
            async with host:
                if api == "class":
                    await host.register(Recorder, options)
                else:
                    await host.start(on_message, heard.append, options)
                await until(lambda: heard)
                await asyncio.sleep(100)
                assert [loss.first for loss in heard if isinstance(loss, EventsExpired)] == [3]
                assert heard[1:] == ["closed"] * (api == "class")
                host.resume("0")
                await until(lambda: 8 in heard)
            assert sum(isinstance(each, Exception) for each in heard) == 1, "each error once"

    run(scenario())


@pytest.mark.parametrize("answer", ["fail", "report", None])
def test_a_function_decides(answer: str | None) -> None:
    decided: list[EventsExpired] = []

    async def decide(error: EventsExpired) -> str | None:
        decided.append(error)
        return answer

    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env)
            await env.send("x")
            host = Host(env, replace(OPTIONS, on_expired=decide))
            async with host.engine:
                await until(lambda: host.losses)
                await asyncio.sleep(100)
            assert host.record == [(3, 7)] if answer == "fail" else [(3, 7), 8]
            assert decided == host.losses

    run(scenario())


def test_a_function_that_raises_stops_the_partition() -> None:
    def decide(error: EventsExpired) -> None:
        raise ValueError("unknown tenant")

    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env)
            await env.send("x")
            host = Host(env, replace(OPTIONS, on_expired=decide))
            async with host.engine:
                await until(lambda: host.losses)
                await asyncio.sleep(100)
            assert host.record == [(3, 7)]
            assert host.losses[0].__notes__ == ["on_expired raised ValueError: unknown tenant"]

    run(scenario())


# -- a hub that was re-created --------------------------------------------------------------------


@pytest.mark.parametrize("events", [0, 2, 3, 50], ids=["empty", "shorter", "as long", "longer"])
def test_a_re_created_hub_is_reported_and_read_from_its_beginning(events: int) -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await recreate(env, events)
            host = Host(env)
            async with host.engine:
                if events == 0:
                    await until(lambda: host.losses)
                    await env.send("first")
                await env.until_checkpoint(max(events, 1) - 1)
                await until(lambda: len(host.record) == 1 + max(events, 1))
            assert host.record == [(3, None), *range(max(events, 1))]
            assert host.losses[0].recreated

    run(scenario())


def test_a_hub_that_is_re_created_while_it_is_read_is_reported() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            host = Host(env)
            async with host.engine:
                await env.send("a", "b", "c")
                await env.until_checkpoint(2)
                await recreate(env, 50)
                await until(lambda: host.record[-1] == 49)
            assert host.record == [0, 1, 2, (3, None), *range(50)]

    run(scenario())


def test_a_re_created_hub_without_a_checkpoint_is_reported() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            host = Host(env, ProcessorOptions())
            async with host.engine:
                await env.send("a", "b", "c")
                await until(lambda: 2 in host.record)
                await recreate(env, 50)
                await until(lambda: host.record[-1] == 49)
            assert host.record == [0, 1, 2, (3, None), *range(50)]

    run(scenario())


def test_a_checkpoint_of_an_official_sdk_is_compared_by_its_offset() -> None:
    """It has no enqueued time."""

    async def scenario(recreated: bool) -> list[Any]:
        async with make_env() as env:
            await handle(env, 3)
            stored = await env.checkpoint()
            assert stored is not None
            sdk = Checkpoint(env.group, "0", stored.sequence, stored.offset, etag=stored.etag)
            await env.store.update_checkpoint(sdk, rewind=True)
            if recreated:
                await recreate(env, 0)
                await env.send("a longer event than before", "b", "c", "d")
            else:
                await env.send("d")
            host = Host(env)
            async with host.engine:
                await until(lambda: 3 in host.record)
            return host.record

    assert run(scenario(recreated=False)) == [3]
    assert run(scenario(recreated=True)) == [(3, None), 0, 1, 2, 3]


def test_a_re_created_hub_stops_the_partition_with_fail() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await recreate(env, 5)
            host = Host(env, replace(OPTIONS, on_expired="fail"))
            async with host.engine:
                await until(lambda: host.losses)
                await asyncio.sleep(100)
                assert host.record == [(3, None)]
                host.engine.resume()
                await env.until_checkpoint(4)
            assert host.record == [(3, None), *range(5)]

    run(scenario())


# -- every API ------------------------------------------------------------------------------------


def test_every_api_has_the_option() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env)
            reported: list[EventsExpired] = []

            async def stop(error: EventsExpired) -> str:
                reported.append(error)
                return "fail"

            async def ignore(*args: object) -> None: ...

            host = EventProcessorHost("b", env.connection, store=env.store, clock=env.clock)
            await host.start(ignore, options=EventProcessorOptions(on_expired=stop))
            await until(lambda: len(reported) == 1)
            await host.stop()
            fixed = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock, on_expired=stop
            )
            fixed.on_batch(ignore)
            async with fixed:
                await until(lambda: len(reported) == 2)

    run(scenario())


@pytest.mark.parametrize(
    "options", [ProcessorOptions, EventProcessorOptions, FixedPartitionOptions]
)
def test_an_unknown_policy_is_refused(options: Any) -> None:
    with pytest.raises(OptionError, match="on_expired must be 'report', 'fail' or a function"):
        options(on_expired="ignore")


def test_a_result_that_is_not_a_policy_is_reported() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            await handle(env, 3)
            await expire(env)
            host = Host(env, replace(OPTIONS, on_expired=lambda error: "later"))
            async with host.engine:
                await until(lambda: host.errors)
            (error,) = host.errors
            assert isinstance(error, EventsExpired), (
                "the loss itself is reported, and the partition stops"
            )
            assert "on_expired must return None, 'report' or 'fail'" in error.__notes__[0]

    run(scenario())


def test_a_re_created_hub_is_read_from_its_beginning_by_a_host_that_starts_at_the_end() -> None:
    async def scenario() -> None:
        async with make_env() as env:
            host = Host(env, ProcessorOptions(start=LATEST))
            async with host.engine:
                await until(lambda: host.engine.owned)
                await asyncio.sleep(5)
                await env.send("a", "b", "c")
                await until(lambda: 2 in host.record)
                await recreate(env, 50)
                await until(lambda: host.record[-1] == 49)
            assert host.record == [0, 1, 2, (3, None), *range(50)]

    run(scenario())
