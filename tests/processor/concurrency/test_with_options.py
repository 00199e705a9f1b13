"""Several handlers of a partition, with time-outs, pauses, prefetch and checkpoints."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pumphouse.events import Event
from pumphouse.processor.handling.key_order import Concurrency
from pumphouse.processor.options import (
    CheckpointPolicy,
    PoisonPolicy,
)
from pumphouse.processor.partition import PartitionClient
from tests.processor.concurrency.env import (
    OPTIONS,
    Env,
    Handler,
    N,
    stuck_at,
)
from tests.processor.support.hub_and_store import until
from tests.processor.support.virtual_time import run


def test_each_handler_that_hangs_is_reported_and_others_continue() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = [handler.hold("a"), handler.hold("b")]
            await env.send_keys("abccc")
            async with env.host(handler):
                await until(lambda: len(env.errors) == 2)
                assert len(handler.handled) == 3
                await asyncio.sleep(300)
                assert stuck_at(env.errors) == [0, 1]
                for each in held:
                    each.set()
                await env.until_checkpoint(4)

    run(scenario())


def test_only_the_handler_that_hangs_is_cancelled() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(
            OPTIONS,
            on_handler_timeout="cancel",
            poison=PoisonPolicy(retries=1, then="skip"),
            batch_events_max=10,
        )
        async with Env() as env:
            handler.hold("a")
            await env.send_keys("ab" + "bbbb" * 30)
            async with env.host(handler, options):
                await env.until_checkpoint(121)
        assert stuck_at(env.errors) == [0, 0]
        assert len(handler.handled) == 121

    run(scenario())


def test_a_pause_completes_what_has_started_and_a_resume_continues() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1)
        async with Env() as env:
            await env.send_keys("aaab" + "abcd" * 5)
            async with env.host(handler, options) as host:
                await until(lambda: ("b", 3) in handler.handled)
                host.processor.pause()
                await asyncio.sleep(60)
                paused = len(handler.handled)
                assert paused < 24
                await env.until_checkpoint(paused - 1)
                host.processor.resume()
                await env.until_checkpoint(23)

    run(scenario())


def test_no_more_events_are_read_ahead_than_allowed() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(
            OPTIONS, concurrency=Concurrency(N, ahead_events_max=10), batch_events_max=5
        )
        async with Env() as env:
            held = handler.hold("a")
            await env.send_keys("a" + "bcde" * 20)
            async with env.host(handler, options) as host:
                await asyncio.sleep(60)
                assert host.client.order is not None
                assert 10 <= host.client.order.ahead < 15
                held.set()
                await env.until_checkpoint(80)

    run(scenario())


def test_a_checkpoint_is_written_in_time_while_the_reader_waits_for_events() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, checkpoints=CheckpointPolicy(every_s=5.0))
        async with Env() as env, env.host(handler, options):
            await until(lambda: env.store is not None)
            await asyncio.sleep(100)
            await env.send_keys("abc")
            sent_s = env.clock.monotonic()
            await env.until_checkpoint(2)
            assert env.clock.monotonic() - sent_s < 8

    run(scenario())


def test_a_checkpoint_never_passes_an_event_of_another_handler() -> None:
    async def scenario() -> None:
        handler = Handler()

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            await handler(partition, events)
            await partition.checkpoint(events[-1])

        options = replace(OPTIONS, checkpoints=CheckpointPolicy())
        async with Env() as env:
            held = handler.hold("b")
            await env.send_keys("abcd")
            async with env.host(handle, options):
                await until(lambda: len(handler.handled) == 3)
                await env.until_checkpoint(0)
                await asyncio.sleep(60)
                await env.until_checkpoint(0)
                held.set()
                await env.until_checkpoint(3)

    run(scenario())


@pytest.mark.parametrize("with_event", [False, True], ids=["batch", "event"])
def test_a_checkpoint_is_written_once_the_events_before_it_are_handled(with_event: bool) -> None:
    """Only the handlers of `b` and `d` request one, while the one of `a` still runs."""

    async def scenario() -> None:
        handler = Handler()

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            await handler(partition, events)
            if events[0].partition_key in ("b", "d"):
                await (partition.checkpoint(events[-1]) if with_event else partition.checkpoint())

        options = replace(OPTIONS, checkpoints=CheckpointPolicy())
        async with Env() as env:
            held, last = handler.hold("a"), handler.hold("d")
            await env.send_keys("abcd")
            async with env.host(handle, options):
                await until(lambda: len(handler.handled) == 2)
                assert (await env.checkpoint()).sequence is None  # type: ignore[union-attr]
                held.set()
                await env.until_checkpoint(2)
                last.set()
                await env.until_checkpoint(3)

    run(scenario())


def test_a_handler_may_stop_its_processor() -> None:
    async def scenario() -> None:
        handled: list[int] = []

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            await host.processor.stop()
            handled.append(len(events))

        async with Env() as env:
            await env.send_keys("a")
            host = env.host(handle)
            async with host:
                started_s = env.clock.monotonic()
                await until(lambda: handled)
            assert env.clock.monotonic() - started_s < 5

    run(scenario())


def test_an_empty_batch_tells_that_no_event_has_come() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = handler.hold("a")
            await env.send_keys("a")
            async with env.host(handler, replace(OPTIONS, max_wait_s=10.0)):
                await asyncio.sleep(50)
                assert handler.empty_calls == 0, "an event is being handled"
                held.set()
                await until(lambda: handler.empty_calls >= 2)

    run(scenario())
