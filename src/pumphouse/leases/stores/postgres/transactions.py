"""Transactions in which a handler's rows and its fenced checkpoint commit together.

    handler -> CheckpointWriter.transaction -> open_transaction -> COMMIT
                                               ^^^^^^^^^^^^^^^^ this module

The checkpoint is the last statement before the commit: its row stays unlocked while the handler
runs, so that a new owner can fence off one that hangs. The server ends a transaction that is idle
for too long, because its locks would block the new owner.

Each transaction has a mark of its own, a setting that ends with it. The checkpoint requires it: SQL
of the handler may have ended the transaction and begun another one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg

from pumphouse.errors import OptionError, StoreUnavailable
from pumphouse.leases.model import Checkpoint
from pumphouse.leases.store import CheckpointOutcome
from pumphouse.leases.stores.postgres.connections import Connection, Connections, interruptible
from pumphouse.leases.stores.postgres.errors import first_line, is_transient
from pumphouse.leases.stores.postgres.schema import MARK

WriteCheckpoint = Callable[[Connection, Checkpoint, bool, str], Awaitable[CheckpointOutcome]]


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """An open transaction. `connection` is a psycopg.AsyncConnection."""

    connection: Connection
    write: WriteCheckpoint
    mark: str

    async def update_checkpoint(self, checkpoint: Checkpoint) -> CheckpointOutcome:
        if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise transaction_ended()
        return await self.write(self.connection, checkpoint, False, self.mark)


def transaction_ended() -> OptionError:
    return OptionError(
        "COMMIT or ROLLBACK in the block has ended the transaction of its event, or RESET ALL has "
        "removed its mark: rows and checkpoint are not written together. For a part that may be "
        "rolled back, use `async with connection.transaction()` in the block"
    )


@asynccontextmanager
async def open_transaction(
    connections: Connections, write: WriteCheckpoint, idle_s: float
) -> AsyncGenerator[PostgresTransaction, None]:
    """A transaction around the block; StoreUnavailable if the database fails in it."""
    mark = secrets.token_hex(8)
    async with leased(connections) as connection:
        transaction = connection.transaction()
        async with connections.reported(), asyncio.timeout(connections.deadline_s):
            await interruptible(connection, transaction.__aenter__())
            await interruptible(connection, _prepare(connection, int(idle_s * 1000), mark))
        try:
            yield PostgresTransaction(connection, write, mark)
            async with committing(connections):
                await interruptible(connection, transaction.__aexit__(None, None, None))
        except BaseException as error:
            # The server rolls back, whatever state the transaction is in.
            connections.discard(connection)
            if isinstance(error, psycopg.Error) and is_failure_of_database(error):
                raise StoreUnavailable(f"{connections.name}: {first_line(error)}") from None
            raise


@asynccontextmanager
async def committing(connections: Connections) -> AsyncGenerator[None, None]:
    """The deadline of a commit. An error of PostgreSQL stays what it is."""
    try:
        async with asyncio.timeout(connections.deadline_s):
            yield
    except TimeoutError:
        raise StoreUnavailable(
            f"{connections.name} did not confirm a commit within {connections.deadline_s:g} s"
        ) from None


def is_failure_of_database(error: psycopg.Error) -> bool:
    """Whether the database failed, and not a statement of the user."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return is_transient(error)


@asynccontextmanager
async def leased(connections: Connections) -> AsyncGenerator[Connection, None]:
    """A connection for a whole block; only the wait for it has a deadline."""
    lease = connections.lease()
    async with connections.reported(), asyncio.timeout(connections.deadline_s):
        connection = await lease.__aenter__()
    try:
        yield connection
    finally:
        await lease.__aexit__(None, None, None)


async def _prepare(connection: Connection, idle_ms: int, mark: str) -> None:
    """Limit the idle time of a transaction and mark it, in one round trip.

    SET takes no snapshot, so the isolation level can still be set. It has no parameters.
    """
    await connection.execute(
        f"SET LOCAL idle_in_transaction_session_timeout = {idle_ms}; SET LOCAL {MARK} = '{mark}'"
    )
