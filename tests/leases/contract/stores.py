"""The stores that the contract suite judges. **To add yours, add an entry to STORES below.**

A maker gets an empty directory of its own and yields a `Place`: somewhere that rows are kept, and
the ways in which a test gets at it. Everything in contract/ then runs against it.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from random import Random

import pytest

from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.stores.blob.store import BlobStore
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.leases.stores.sqlite.clock import MachineTime
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.azurite.proxy import proxy_to
from tests.azurite.server import KEY, Azurite
from tests.leases.flaky_store import FlakyStore, RandomFaults

GROUP = Group("house.servicebus.windows.net", "sensors", "$Default")

Open = Callable[[], AbstractAsyncContextManager[CheckpointStore]]


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere that rows are kept, empty at first."""

    # One more handle on the same rows, as another host would have.
    open: Open
    # A handle whose calls get no answer while it is open: reads must raise StoreError, writes must
    # come back unknown, before long. Once it is closed all goes on as before.
    silent: Open
    # Time as the place counts it, from anywhere, and a way to let some of it pass.
    now: Callable[[], float]
    pass_time: Callable[[float], Awaitable[None]]
    # What passes without trouble in one test, well above `resolution_s`. A place whose clock
    # nobody can move says a few seconds, and really waits.
    tick_s: float = 100.0
    # How exact ages and deadlines are: a second where the store's clock counts seconds.
    resolution_s: float = 0.001
    # Whether the store can see that a checkpoint goes back though its etag matches.
    sees_checkpoints: bool = True
    # Whether rows grow old by and by. A lease only tells whether a row is held (0 s) or not (inf).
    ages: bool = True
    # What must be in no error text.
    secrets: tuple[str, ...] = ()

    @property
    def movable(self) -> bool:
        return self.tick_s >= 100


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody should wait by this clock")

    async def pass_time(self, seconds: float) -> None:
        self.time += seconds


@asynccontextmanager
async def memory(directory: Path) -> AsyncIterator[Place]:
    clock = Clock()
    store = MemoryStore(clock)

    @asynccontextmanager
    async def open_it() -> AsyncIterator[CheckpointStore]:
        async with store:
            yield store

    @asynccontextmanager
    async def silent() -> AsyncIterator[CheckpointStore]:
        async with FlakyStore(store, RandomFaults(Random(0), before=1, failed=1)) as flaky:
            yield flaky

    yield Place(open_it, silent, clock.monotonic, clock.pass_time)


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncIterator[Place]:
    clock = Clock()
    path = directory / "deep" / "er" / "leases.db"

    def moment() -> MachineTime:
        return MachineTime("this run", clock.monotonic(), clock.now())

    @asynccontextmanager
    async def silent() -> AsyncIterator[CheckpointStore]:
        """Its thread hangs, as it does when the disk does."""
        async with SqliteStore(path, deadline_s=60, clock=moment) as store:
            assert store._thread is not None
            store._deadline_s = 0.2
            mended = threading.Event()
            hanging = asyncio.create_task(store._thread.run(lambda until: mended.wait(), 3600))
            await asyncio.sleep(0)
            try:
                yield store
            finally:
                store._deadline_s = 60
                mended.set()
                await hanging

    yield Place(
        lambda: SqliteStore(path, deadline_s=60, clock=moment),
        silent,
        clock.monotonic,
        clock.pass_time,
    )


@asynccontextmanager
async def blob(directory: Path, azurite: Azurite) -> AsyncIterator[Place]:
    container = f"c-{uuid.uuid4()}"

    def store(port: int) -> BlobStore:
        return BlobStore.from_connection_string(
            azurite.connection_string(port),
            container,
            create_container=True,
            timeout_s=60,
            clock=azurite.clock,
        )

    async with blob_place(azurite, store) as place:
        yield place


@asynccontextmanager
async def bloblease(directory: Path, azurite: Azurite) -> AsyncIterator[Place]:
    """With names as the contract wants them; hosts of old would file by group alone."""
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

    async with blob_place(azurite, store) as place:
        yield replace(place, ages=False)


@asynccontextmanager
async def blob_place(
    azurite: Azurite, store: Callable[[int], CheckpointStore]
) -> AsyncIterator[Place]:
    """A container of Azurite, whose clock is moved. Both times it tells are in whole seconds."""

    @asynccontextmanager
    async def silent() -> AsyncIterator[CheckpointStore]:
        """Everything arrives and is carried out, and no answer ever comes back."""
        async with proxy_to(azurite.port) as proxy, store(proxy.port) as opened:
            proxy.spoil_all("lost")
            yield opened

    async def pass_time(seconds: float) -> None:
        azurite.advance(seconds)

    yield Place(
        lambda: store(azurite.port),
        silent,
        azurite.clock.monotonic,
        pass_time,
        resolution_s=2.0,
        secrets=(KEY,),
    )


Maker = Callable[..., AbstractAsyncContextManager[Place]]
ReadyMaker = Callable[[Path], AbstractAsyncContextManager[Place]]


def ready(maker: Maker, request: pytest.FixtureRequest) -> ReadyMaker:
    """A maker asks for fixtures as a test does, by the names of its other arguments."""
    asked = [name for name in signature(maker).parameters if name != "directory"]
    return partial(maker, **{name: request.getfixturevalue(name) for name in asked})


# ------------------------------------------------------------------------------------------------
# Every store that keeps the contract. An entry more is one store more under judgement.
STORES: dict[str, Maker] = {
    "memory": memory,
    "sqlite": sqlite,
    "blob": blob,
    "bloblease": bloblease,
}
# ------------------------------------------------------------------------------------------------
