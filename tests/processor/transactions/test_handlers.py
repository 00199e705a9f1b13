"""Transactions of handlers: what a retry sees, and stores that have none."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from pumphouse import (
    EventProcessorHost,
    EventProcessorOptions,
    FixedPartitionProcessor,
    MemoryStore,
    PartitionClient,
    PartitionContext,
    PoisonPolicy,
    Processor,
    ProcessorOptions,
)
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.stores.postgres.store import PostgresStore
from tests.postgres.server import PostgresServer

HUB = "eh"
LIMIT_S = 60.0
POISON = PoisonPolicy(retries=5, first_s=0.01, most_s=0.02)
Process = Callable[[PartitionContext, list[Event]], Awaitable[None]]


async def serve(store: CheckpointStore, process: Process, done: asyncio.Event, bodies: str) -> None:
    """Run a host with this handler of batches until `done`."""

    class Processor:
        async def open(self, context: PartitionContext) -> None: ...

        async def close(self, context: PartitionContext, reason: object) -> None: ...

        async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            await process(context, messages)

        async def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    async with EmbeddedHub({HUB: 1}) as hub:
        async with open_client(hub.connection_string(HUB)) as client:
            await (await client.sender("0")).send([Event(body.encode()) for body in bodies])
        host = EventProcessorHost("anna", hub.connection_string(HUB), store=store)
        await host.register(Processor, EventProcessorOptions(poison=POISON))
        await asyncio.wait_for(done.wait(), LIMIT_S)
        await host.unregister()


async def test_a_retry_leaves_out_what_a_transaction_has_committed(
    postgres: PostgresServer,
) -> None:
    schema, url = f"t_{uuid.uuid4().hex}", postgres.shared()
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(f"CREATE SCHEMA {schema}")
        administrator.execute(f"CREATE TABLE {schema}.entry (body text)")
    seen: list[str] = []
    done = asyncio.Event()

    async def process(context: PartitionContext, batch: list[Event]) -> None:
        seen.append("".join(event.body.decode() for event in batch))
        for event in batch:
            async with context.transaction(event) as database:
                await database.execute(
                    f"INSERT INTO {schema}.entry VALUES (%s)", (event.body.decode(),)
                )
            if event.body == b"b" and len(seen) == 1:
                raise RuntimeError("after a commit, and with events left")
        if len(seen) == 2:
            raise RuntimeError("after everything was committed")
        done.set()

    async with PostgresStore(url, schema=schema) as store:
        serving = asyncio.create_task(serve(store, process, done, "abcd"))

        def written() -> str:
            with psycopg.connect(url) as administrator:
                rows = administrator.execute(f"SELECT body FROM {schema}.entry").fetchall()
            return "".join(sorted(body for (body,) in rows))

        async with asyncio.timeout(LIMIT_S):
            while written() < "abcd":  # noqa: ASYNC110 (the handler writes it to the database)
                await asyncio.sleep(0.05)
        done.set()
        await serving
        assert written() == "abcd"
    assert seen == ["abcd", "cd"]


async def test_a_store_without_transactions_says_what_to_use() -> None:
    errors: list[Exception] = []
    done = asyncio.Event()

    async def process(context: PartitionContext, batch: list[Event]) -> None:
        try:
            async with context.transaction():
                raise AssertionError("there is no transaction")
        except OptionError as error:
            errors.append(error)
            done.set()

    await serve(MemoryStore(), process, done, "a")
    assert "postgres://USER@HOST/DATABASE" in str(errors[0])


Transact = Callable[[PartitionContext, Event], Awaitable[None]]


async def in_another_task(context: PartitionContext, event: Event) -> None:
    async def write() -> None:
        async with context.transaction():
            raise AssertionError("it would record the event before this one")

    await asyncio.create_task(write())


async def in_an_except_block(context: PartitionContext, event: Event) -> None:
    try:
        raise ValueError("a record that cannot be read")
    except ValueError:
        async with context.transaction():
            raise AssertionError("it would record the event before this one") from None


async def after_a_transaction(context: PartitionContext, event: Event) -> None:
    async with context.transaction():
        pass
    async with context.transaction():
        raise AssertionError("its end would be refused, and its rows lost")


async def in_a_transaction(context: PartitionContext, event: Event) -> None:
    async with context.transaction(), context.transaction():
        raise AssertionError("the end of the outer one would be refused, and its rows lost")


@pytest.mark.parametrize(
    ("transact", "problem"),
    [
        (in_another_task, "pass the event whose rows it writes"),
        (in_an_except_block, "pass the event whose rows it writes"),
        (after_a_transaction, "event 1 of partition 0 .* that of event 1 has committed"),
        (in_a_transaction, "event 1 of partition 0 .* that of event 1 is open"),
    ],
)
async def test_a_transaction_that_cannot_cover_its_event_is_refused_before_it_begins(
    transact: Transact, problem: str, postgres: PostgresServer
) -> None:
    refused: list[OptionError] = []
    done = asyncio.Event()

    async def process(context: PartitionContext, batch: list[Event]) -> None:
        for event in batch:
            if event.sequence == 0:
                await context.checkpoint(event)  # an event without rows: it is handled
                continue
            context.partition.set_in_hand([event])  # as with functions, which get single events
            with pytest.raises(OptionError, match=problem) as raised:
                await transact(context, event)
            refused.append(raised.value)
            done.set()

    schema = f"t_{uuid.uuid4().hex}"
    async with PostgresStore(postgres.shared(), schema=schema) as store:
        await serve(store, process, done, "ab")
    assert refused


async def test_a_task_passes_its_event_to_its_transaction(postgres: PostgresServer) -> None:
    done, reached = asyncio.Event(), list[int | None]()

    async def process(context: PartitionContext, batch: list[Event]) -> None:
        async def write() -> None:
            async with context.transaction(batch[-1]):
                pass

        await asyncio.wait_for(asyncio.create_task(write()), LIMIT_S)
        reached.append(context.partition._checkpoint.writer.sequence)
        done.set()

    schema = f"t_{uuid.uuid4().hex}"
    async with PostgresStore(postgres.shared(), schema=schema) as store:
        await serve(store, process, done, "a")
    assert reached == [0]


@pytest.mark.parametrize("api", ["run(serve)", "run(handler)", "fixed"])
async def test_every_api_has_transactions(api: str, postgres: PostgresServer) -> None:
    """Rows and checkpoint are there together; a block that raises leaves neither."""
    schema, url = f"t_{uuid.uuid4().hex}", postgres.shared()
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(f"CREATE SCHEMA {schema}")
        administrator.execute(f"CREATE TABLE {schema}.entry (body text)")
    fails = [True]

    async def handle(partition: PartitionClient, batch: list[Event]) -> None:
        async with partition.transaction() as database:
            for event in batch:
                await database.execute(
                    f"INSERT INTO {schema}.entry VALUES (%s)", (event.body.decode(),)
                )
            if fails.pop() if fails else False:
                raise RuntimeError("after the rows were written")

    async def serve_partition(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            await handle(partition, batch)

    def written() -> str:
        with psycopg.connect(url) as administrator:
            rows = administrator.execute(f"SELECT body FROM {schema}.entry").fetchall()
        return "".join(sorted(body for (body,) in rows))

    def reached() -> list[tuple[int]]:
        with psycopg.connect(url) as administrator:
            return administrator.execute(f"SELECT sequence FROM {schema}.checkpoint").fetchall()

    async with EmbeddedHub({HUB: 1}) as hub, PostgresStore(url, schema=schema) as store:
        connection = hub.connection_string(HUB)
        async with open_client(connection) as client:
            await (await client.sender("0")).send([Event(body.encode()) for body in "abcd"])
        fixed = FixedPartitionProcessor(
            connection, partitions=1, store=store, poison=POISON, checkpoint_on_stop=False
        )
        fixed.on_batch(handle)
        options = ProcessorOptions(
            poison=POISON, checkpoint_on_stop=False, backoff_first_s=0.01, backoff_most_s=0.02
        )
        pull = Processor(connection, store=store, options=options)
        processor = fixed if api == "fixed" else pull
        async with processor, asyncio.timeout(LIMIT_S):
            running = asyncio.create_task(
                fixed.run()
                if api == "fixed"
                else pull.run(serve_partition)
                if api == "run(serve)"
                else pull.run(handler=handle)
            )
            while written() < "abcd":  # noqa: ASYNC110 (the handler writes it to the database)
                await asyncio.sleep(0.05)
            assert reached() == [(3,)]
        await running
    assert (written(), fails) == ("abcd", [])
