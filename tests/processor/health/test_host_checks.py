"""The health checks that an application adds for a host of any API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pumphouse.errors import OptionError, StoreUnavailable
from pumphouse.events import Event
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.health.host_checks import health_checks
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.telemetry.health import CHECKS, LIVE, READY
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

APIS = ("pull", "push", "fixed")


class Store(MemoryStore):
    """A store that can be away."""

    is_away = False

    async def list_ownership(self, *args: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().list_ownership(*args)


async def on_message(context: PartitionContext, event: Event) -> None: ...


async def on_batch(partition: PartitionClient, batch: list[Event]) -> None: ...


async def serve(partition: PartitionClient) -> None:
    async for _ in partition.batches():
        pass


def made(api: str, env: HubAndStore) -> Any:
    if api == "push":
        return EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
    if api == "pull":
        return Processor(env.connection, store=env.store, host="a", clock=env.clock)
    fixed = FixedPartitionProcessor(
        env.connection, partitions=2, store=env.store, host="a", clock=env.clock
    )
    fixed.on_batch(on_batch)
    return fixed


@asynccontextmanager
async def started(host: Any) -> AsyncIterator[None]:
    if isinstance(host, EventProcessorHost):
        await host.start(on_message)
        yield
        await host.unregister()
        return
    async with host:
        running = asyncio.create_task(host.run(serve)) if isinstance(host, Processor) else None
        yield
    if running is not None:
        await running


def failures(kind: str = READY) -> str:
    return " ".join(CHECKS.failures(kind).values())


@pytest.mark.parametrize("api", APIS)
def test_a_host_of_every_api_is_ready_while_it_works(api: str) -> None:
    async def scenario() -> None:
        async with HubAndStore(2) as env:
            env.store = Store(env.clock)
            host = made(api, env)
            async with health_checks(host):
                assert "host" in failures(), "it has not started"
                async with started(host):
                    await until(lambda: not failures())
                    env.store.is_away = True
                    await until(lambda: "the store has not responded for" in failures())
                    assert failures(LIVE) == ""
                    env.store.is_away = False
                    await until(lambda: not failures())
                assert "host" in failures(), "it has stopped"
            assert failures() == ""

    run(scenario())


def test_a_host_is_not_live_while_its_watch_is_late_or_the_loop_is_blocked() -> None:
    now_s = [100.0]

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            host = made("pull", env)
            async with health_checks(host, "orders", lambda: now_s[0]), started(host):
                await until(lambda: not failures())
                host.engine.watch.looked_s -= 1000
                assert "orders: the watch of the leases" in shown(LIVE)
                host.engine.watch.looked_s += 1000
                assert shown(LIVE) == ""
                now_s[0] += 20
                assert "it has not run for 20 s" in shown(LIVE)
                await until(lambda: not shown(LIVE))
            assert shown(LIVE) == ""

    run(scenario())


def shown(kind: str) -> str:
    return "; ".join(f"{name}: {failure}" for name, failure in CHECKS.failures(kind).items())


def test_two_hosts_need_two_names() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            first, second = made("pull", env), made("push", env)
            async with health_checks(first):
                with pytest.raises(OptionError, match="there is a check 'host' already"):
                    async with health_checks(second):
                        pass
                assert "host" in CHECKS.failures(READY)

    run(scenario())
