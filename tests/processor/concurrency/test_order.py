"""Handlers of one partition run at once, and each key in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from pumphouse.events import Event
from pumphouse.processor.handling.key_order import Concurrency
from pumphouse.processor.options import (
    PoisonPolicy,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.concurrency.env import (
    OPTIONS,
    Env,
    Handler,
    N,
)
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run


def test_keys_are_handled_at_once_and_each_in_order() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            await env.send_keys("abcdeabcde" * 4)
            async with env.host(handler):
                await until(lambda: len(handler.handled) == 40)
                await env.until_checkpoint(39)
        assert handler.most == N
        handler.check_order()
        assert sorted(handler.sequences()) == list(range(40))

    run(scenario())


def test_events_without_a_key_are_unordered_or_ordered() -> None:
    async def most(keyless: str) -> int:
        handler = Handler()
        options = replace(OPTIONS, concurrency=Concurrency(N, keyless), batch_events_max=1)
        async with Env() as env:
            await env.send_keys("-" * 12)
            async with env.host(handler, options):
                await env.until_checkpoint(11)
        if keyless == "ordered":
            assert handler.sequences() == list(range(12))
        return handler.most

    assert run(most("unordered")) == N
    assert run(most("ordered")) == 1


def test_the_checkpoint_stays_below_the_first_unhandled_event() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = handler.hold("b")
            await env.send_keys("abcacd")
            async with env.host(handler) as host:
                await until(lambda: len(handler.handled) == 5)
                await env.until_checkpoint(0)
                assert host.client.order is not None
                assert host.client.order.handled_ahead == 4
                held.set()
                await env.until_checkpoint(5)

    run(scenario())


def test_after_a_crash_only_events_above_the_checkpoint_are_repeated() -> None:
    async def scenario() -> None:
        handler = Handler()
        async with Env() as env:
            held = handler.hold("b")
            await env.send_keys("aabca")
            async with env.host(handler) as host:
                await until(lambda: len(handler.handled) == 4)
                await env.until_checkpoint(1)
                host.processor.engine.abandon()
            held.set()
            async with env.host(handler, name="b"):
                await env.until_checkpoint(4)
        assert sorted(handler.sequences()) == [0, 1, 2, 3, 3, 4, 4]

    run(scenario())


def test_a_stop_handles_what_is_below_the_last_started_event() -> None:
    """Key a has a queue of events; those between handled events of other keys are not left out."""

    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1)
        async with Env() as env:
            await env.send_keys("aaaabcdeaaaa")
            async with env.host(handler, options):
                await until(lambda: ("b", 4) in handler.handled)
            handled = handler.sequences()
            assert handled[-1] < 11, "what had not started is not handled"
            assert sorted(handled) == list(range(len(handled)))
            assert await env.checkpoint() is not None
            await env.until_checkpoint(len(handled) - 1)
            async with env.host(handler, options, name="b"):
                await env.until_checkpoint(11)
        assert sorted(handler.sequences()) == list(range(12))
        handler.check_order()

    run(scenario())


def test_a_stop_does_not_wait_for_a_long_queue_of_one_key() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1, stop_s=20.0)
        async with Env() as env:
            await env.send_keys("a" * 40 + "b")
            async with env.host(handler, options):
                await until(lambda: ("b", 40) in handler.handled)
                stopped_s = env.clock.monotonic()
            assert env.clock.monotonic() - stopped_s < 15
            async with env.host(handler, options, name="b"):
                await env.until_checkpoint(40)
        repeated = [n for n, times in Counter(handler.sequences()).items() if times > 1]
        assert repeated == [40]

    run(scenario())


def test_a_stop_leaves_out_what_follows_a_failing_event_of_its_key() -> None:
    """The next owner handles the failing event first, and then those behind it."""

    async def scenario() -> None:
        handler, second = Handler(), Handler()
        policy = PoisonPolicy(retries=5, first_s=25.0)
        options = replace(OPTIONS, poison=policy, batch_events_max=2)

        async def fail_at_first(partition: PartitionClient, events: list[Event]) -> None:
            if events and events[0].sequence == 0:
                raise ValueError("not yet")
            await handler(partition, events)

        async with Env() as env:
            await env.send_keys("xbxbxbxbcdcdcd")
            async with env.host(fail_at_first, options):
                await until(lambda: len(handler.handled) > 7)
                await asyncio.sleep(5)  # the key of the failing event waits for its retry
            assert "x" not in [key for key, _ in handler.handled]
            async with env.host(second, options, name="b"):
                await env.until_checkpoint(13)
        second.check_order()
        assert [sequence for key, sequence in second.handled if key == "x"] == [0, 2, 4, 6]

    run(scenario())


def test_a_hand_over_repeats_nothing() -> None:
    async def scenario() -> None:
        first, second = Handler(), Handler()
        async with HubAndStore(2) as env:
            sender = await env.client.sender()
            for number in range(60):
                await sender.send([Event(b"", {}, "abcdefgh"[number % 8])])
            processors = [
                Processor(
                    env.connection, store=env.store, host=name, options=OPTIONS, clock=env.clock
                )
                for name in "ab"
            ]
            async with processors[0], processors[1]:
                runs = [asyncio.create_task(processors[0].run(handler=first))]
                await until(lambda: len(first.handled) > 5)
                runs.append(asyncio.create_task(processors[1].run(handler=second)))
                await until(lambda: len(first.handled) + len(second.handled) == 60)
                for processor in processors:
                    await processor.stop()
                await asyncio.gather(*runs)
        assert second.handled
        keys = Counter(key for key, _ in first.handled + second.handled)
        assert keys.total() == 60
        first.check_order()
        second.check_order()

    run(scenario())
