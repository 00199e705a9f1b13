"""Every store on a server of its own, and what is measured of each.

open_stores -> Place -> latencies, round_trips_per_cycle, hand_over_times -> benchmarks.stores
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pumphouse import EmbeddedHub, Processor, ProcessorOptions, open_store
from pumphouse.leases.model import Checkpoint, Granted, Group, Ownership, claim, renew
from pumphouse.leases.store import CheckpointStore, ClaimOutcome, SupportsInitialise
from pumphouse.leases.stores.memory import MemoryStore

T = TypeVar("T")
Open = Callable[[], CheckpointStore]  # a store of one host
Place = Callable[[], Open]  # new rows, which the stores of several hosts share
HUB = "hub"
LIMIT_S = 240.0


@contextmanager
def open_stores() -> Iterator[dict[str, Place]]:
    """Start all servers; returns the places by the name of the store."""
    from tests.azurite.server import Azurite
    from tests.postgres.server import PostgresServer
    from tests.redis.server import RedisServer

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(PostgresServer(fsync="on")).shared()
        redis = stack.enter_context(RedisServer()).url()
        storage = stack.enter_context(Azurite()).connection_string()
        yield {
            "MemoryStore": memory_place,
            "SqliteStore": lambda: sqlite_place(folder),
            "PostgresStore": lambda: place(database, "schema", "b_"),
            "RedisStore": lambda: place(redis, "prefix", "b"),
            "BlobStore": lambda: blob_place(storage),
            "BlobLeaseStore": lambda: blob_place(f"bloblease:{storage}"),
        }


def memory_place() -> Open:
    store = MemoryStore()
    return lambda: store


def sqlite_place(folder: Path) -> Open:
    path = folder / f"{uuid.uuid4().hex}.db"
    return lambda: open_store(path)


def place(url: str, option: str, start: str) -> Open:
    name = start + uuid.uuid4().hex
    return lambda: open_store(url, **{option: name})


def blob_place(storage: str) -> Open:
    container = f"bench-{uuid.uuid4().hex}"
    return lambda: open_store(storage, container=container, create_container=True)


# -- latency --------------------------------------------------------------------------------------


async def latencies(opened: Open, rounds: int) -> dict[str, list[float]]:
    """Seconds of each claim, renewal and checkpoint, one after the other."""
    group, took = Group("namespace", HUB), defaultdict[str, list[float]](list)

    async def timed(name: str, request: Awaitable[T]) -> T:
        started_s = time.perf_counter()
        response = await request
        took[name].append(time.perf_counter() - started_s)
        return response

    async with opened() as store:
        partitions = [str(number) for number in range(rounds + 1)]
        if isinstance(store, SupportsInitialise):
            await store.initialise(group, partitions)
        rows = {row.partition: row for row in (await store.list_ownership(group)).ownerships}
        for partition in partitions:
            row = claim(rows.get(partition), partition, "host")
            row = granted((await timed("claim", store.claim_ownership(group, [row])))[0])
            granted((await timed("renew", store.claim_ownership(group, [renew(row)])))[0])
            stamp = Checkpoint(group, partition, epoch=row.epoch)
            stamped = await store.update_checkpoint(stamp)
            etag = stamped.row.etag if isinstance(stamped, Granted) else ""
            moved = Checkpoint(group, partition, 7, "700", row.epoch, etag)
            assert isinstance(await timed("checkpoint", store.update_checkpoint(moved)), Granted)
    return {name: seconds[1:] for name, seconds in took.items()}  # the first opens connections


def granted(outcome: ClaimOutcome) -> Ownership:
    assert isinstance(outcome, Granted), outcome
    return outcome.row


# -- round trips ----------------------------------------------------------------------------------


@contextmanager
def counted_round_trips() -> Iterator[list[str]]:
    """A list that gets an entry for each request to a server. A pipeline is one request."""
    from aiohttp import ClientSession
    from psycopg import AsyncConnection, AsyncPipeline
    from redis.asyncio.connection import AbstractConnection

    made: list[str] = []

    def counted(owner: Any, method: str, counts: Callable[..., bool] = lambda *args: True) -> None:
        original = getattr(owner, method)

        async def call(*args: Any, **options: Any) -> Any:
            if counts(*args):
                made.append(method)
            return await original(*args, **options)

        setattr(owner, method, call)
        stack.callback(setattr, owner, method, original)

    with ExitStack() as stack:
        counted(ClientSession, "_request")
        counted(AbstractConnection, "send_packed_command")
        counted(AsyncConnection, "wait", is_request)
        counted(AsyncPipeline, "__aexit__")
        yield made


def is_request(connection: Any, statement: Any, *more: Any) -> bool:
    """Whether this waits for a response: no notifications, and nothing in a pipeline."""
    return connection._pipeline is None and statement.__name__ == "_execute_gen"


async def round_trips_per_cycle(
    opened: Open, partitions: int, cycles: int, interval_s: float
) -> float:
    """Of one host that owns all partitions, at rest; each cycle renews every row."""
    options = ProcessorOptions(interval_s=interval_s, renew_s=interval_s, lease_s=30)
    async with EmbeddedHub({HUB: partitions}) as hub:
        with counted_round_trips() as made:
            store, marks = opened(), list[int]()
            note(store, "list_ownership", lambda args, listing: marks.append(len(made)))
            processor = Processor(
                hub.connection_string(HUB), store=store, options=options, host="host"
            )
            async with store, processor:
                running = asyncio.create_task(processor.run(serve))
                await until(lambda: processor.settled and len(processor.owned) == partitions)
                first = len(marks) + 1
                await until(lambda: len(marks) > first + cycles)
            await running
    return (marks[first + cycles] - marks[first]) / cycles


def note(store: CheckpointStore, method: str, then: Callable[[Sequence[Any], Any], None]) -> None:
    """Call this after each call of a method of this store."""
    original = getattr(store, method)

    async def call(*args: Any) -> Any:
        response = await original(*args)
        then(args, response)
        return response

    setattr(store, method, call)


async def serve(partition: Any) -> None:
    async for _ in partition.batches():
        pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# -- hand-overs -----------------------------------------------------------------------------------


async def hand_over_times(opened: Open, partitions: int, options: ProcessorOptions) -> list[float]:
    """Seconds from the request of a partition until its new owner serves it.

    One host owns all partitions, and a second one joins.
    """
    requested: dict[str, float] = {}
    served: dict[str, float] = {}

    def note_requests(args: Sequence[Any], outcomes: list[ClaimOutcome]) -> None:
        for row, outcome in zip(args[1], outcomes, strict=True):
            if isinstance(outcome, Granted) and row.successor == "new":
                requested.setdefault(row.partition, time.perf_counter())

    async def note_serving(partition: Any) -> None:
        served[partition.id] = time.perf_counter()
        await serve(partition)

    async with EmbeddedHub({HUB: partitions}) as hub, opened() as old_store:
        connection = hub.connection_string(HUB)
        old = Processor(connection, store=old_store, options=options, host="old")
        async with old:
            runs = [asyncio.create_task(old.run(serve))]
            await until(lambda: old.settled and len(old.owned) == partitions)
            store = opened()
            note(store, "claim_ownership", note_requests)
            new = Processor(connection, store=store, options=options, host="new")
            async with store, new:
                runs.append(asyncio.create_task(new.run(note_serving)))
                await until(lambda: len(served) == partitions // 2)
        await asyncio.gather(*runs)
    return [served[partition] - requested[partition] for partition in served]
