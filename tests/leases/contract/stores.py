"""The stores that the contract suite tests. **To add yours, add an entry to STORES below.**

A maker gets an empty directory and yields a `StoreBackend`: where rows are kept, and how a test
reaches them. Every test in contract/ runs against it.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from pumphouse.leases.flaky_store import FlakyStore, RandomFaults
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.stores.blob.store import BlobStore
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.leases.stores.postgres.store import PostgresStore
from pumphouse.leases.stores.redis.store import RedisStore
from pumphouse.leases.stores.sqlite.clock import MachineTime
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.azurite.proxy import proxy_to
from tests.azurite.server import KEY, Azurite
from tests.postgres.proxy import PASSWORD, proxy_to_socket
from tests.postgres.proxy import proxy_to as postgres_proxy
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer

GROUP = Group("house.servicebus.windows.net", "sensors", "$Default")

Open = Callable[[], AbstractAsyncContextManager[CheckpointStore]]


@dataclass(frozen=True, slots=True)
class StoreBackend:
    """Where rows are kept, empty at first."""

    # Another handle on the same rows, as of another host.
    open: Open
    # A handle without responses while it is open: reads must raise StoreUnavailable, writes
    # must return unknown, within their deadline. After it is closed the backend works as before.
    unresponsive: Open
    # The time of the backend, and a way to advance it.
    now: Callable[[], float]
    pass_time: Callable[[float], Awaitable[None]]
    # The time that may pass in one test, well above `resolution_s`. For a backend whose clock
    # cannot be advanced: a few seconds of real waiting.
    tick_s: float = 100.0
    # How exact ages and deadlines are: a second where the store's clock counts seconds.
    resolution_s: float = 0.001
    # Whether the store detects that a checkpoint goes back although its etag matches.
    sees_checkpoints: bool = True
    # Whether rows have ages. A blob lease only shows whether a row is held (0 s) or not (inf).
    ages: bool = True
    # Texts that must be in no error.
    secrets: tuple[str, ...] = ()

    @property
    def movable(self) -> bool:
        return self.tick_s >= 100


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("no store waits by this clock")

    async def pass_time(self, seconds: float) -> None:
        self.time += seconds


@asynccontextmanager
async def memory(directory: Path) -> AsyncIterator[StoreBackend]:
    clock = Clock()
    store = MemoryStore(clock)

    @asynccontextmanager
    async def open_store() -> AsyncIterator[CheckpointStore]:
        async with store:
            yield store

    @asynccontextmanager
    async def unresponsive() -> AsyncIterator[CheckpointStore]:
        async with FlakyStore(store, RandomFaults(Random(0), before=1, failed=1)) as flaky:
            yield flaky

    yield StoreBackend(open_store, unresponsive, clock.monotonic, clock.pass_time)


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncIterator[StoreBackend]:
    clock = Clock()
    path = directory / "deep" / "er" / "leases.db"

    def moment() -> MachineTime:
        return MachineTime("this run", clock.monotonic(), clock.now())

    @asynccontextmanager
    async def unresponsive() -> AsyncIterator[CheckpointStore]:
        """Its thread hangs, as with a hanging disk."""
        async with SqliteStore(path, deadline_s=60, clock=moment) as store:
            assert store._opened is not None
            thread = store._opened.thread
            store._deadline_s = 0.2
            mended = threading.Event()
            hanging = asyncio.create_task(thread.run(lambda until: mended.wait(), 3600))
            await asyncio.sleep(0)
            try:
                yield store
            finally:
                store._deadline_s = 60
                mended.set()
                await hanging

    yield StoreBackend(
        lambda: SqliteStore(path, deadline_s=60, clock=moment),
        unresponsive,
        clock.monotonic,
        clock.pass_time,
    )


# A clock that the test advances, in place of clock_timestamp().
TEST_CLOCK = """
CREATE SCHEMA {0};
CREATE TABLE {0}.test_clock (advance_s double precision NOT NULL);
INSERT INTO {0}.test_clock VALUES (0);
CREATE FUNCTION {0}.test_now() RETURNS timestamptz LANGUAGE sql AS
$$ SELECT clock_timestamp() + advance_s * interval '1 second' FROM {0}.test_clock $$
"""


@asynccontextmanager
async def postgres(directory: Path, postgres: PostgresServer) -> AsyncIterator[StoreBackend]:
    url, schema = postgres.shared(), f"t_{uuid.uuid4().hex}"
    options: dict[str, Any] = {"schema": schema, "clock": f"{schema}.test_now()"}
    advanced_s = 0.0
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(TEST_CLOCK.format(schema))

    async def pass_time(seconds: float) -> None:
        nonlocal advanced_s
        advanced_s += seconds
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as administrator:
            await administrator.execute(
                f"UPDATE {schema}.test_clock SET advance_s = %s", (advanced_s,)
            )

    async with postgres_proxy(postgres.folder) as proxy:
        through = proxy.url(url.split("/")[3].split("?")[0])

        @asynccontextmanager
        async def unresponsive() -> AsyncIterator[CheckpointStore]:
            """Every statement takes effect, and every response is lost."""
            async with PostgresStore(through, **options) as store:
                store._connections.deadline_s = 0.3
                proxy.is_silent = True
                try:
                    yield store
                finally:
                    proxy.is_silent = False

        yield StoreBackend(
            lambda: PostgresStore(url, deadline_s=60, **options),
            unresponsive,
            lambda: time.monotonic() + advanced_s,
            pass_time,
            resolution_s=0.1,
            secrets=(PASSWORD,),
        )


# A clock that the test advances: seconds in a key.
REDIS_CLOCK = """
local function now()
  local time = redis.call('TIME')
  return (time[1] + (redis.call('GET', '{0}:test_clock') or 0)) * 1000000 + time[2]
