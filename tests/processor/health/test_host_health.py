"""Whether a host is live and ready: after its first cycle, and while store and hub respond."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pumphouse.client.base import HubClient, HubProperties
from pumphouse.errors import ConnectionFailed
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.health.host_health import HostHealth
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import LoopClock, run


@contextmanager
def hub_away(client: HubClient) -> Iterator[None]:
    async def properties() -> HubProperties:
        raise ConnectionFailed("away")

    original = client.properties
    client.properties = properties  # type: ignore[method-assign]
    try:
        yield
    finally:
        client.properties = original  # type: ignore[method-assign]


def test_a_host_is_ready_from_its_first_cycle_until_it_stops() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            host = await fleet.add("a")
            health = HostHealth(host)
            assert health.not_ready() == "the host has not completed a cycle yet"
            assert health.not_live() is None
            await fleet.until_even()
            assert health.not_ready() is None
            stopping = asyncio.ensure_future(host.stop())
            await asyncio.sleep(0)
            assert health.not_ready() == "the host stops"
            await stopping
            assert health.not_ready() == "the host stops"
            assert health.not_live() is None

    run(scenario())


@pytest.mark.parametrize("what", ["store", "hub"])
def test_a_host_is_not_ready_while_store_or_hub_are_silent(what: str) -> None:
    async def scenario() -> None:
        store = FlakyStore(MemoryStore(LoopClock()), clock=LoopClock())
        async with Fleet(2, store=store) as fleet:
            host = await fleet.add("a")
            health = HostHealth(host)
            await fleet.until_even()
            if what == "store":
                store.plan = RandomFaults(host.rng, before=1.0, failed=1.0)
                await fleet.until(health.not_ready, "the store to be missed")
                store.plan = NO_FAULTS
            else:
                with hub_away(host.client):
                    await fleet.until(health.not_ready, "the hub to be missed")
            assert (health.not_ready() or "").startswith(f"the {what} has not responded for 4")
            assert health.not_live() is None
            await fleet.until(lambda: health.not_ready() is None, "the host to be ready")

    run(scenario())


def test_a_host_whose_watch_does_not_look_is_not_live() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            host: Engine = await fleet.add("a")
            health = HostHealth(host)
            await fleet.until_even()
            host.watch.looked_s = host.clock.monotonic() - 100.0
            assert health.not_live() == "the watch of the leases has not looked for 100 s"

    run(scenario())
