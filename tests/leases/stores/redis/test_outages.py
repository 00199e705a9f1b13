"""RedisStore while its server restarts, is silent, refuses connections, is full or fails over."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import Checkpoint, Granted, Unknown, claim, nominate, renew
from pumphouse.leases.store import Change
from pumphouse.leases.stores.redis import changes as changes_module
from pumphouse.leases.stores.redis.store import RedisStore
from tests.leases.contract.calls import checkpoints, first, granted, refused, rows, write
from tests.leases.contract.server_stores import check_a_restart_is_survived
from tests.leases.contract.stores import GROUP
from tests.postgres.proxy import PASSWORD, Proxy, proxy_to_socket
from tests.redis.server import RedisServer

DEADLINE_S = 0.5
# A bound that a busy machine keeps, and that is far below every time-out of TCP.
SOON_S = 8.0
LIMIT_S = 60.0


@pytest.fixture
async def proxy(redis: RedisServer) -> AsyncIterator[Proxy]:
    async with proxy_to_socket(redis.socket) as proxy:
        yield proxy


@pytest.fixture
async def store(redis: RedisServer, proxy: Proxy) -> AsyncIterator[RedisStore]:
    async with RedisStore(redis.url(proxy.port), prefix=f"t_{uuid.uuid4().hex}") as store:
        yield store


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that this test may stop."""
    with RedisServer() as server:
        yield server


async def until_available(store: RedisStore) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await store.list_ownership(GROUP)
                return
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def test_a_silent_server_is_unavailable_within_the_deadline(
    store: RedisStore, proxy: Proxy
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


async def test_a_write_without_a_response_is_not_repeated(store: RedisStore, proxy: Proxy) -> None:
    """A second attempt would find the etag of the first one and look refused."""
    row = await first(store)
    proxy.silent_after = b"EVALSHA"
    store._connections.deadline_s = DEADLINE_S
    assert isinstance(await write(store, renew(row, 7.0)), Unknown)
    proxy.recover()
    store._connections.deadline_s = 60
    (listed,) = (await rows(store)).values()
    assert (listed.rate, listed.epoch) == (7.0, 1)


async def test_a_response_of_a_cancelled_call_is_not_read_by_the_next(
    store: RedisStore, proxy: Proxy
) -> None:
    await first(store)
    proxy.is_silent = True
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await store.list_checkpoints(GROUP)
    assert time.monotonic() - started < SOON_S
    proxy.is_silent = False
    assert (await rows(store))["0"].owner == "a"


async def test_a_store_closes_while_its_server_is_silent(redis: RedisServer, proxy: Proxy) -> None:
    started = time.monotonic()
    async with RedisStore(redis.url(proxy.port)) as store:
        proxy.is_silent = True
        listing = asyncio.create_task(store.list_ownership(GROUP))
        async with asyncio.timeout(SOON_S):
            while not store._connections._in_use:  # noqa: ASYNC110 (a call, not an event)
                await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await listing
    assert time.monotonic() - started < SOON_S


async def test_broken_connections_are_replaced(store: RedisStore, proxy: Proxy) -> None:
    await asyncio.gather(*(first(store, str(n)) for n in range(4)))
    proxy.cut()
    await until_available(store)
    assert len(await rows(store)) == 4
    await granted(store, renew((await rows(store))["0"]))


async def test_a_server_that_refuses_connections_is_unavailable(
    store: RedisStore, proxy: Proxy
) -> None:
    proxy.is_refusing = True
    proxy.cut()
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as raised:
            await store.list_ownership(GROUP)
        assert PASSWORD not in str(raised.value)
    proxy.is_refusing = False
    await until_available(store)


async def test_calls_beyond_the_connections_wait_their_turn(store: RedisStore) -> None:
    outcomes = await asyncio.gather(*(first(store, str(number)) for number in range(40)))
    assert len(outcomes) == 40
    assert len(store._connections._idle) <= 4


async def test_a_restart_of_the_server_is_survived(own_server: RedisServer) -> None:
    async with RedisStore(own_server.url(), deadline_s=60) as store:
        await check_a_restart_is_survived(store, own_server.stop, own_server.start)


async def test_silent_notifications_end_and_quiet_ones_do_not(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "CHECK_S", 0.05)
    row = await first(store)
    async with aclosing(store.changes(GROUP)) as changes:
        assert await anext(changes) == Change()
        pending = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.3)  # several checks, each with a response
        assert not pending.done()
        await granted(store, nominate(row, "b", 30))
        assert (await pending).partition == "0"
        store._connections.deadline_s = DEADLINE_S
        proxy.is_silent = True
        with pytest.raises(StoreUnavailable, match="did not respond"):
            await anext(changes)


async def test_a_full_server_is_unavailable_and_forgets_nothing(own_server: RedisServer) -> None:
    async with RedisStore(own_server.url()) as store:
        row = await first(store)
        own_server.administer("CONFIG", "SET", "maxmemory", 1)
        assert isinstance(await write(store, renew(row)), Unknown)
        assert (await rows(store))["0"].etag == row.etag
        own_server.administer("CONFIG", "SET", "maxmemory", 0)
        await granted(store, renew(row))


# -- failover -------------------------------------------------------------------------------------


async def test_after_a_failover_one_writer_of_a_row_remains(own_server: RedisServer) -> None:
    """The new primary has lost a claim: its owner is refused, and the next one continues."""
    with RedisServer("--replicaof", "127.0.0.1", str(own_server.port),
                     "--masteruser", "tests", "--masterauth", PASSWORD) as replica:  # fmt: skip
        async with (
            proxy_to_socket(own_server.socket) as proxy,
            RedisStore(own_server.url(proxy.port)) as store,
        ):
            row = await first(store, host="a")
            await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
            assert own_server.administer("WAIT", 1, int(LIMIT_S * 1000)) == 1
            replica.administer("REPLICAOF", "NO", "ONE")
            lost = await granted(store, claim(row, "0", "b"))
            # The address now leads to the former replica; the old primary is a replica.
            own_server.administer("REPLICAOF", "127.0.0.1", replica.port)
            assert isinstance(await write(store, renew(lost)), Unknown)
            proxy._socket = replica.socket
            proxy.cut()
            await until_available(store)
            await refused(store, renew(lost))
            taken = await granted(store, claim((await rows(store))["0"], "0", "c"))
            assert taken.epoch == lost.epoch
            assert (await checkpoints(store))["0"].sequence == 5


async def test_a_replica_is_unavailable_for_writes(own_server: RedisServer) -> None:
    async with RedisStore(own_server.url()) as store:
        row = await first(store)
        own_server.administer("REPLICAOF", "127.0.0.1", 1)
        outcome = await write(store, renew(row))
        assert not isinstance(outcome, Granted)
        own_server.administer("REPLICAOF", "NO", "ONE")
        await granted(store, renew(row))