end
"""


@asynccontextmanager
async def redis(directory: Path, redis: RedisServer) -> AsyncIterator[StoreBackend]:
    prefix = f"t_{uuid.uuid4().hex}"
    options: dict[str, Any] = {"prefix": prefix, "clock": REDIS_CLOCK.format(prefix)}
    advanced_s = 0.0

    async def pass_time(seconds: float) -> None:
        nonlocal advanced_s
        advanced_s += seconds
        redis.administer("SET", f"{prefix}:test_clock", advanced_s)

    async with proxy_to_socket(redis.socket) as proxy:

        @asynccontextmanager
        async def unresponsive() -> AsyncIterator[CheckpointStore]:
            """Every script takes effect, and every response is lost."""
            async with RedisStore(redis.url(proxy.port), **options) as store:
                store._connections.deadline_s = 0.3
                proxy.is_silent = True
                try:
                    yield store
                finally:
                    proxy.is_silent = False

        yield StoreBackend(
            lambda: RedisStore(redis.url(), deadline_s=60, **options),
            unresponsive,
            lambda: time.monotonic() + advanced_s,
            pass_time,
            resolution_s=0.1,
            secrets=(PASSWORD,),
        )


@asynccontextmanager
async def blob(directory: Path, azurite: Azurite) -> AsyncIterator[StoreBackend]:
    container = f"c-{uuid.uuid4()}"

    def store(port: int) -> BlobStore:
        return BlobStore.from_connection_string(
            azurite.connection_string(port),
            container,
            create_container=True,
            timeout_s=60,
            clock=azurite.clock,
        )

    async with blob_backend(azurite, store) as backend:
        yield backend


@asynccontextmanager
async def bloblease(directory: Path, azurite: Azurite) -> AsyncIterator[StoreBackend]:
    """With the names that the contract requires; legacy hosts use the group alone."""
    container = f"c-{uuid.uuid4()}"

    def store(port: int) -> BlobLeaseStore:
        return BlobLeaseStore.from_connection_string(
            azurite.connection_string(port),
            container,
            prefix="{namespace}/{hub}/",
            fold_case=True,
            timeout_s=60,
            clock=azurite.clock,
        )

    async with blob_backend(azurite, store) as backend:
        yield replace(backend, ages=False)


@asynccontextmanager
async def blob_backend(
    azurite: Azurite, store: Callable[[int], CheckpointStore]
) -> AsyncIterator[StoreBackend]:
    """A container of Azurite, whose clock is advanced. Its times are in whole seconds."""

    @asynccontextmanager
    async def unresponsive() -> AsyncIterator[CheckpointStore]:
        """Every request takes effect, and every response is lost."""
        async with proxy_to(azurite.port) as proxy, store(proxy.port) as opened:
            proxy.inject_always("lost")
            yield opened

    async def pass_time(seconds: float) -> None:
        azurite.advance(seconds)

    yield StoreBackend(
        lambda: store(azurite.port),
        unresponsive,
        azurite.clock.monotonic,
        pass_time,
        resolution_s=2.0,
        secrets=(KEY,),
    )


Maker = Callable[..., AbstractAsyncContextManager[StoreBackend]]
ReadyMaker = Callable[[Path], AbstractAsyncContextManager[StoreBackend]]


def ready(maker: Maker, request: pytest.FixtureRequest) -> ReadyMaker:
    """Resolve the fixtures that a maker requests by the names of its other arguments."""
    asked = [name for name in signature(maker).parameters if name != "directory"]
    return partial(maker, **{name: request.getfixturevalue(name) for name in asked})


# ------------------------------------------------------------------------------------------------
# Every store that implements the contract.
STORES: dict[str, Maker] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "redis": redis,
    "blob": blob,
    "bloblease": bloblease,
}
# ------------------------------------------------------------------------------------------------
