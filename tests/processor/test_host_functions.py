"""The Event Processor Host with functions: one event at a time, in place of a class."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pumphouse.events import Event
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import CheckpointPolicy, EventProcessorOptions, PoisonPolicy
from tests.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from tests.processor.hub_and_store import Place, until
from tests.processor.virtual_time import run

QUICK = PoisonPolicy(retries=1, first_s=0.1, then="skip")


def make_host(place: Place) -> EventProcessorHost:
    return EventProcessorHost("host-a", place.connection, store=place.store, clock=place.clock)


def test_two_functions_replace_an_event_processor() -> None:
    async def scenario() -> None:
        seen: list[bytes] = []
        errors: list[Exception] = []
        failures = 0

        async def on_message(context: PartitionContext, event: Event) -> None:
            nonlocal failures
            if event.body == b"3" and failures == 0:
                failures += 1
                raise ValueError("once")
            seen.append(event.body)
            if event.body == b"5":
                await context.checkpoint()  # of the event in hand, not of its batch

        async with Place(1) as place:
            await place.send(*map(str, range(8)))
            host = make_host(place)
            await host.start(on_message, errors.append, EventProcessorOptions(poison=QUICK))
            await until(lambda: len(seen) >= 8)
            await host.stop()
            assert seen == [b"%d" % number for number in range(8)]  # none of them twice
            assert [str(error) for error in errors] == ["once"]
            mark = await place.checkpoint()
            assert mark is not None
            assert mark.sequence == 5

    run(scenario())


@pytest.mark.parametrize(("takes_s", "calls"), [(35, 2), (1, 4)])
def test_a_function_gets_no_event_after_the_lease_expired(takes_s: float, calls: int) -> None:
    """Each event is handed out by itself, so it is asked before each whether we still may."""

    async def scenario() -> None:
        called: list[bytes] = []
        async with Place(1) as place:
            store = FlakyStore(place.store, clock=place.clock)

            async def on_message(context: PartitionContext, event: Event) -> None:
                called.append(event.body)
                if event.body == b"2":
                    store.plan = RandomFaults(Random(1), before=1.0)  # no renewal arrives any more
                    await asyncio.sleep(takes_s)

            await place.send("1", "2", "3", "4")
            host = EventProcessorHost("a", place.connection, store=store, clock=place.clock)
            await host.start(on_message)
            await until(lambda: len(called) == 2)
            await asyncio.sleep(60)
            assert called == [b"1", b"2", b"3", b"4"][:calls]
            store.plan = NO_FAULTS
            await host.stop()

    run(scenario())


def test_events_that_functions_handled_are_not_repeated() -> None:
    """I6: they were called for some events of a batch when the host was stopped."""

    async def scenario() -> None:
        called: list[bytes] = []

        async def on_message(context: PartitionContext, event: Event) -> None:
            if event.body == b"3" and b"again" not in called:
                raise ValueError("not now")
            called.append(event.body)

        async with Place(1) as place:
            await place.send("1", "2", "3", "4")
            slow = PoisonPolicy(retries=5, first_s=20.0)
            often = CheckpointPolicy(every_s=600.0)
            for name in ("a", "b"):
                host = EventProcessorHost(
                    name, place.connection, store=place.store, clock=place.clock
                )
                await host.start(
                    on_message, None, EventProcessorOptions(poison=slow, checkpoints=often)
                )
                await until(lambda: b"2" in called and (b"again" not in called or b"4" in called))
                await host.stop()
                called.append(b"again")
        assert called == [b"1", b"2", b"again", b"3", b"4", b"again"]

    run(scenario())
