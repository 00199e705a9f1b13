"""Fleets with a slow store, with stale listings, and with calls that hang."""

from __future__ import annotations

import asyncio
from random import Random

from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.options import ProcessorOptions
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import LoopClock, run


def test_stale_listings_delay_the_fleet_and_lose_nothing() -> None:
    """Every second listing is stale: no lease is lost, no event is handled twice."""

    async def scenario() -> None:
        async with Fleet(6) as fleet:
            stores = [FlakyStore(fleet.store, clock=fleet.clock) for _ in range(3)]
            for name, store in zip("abc", stores, strict=True):
                store.plan = RandomFaults(Random(name), stale=0.5)
                await fleet.add(name, store=store)
            await fleet.until_even()
            for _ in range(60):
                await fleet.send(1)
                await asyncio.sleep(5)
            await fleet.until_handled()
            fleet.check_clean()
            assert [change for _, change, _ in fleet.changes].count("lost") == 0
            assert all(store.injected["stale"] > 5 for store in stores)

    run(scenario())


def test_a_slow_store_delays_the_fleet_and_loses_no_lease() -> None:
    """Each call takes up to nine tenths of its deadline, while hosts join and leave."""

    async def scenario() -> None:
        # A request is noticed only after several calls, so it gets more time.
        async with Fleet(6, options=ProcessorOptions(hand_off_s=30)) as fleet:
            slow_s = 0.9 * fleet.options.store_s
            store = FlakyStore(
                fleet.store, RandomFaults(Random(3), delay_s_max=slow_s), fleet.clock
            )
            await fleet.add("a", store=store)
            await fleet.until_even()
            await fleet.add("b", store=store)
            for _ in range(60):
                await fleet.send(1)
                await asyncio.sleep(5)
            await fleet.until_even()
            await fleet.leave("a")
            await fleet.send(1)
            await fleet.until_handled()
            fleet.check_clean()
            assert [change for _, change, _ in fleet.changes].count("lost") == 0

    run(scenario())


def test_store_calls_that_hang_time_out_and_the_fleet_recovers() -> None:
    """Half of the calls take longer than their deadline: leases may be lost, events are not."""

    async def scenario() -> None:
        hangs_s = 2.0 * ProcessorOptions().store_s
        # A renewal that arrives late postpones the deadline of a waiting successor by its delay.
        async with Fleet(4, store=MemoryStore(LoopClock(), put_off_s_max=hangs_s)) as fleet:
            store = FlakyStore(fleet.store, clock=fleet.clock)
            for name in "ab":
                await fleet.add(name, store=store)
            await fleet.until_even()
            store.plan = RandomFaults(Random(5), delay_s_max=hangs_s)
            for _ in range(60):
                await fleet.send(1)
                await asyncio.sleep(5)
            assert any("did not respond" in str(failed) for _, _, failed in fleet.errors)
            store.plan = NO_FAULTS
            await fleet.until_handled()
            await fleet.until_even()
            fleet.check_order()

    run(scenario())
