"""EventProcessorHost with two functions in place of a class: one event per call."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pumphouse.errors import StoreError
from pumphouse.events import Event
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    ExceptionReceived,
    PartitionManagerOptions,
    PoisonPolicy,
)
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

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
                await context.checkpoint()  # up to the current event, not to the end of its batch

        async with HubAndStore(1) as env:
            await env.send(*map(str, range(8)))
            host = make_host(env)
            options = EventProcessorOptions(poison=QUICK, checkpoint_on_stop=False)
            await host.start(on_message, errors.append, options)
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


def test_errors_of_the_host_itself_reach_on_error() -> None:
    async def scenario() -> None:
        errors: list[Exception] = []
        received: list[ExceptionReceived] = []
        async with HubAndStore(1) as env:
            store = FlakyStore(env.store, clock=env.clock)
            host = EventProcessorHost(
                "host-a", env.connection, store=store, clock=env.clock, on_error=errors.append
            )
            options = EventProcessorOptions(on_exception=received.append)
            await host.start(lambda context, event: None, options=options)
            await until(lambda: host.owned)
            store.plan = RandomFaults(Random(1), before=1.0)
            await until(lambda: errors)
            store.plan = NO_FAULTS
            await host.stop()
            assert isinstance(errors[0], StoreError)
            assert (received[0].host_name, received[0].partition) == ("host-a", None)

    run(scenario())


def test_the_partition_manager_options_are_a_property() -> None:
    """They may be replaced until the host registers."""

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            host = make_host(env)
            assert host.partition_manager_options == PartitionManagerOptions()
            host.partition_manager_options = PartitionManagerOptions(45.0, 15.0)
            await host.start(lambda context, event: None)
            assert host.engine is not None
            assert host.engine.options.lease_s == 45
            assert host.engine.options.renew_s == 15
            await host.stop()

    run(scenario())


def test_host_names_are_unique() -> None:
    names = {EventProcessorHost.create_host_name("vm") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("vm-") for name in names)


@pytest.mark.parametrize("retried", [False, True])
def test_a_stop_waits_for_the_current_event_and_not_for_its_batch(retried: bool) -> None:
    async def scenario() -> None:
        called: list[bytes] = []

        async def on_message(context: PartitionContext, event: Event) -> None:
            called.append(event.body)
            if retried and event.body == b"0":
                raise ValueError("poison")
            await asyncio.sleep(10)

        async with HubAndStore(1) as env:
            await env.send(*map(str, range(8)))
            host = make_host(env)
            await host.start(on_message, options=EventProcessorOptions(poison=QUICK))
            await until(lambda: b"1" in called)
            started_s = env.clock.monotonic()
            await host.stop()
            assert env.clock.monotonic() - started_s < 11
            assert called[-1] == b"1"
            mark = await env.checkpoint()
            assert mark is not None
            assert mark.sequence == 1

    run(scenario())
