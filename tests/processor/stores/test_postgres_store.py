"""Processors with leases in PostgreSQL: hand-overs do not wait for an interval."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from pumphouse.leases.stores.postgres.store import PostgresStore
from pumphouse.processor.health.row_changes import EVENT, retry_s
from pumphouse.processor.options import ProcessorOptions
from tests.postgres.proxy import Proxy, proxy_to
from tests.postgres.server import PostgresServer
from tests.processor.stores.notified_moves import check_moves_do_not_wait_for_an_interval
from tests.processor.support.fleet import Fleet


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres.folder) as proxy:
        yield proxy


@pytest.fixture
def store(postgres: PostgresServer, proxy: Proxy) -> PostgresStore:
    database = postgres.shared().split("/")[3].split("?")[0]
    return PostgresStore(proxy.url(database), schema=f"t_{uuid.uuid4().hex}")


async def test_partitions_move_without_waiting_for_an_interval(store: PostgresStore) -> None:
    await check_moves_do_not_wait_for_an_interval(store)


async def test_lost_notifications_are_reported_and_polling_continues(
    store: PostgresStore, proxy: Proxy
) -> None:
    options = ProcessorOptions(interval_s=0.2, renew_s=1, lease_s=20)
    async with Fleet(4, store=store, options=options) as fleet:
        anna = await fleet.add("anna")
        await fleet.send(2)
        await fleet.until_handled()
        proxy.cut()
        await fleet.until(lambda: anna.reporter.counts[EVENT], "the lost notifications")
        await fleet.add("bert")
        await fleet.until_even()
        await fleet.send(2)
        await fleet.until_handled()
        await fleet.until(lambda: (EVENT, None) not in anna.reporter.failures, "the recovery")


def test_failed_notifications_are_requested_at_most_once_per_interval() -> None:
    assert [retry_s(failures, 10.0) for failures in (0, 1, 2, 5, 10_000)] == [0.5, 1, 2, 10, 10]
