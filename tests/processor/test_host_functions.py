"""EventProcessorHost with two functions in place of a class: one event per call."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pumphouse.events import Event
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import CheckpointPolicy, EventProcessorOptions, PoisonPolicy
from tests.processor.hub_and_store import HubAndStore, until
from tests.processor.virtual_time import run

QUICK = PoisonPolicy(retries=1, first_s=0.1, then="skip")


def make_host(env: HubAndStore) -> EventProcessorHost:
    return EventProcessorHost("host-a", env.connection, store=env.store, clock=env.clock)


def test_two_functions_replace_an_event_processor() -> None:
    async def scenario() -> None:
        received: list[bytes] = []
        errors: list[Exception] = []
        failures = 0

        async def on_message(context: PartitionContext, event: Event) -> None:
            nonlocal failures
            if event.body == b"3" and failures == 0:
                failures += 1
                raise ValueError("once")
            received.append(event.body)
            if event.body == b"5":
                await context.checkpoint()  # up to the event in hand, not to the end of its batch

        async with HubAndStore(1) as env:
            await env.send(*map(str, range(8)))
            host = make_host(env)
            await host.start(on_message, errors.append, EventProcessorOptions(poison=QUICK))
            await until(lambda: len(received) >= 8)
            await host.stop()
            assert received == [b"%d" % number for number in range(8)]  # each exactly once
            assert [str(error) for error in errors] == ["once"]
            mark = await env.checkpoint()
            assert mark is not None
            assert mark.sequence == 5

    run(scenario())


@pytest.mark.parametrize(("takes_s", "calls"), [(35, 2), (1, 4)])
def test_a_function_gets_no_event_after_the_lease_expired(takes_s: float, calls: int) -> None:
    """The lease is checked before each event."""

    async def scenario() -> None:
        called: list[bytes] = []
        async with HubAndStore(1) as env:
            store = FlakyStore(env.store, clock=env.clock)

            async def on_message(context: PartitionContext, event: Event) -> None:
                called.append(event.body)
                if event.body == b"2":
                    store.plan = RandomFaults(Random(1), before=1.0)  # no renewal arrives any more
                    await asyncio.sleep(takes_s)

            await env.send("1", "2", "3", "4")
            host = EventProcessorHost("a", env.connection, store=store, clock=env.clock)
            await host.start(on_message)
            await until(lambda: len(called) == 2)
            await asyncio.sleep(60)
            assert called == [b"1", b"2", b"3", b"4"][:calls]
            store.plan = NO_FAULTS
            await host.stop()

    run(scenario())


def test_events_that_functions_handled_are_not_repeated() -> None:
    """I6: the host is stopped after some events of a batch."""

    async def scenario() -> None:
        called: list[bytes] = []

        async def on_message(context: PartitionContext, event: Event) -> None:
            if event.body == b"3" and b"again" not in called:
                raise ValueError("not now")
            called.append(event.body)

        async with HubAndStore(1) as env:
            await env.send("1", "2", "3", "4")
            slow = PoisonPolicy(retries=5, first_s=20.0)
            often = CheckpointPolicy(every_s=600.0)
            for name in ("a", "b"):
                host = EventProcessorHost(name, env.connection, store=env.store, clock=env.clock)
                await host.start(
                    on_message, None, EventProcessorOptions(poison=slow, checkpoints=often)
                )
                await until(lambda: b"2" in called and (b"again" not in called or b"4" in called))
                await host.stop()
                called.append(b"again")
        assert called == [b"1", b"2", b"again", b"3", b"4", b"again"]

    run(scenario())


def test_host_names_are_unique() -> None:
    names = {EventProcessorHost.create_host_name("vm") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("vm-") for name in names)
