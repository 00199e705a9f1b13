"""Transactions: rows of the user and the fenced checkpoint commit together, or not at all."""

# ruff: noqa: PT012 (the end of a transaction raises, which is the end of its block)
from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pumphouse.errors import CheckpointRefused, OptionError, OwnershipLost, StoreUnavailable
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.stores.postgres.store import PostgresStore
from tests.leases.contract.calls import checkpoints
from tests.leases.contract.stores import GROUP
from tests.postgres.proxy import Proxy, proxy_to
from tests.postgres.server import PostgresServer


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres.folder) as proxy:
        yield proxy


@pytest.fixture
async def store(postgres: PostgresServer, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    schema = f"t_{uuid.uuid4().hex}"
    database = postgres.shared().split("/")[3].split("?")[0]
    async with PostgresStore(proxy.url(database), schema=schema, transaction_idle_s=60) as store:
        with psycopg.connect(postgres.shared(), autocommit=True) as administrator:
            administrator.execute(f"CREATE TABLE {schema}.entry (number integer UNIQUE)")
        yield store


async def writer_of(store: PostgresStore, epoch: int = 1, **options: Any) -> CheckpointWriter:
    writer = CheckpointWriter(store, GROUP, "0", epoch, **options)
    await writer.stamp()
    return writer


async def add(connection: Any, store: PostgresStore, number: int) -> None:
    schema = store._statements.schema
    await connection.execute(f"INSERT INTO {schema}.entry VALUES (%s)", (number,))


def entries(postgres: PostgresServer, store: PostgresStore) -> list[int]:
    with psycopg.connect(postgres.shared(), autocommit=True) as administrator:
        table = f"{store._statements.schema}.entry"
        return [number for (number,) in administrator.execute(f"SELECT number FROM {table}")]


async def test_rows_and_checkpoint_commit_together(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    writer = await writer_of(store)
    for sequence in (1, 2):
        async with writer.transaction(store, sequence, str(sequence)) as connection:
            await add(connection, store, sequence)
            assert entries(postgres, store) == list(range(1, sequence))
    stored = (await checkpoints(store))["0"]
    assert (stored.sequence, stored.offset, stored.epoch) == (2, "2", 1)
    assert entries(postgres, store) == [1, 2]
    await writer.advance(3, "3")  # the writer knows the checkpoint of the transaction
    assert writer.sequence == 3


async def test_an_exception_rolls_both_back(postgres: PostgresServer, store: PostgresStore) -> None:
    writer = await writer_of(store)
    with pytest.raises(KeyError):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            raise KeyError
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            await add(connection, store, 1)
    assert entries(postgres, store) == []
    assert not (await checkpoints(store))["0"].has_position
    async with writer.transaction(store, 1, "1") as connection:
        await add(connection, store, 1)
    assert entries(postgres, store) == [1]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_sql_that_ends_the_transaction_is_reported(
    statement: str, store: PostgresStore
) -> None:
    """Otherwise the checkpoint would be written without the rows, or long after them."""
    writer = await writer_of(store)
    with pytest.raises(OptionError, match="COMMIT or ROLLBACK in the block"):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            await connection.execute(statement)
    assert not (await checkpoints(store))["0"].has_position
    async with writer.transaction(store, 1, "1") as connection:
        async with connection.transaction(force_rollback=True):
            await add(connection, store, 2)
        await add(connection, store, 3)
    assert (await checkpoints(store))["0"].sequence == 1


@pytest.mark.parametrize(
    "statements",
    ["ROLLBACK; BEGIN", "COMMIT; BEGIN", "ROLLBACK AND CHAIN", "COMMIT AND CHAIN"],
)
@pytest.mark.parametrize("stamped", [True, False])
async def test_a_transaction_that_sql_has_replaced_is_reported(
    statements: str, stamped: bool, postgres: PostgresServer, store: PostgresStore
) -> None:
    """The connection is in a transaction again, but not in the one with the rows of the event."""
    writer = await writer_of(store)
    if not stamped:  # a first checkpoint: another statement
        with psycopg.connect(postgres.shared(), autocommit=True) as administrator:
            administrator.execute(f"DELETE FROM {store._statements.schema}.checkpoint")
        writer._known = replace(writer._stamped(), etag="")
    with pytest.raises(OptionError, match="COMMIT or ROLLBACK in the block"):
        async with writer.transaction(store, 1, "1") as connection:
            for statement in statements.split("; "):
                await connection.execute(statement)
            await add(connection, store, 1)
    assert entries(postgres, store) == []
    stored = await checkpoints(store)
    assert not stored["0"].has_position if stamped else not stored
    async with writer.transaction(store, 1, "1") as connection:
        await add(connection, store, 1)
    assert (await checkpoints(store))["0"].sequence == 1
    assert entries(postgres, store) == [1]


async def test_a_replaced_transaction_is_reported_to_a_fenced_owner(store: PostgresStore) -> None:
    zombie = await writer_of(store, 1)
    with pytest.raises(OptionError, match="COMMIT or ROLLBACK in the block"):
        async with zombie.transaction(store, 1, "1") as connection:
            await connection.execute("ROLLBACK AND CHAIN")
            await writer_of(store, 2)


async def test_savepoints_and_the_isolation_level_can_be_set_in_a_transaction(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    writer = await writer_of(store)
    async with writer.transaction(store, 1, "1") as connection:
        await connection.execute("SAVEPOINT before_everything")
        await add(connection, store, 1)
        await connection.execute("ROLLBACK TO before_everything")
        await add(connection, store, 2)
        await connection.execute("RELEASE before_everything")
    async with writer.transaction(store, 2, "2") as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        await add(connection, store, 3)
    assert (await checkpoints(store))["0"].sequence == 2
    assert entries(postgres, store) == [2, 3]


async def test_the_transaction_of_a_fenced_owner_is_rolled_back(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    """It was suspended in its transaction. The new owner did not have to wait for it."""
    zombie = await writer_of(store, 1)
    with pytest.raises(OwnershipLost):
        async with zombie.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            heir = await writer_of(store, 2)
            async with heir.transaction(store, 1, "1") as other:
                await add(other, store, 2)
    assert entries(postgres, store) == [2]
    with pytest.raises(OwnershipLost):
        async with zombie.transaction(store, 2, "2"):
            raise AssertionError("it is known to be fenced off")


async def test_an_expired_lease_rolls_back(postgres: PostgresServer, store: PostgresStore) -> None:
    valid = True
    writer = await writer_of(store, has_lease=lambda: valid)
    with pytest.raises(OwnershipLost):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            valid = False
    assert entries(postgres, store) == []


async def test_events_that_are_recorded_as_handled_are_not_handled_again(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    writer = await writer_of(store)
    await writer.advance(5, "5")
    with pytest.raises(CheckpointRefused, match="rolled back"):
        async with writer.transaction(store, 5, "5") as connection:
            await add(connection, store, 5)
    assert entries(postgres, store) == []


async def test_a_commit_without_a_response_is_looked_up(
    postgres: PostgresServer, store: PostgresStore, proxy: Proxy
) -> None:
    """The server has committed: the transaction ends well, and is not repeated."""
    writer = await writer_of(store)
    store._transactions.deadline_s = store._connections.deadline_s = 0.5
    async with writer.transaction(store, 1, "1") as connection:
        await add(connection, store, 1)
        proxy.silent_after = b"COMMIT"
        asyncio.get_running_loop().call_later(1.0, proxy.recover)
    assert not proxy.silent_after
    assert entries(postgres, store) == [1]
    assert writer.sequence == 1
    store._transactions.deadline_s = store._connections.deadline_s = 60
    async with writer.transaction(store, 2, "2") as connection:
        await add(connection, store, 2)
    assert entries(postgres, store) == [1, 2]


async def test_a_lost_connection_is_not_the_fault_of_the_handler(
    postgres: PostgresServer, store: PostgresStore, proxy: Proxy
) -> None:
    writer = await writer_of(store)
    with pytest.raises(StoreUnavailable):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            proxy.cut()
            await add(connection, store, 2)
    assert entries(postgres, store) == []
    async with writer.transaction(store, 1, "1") as connection:
        await add(connection, store, 3)
    assert entries(postgres, store) == [3]


async def test_a_checkpoint_that_a_transaction_has_superseded_fails_its_end(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    """A handler that checkpoints inside its transaction does not hang."""
    writer = await writer_of(store)
    with pytest.raises(CheckpointRefused):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            await writer.advance(1, "1")
    assert entries(postgres, store) == []


async def test_the_server_ends_an_idle_transaction(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    store._transaction_idle_s = 0.1
    writer = await writer_of(store)
    with pytest.raises(StoreUnavailable):
        async with writer.transaction(store, 1, "1") as connection:
            await add(connection, store, 1)
            async with asyncio.timeout(30):
                while psycopg_is_open(connection):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    assert entries(postgres, store) == []


def psycopg_is_open(connection: Any) -> bool:
    """Whether the server has not ended the connection."""
    connection.pgconn.consume_input()
    return bool(connection.pgconn.status == 0)
