"""PostgresStore while its server restarts, falls silent, refuses connections or is slow."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.model import Checkpoint, Granted, Unknown, claim, renew
from pumphouse.leases.stores.postgres.store import PostgresStore
from tests.leases.contract.calls import first, granted, rows, write
from tests.leases.contract.server_stores import check_a_restart_is_survived
from tests.leases.contract.stores import GROUP
from tests.postgres.proxy import PASSWORD, Proxy, proxy_to
from tests.postgres.server import PostgresServer

DEADLINE_S = 0.5
# A bound that a busy machine keeps, and that is far below every time-out of libpq and psycopg.
SOON_S = 8.0


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres.folder) as proxy:
        yield proxy


@pytest.fixture
async def store(postgres: PostgresServer, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    schema = f"t_{uuid.uuid4().hex}"
    database = postgres.shared().split("/")[3].split("?")[0]
    async with PostgresStore(proxy.url(database), schema=schema) as store:
        yield store


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that this test may stop."""
    with PostgresServer() as server:
        yield server


async def has_started(store: PostgresStore) -> None:
    """Until a call of the store uses a connection."""
    for _ in range(1000):
        await asyncio.sleep(0)
        if store._connections._in_use:
            return
    raise AssertionError("no call has started")


async def test_a_silent_server_is_unavailable_within_the_deadline(
    store: PostgresStore, proxy: Proxy
) -> None:
    row = await first(store)
    store._connections.deadline_s = DEADLINE_S
    proxy.is_silent = True
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not respond within") as raised:
        await store.list_ownership(GROUP)
    assert isinstance(await write(store, renew(row)), Unknown)
    assert isinstance(await store.update_checkpoint(Checkpoint(GROUP, "0", epoch=1)), Unknown)
    assert time.monotonic() - started < SOON_S
    assert PASSWORD not in f"{raised.value!r}"
    proxy.is_silent = False
    store._connections.deadline_s = 60
    assert (await rows(store))["0"].owner == "a"


async def test_a_cancelled_call_ends_at_once(store: PostgresStore, proxy: Proxy) -> None:
    """As when the processor's own deadline passes."""
    proxy.is_silent = True
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await store.list_ownership(GROUP)
    assert time.monotonic() - started < SOON_S


async def test_a_store_closes_while_its_server_is_silent(
    postgres: PostgresServer, proxy: Proxy
) -> None:
    database = postgres.shared().split("/")[3].split("?")[0]
    started = time.monotonic()
    async with PostgresStore(proxy.url(database), schema=f"t_{uuid.uuid4().hex}") as store:
        proxy.is_silent = True
        listing = asyncio.create_task(store.list_ownership(GROUP))
        async with asyncio.timeout(SOON_S):
            await has_started(store)
    with pytest.raises(StoreUnavailable):
        await listing
    assert time.monotonic() - started < SOON_S


async def test_broken_connections_are_replaced(store: PostgresStore, proxy: Proxy) -> None:
    await asyncio.gather(*(first(store, str(n)) for n in range(4)))
    proxy.cut()
    while True:  # until the store has noticed; a call before that is unavailable
        try:
            assert len(await rows(store)) == 4
            break
        except StoreUnavailable:
            continue
    await granted(store, renew((await rows(store))["0"]))


async def test_a_server_that_refuses_connections_is_unavailable(
    store: PostgresStore, proxy: Proxy
) -> None:
    proxy.is_refusing = True
    proxy.cut()
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as raised:
            await store.list_ownership(GROUP)
        assert PASSWORD not in str(raised.value)
    proxy.is_refusing = False
    assert await rows(store) == {}


async def test_a_server_that_does_not_run_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL database x at"):
        async with PostgresStore(f"postgres://u:{PASSWORD}@127.0.0.1:1/x"):
            pass


async def test_a_wrong_database_or_user_is_not_unavailable(postgres: PostgresServer) -> None:
    for url in (postgres.url("missing"), postgres.shared().replace("tests@", "nobody-here@")):
        with pytest.raises(StoreError, match="does not exist") as raised:
            async with PostgresStore(url):
                pass
        assert not isinstance(raised.value, StoreUnavailable)


async def test_a_locked_row_does_not_block_longer_than_the_deadline(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    row = await first(store)
    schema = store._statements.schema
    with psycopg.connect(postgres.shared()) as administrator:
        administrator.execute(f"SELECT * FROM {schema}.ownership FOR UPDATE")
        store._connections.deadline_s = DEADLINE_S
        outcome = await write(store, claim(row, "0", "b"))
        assert isinstance(outcome, Unknown)
    store._connections.deadline_s = 60
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) in {("a", 1), ("b", 2)}


async def test_a_restart_of_the_server_is_survived(own_server: PostgresServer) -> None:
    async with PostgresStore(own_server.url("postgres"), deadline_s=60) as store:
        await check_a_restart_is_survived(store, own_server.stop, own_server.restart)


async def test_writers_of_the_same_rows_do_not_deadlock(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    partitions = [str(number) for number in range(40)]
    async with PostgresStore(
        postgres.shared(), schema=store._statements.schema, deadline_s=60
    ) as other:
        for round_number in range(5):
            listed = await rows(store)
            forwards = [claim(listed.get(p), p, f"a{round_number}") for p in partitions]
            backwards = [claim(listed.get(p), p, f"b{round_number}") for p in partitions[::-1]]
            outcomes = await asyncio.gather(
                store.claim_ownership(GROUP, forwards), other.claim_ownership(GROUP, backwards)
            )
            winners = [o.row.partition for each in outcomes for o in each if isinstance(o, Granted)]
            assert sorted(winners) == sorted(partitions)
