"""A store in a PostgreSQL database, for hosts on many machines.

Every call is one transaction, and every time is read from the clock of the database. Compare and
set is an UPDATE with the etag in its WHERE clause. Changed rows are notified to the hosts of the
group, so that a hand-over does not wait for their next listing.

    processor.cycle -> PostgresStore -> Connections -> psycopg
                       ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

import psycopg

from pumphouse.errors import CheckpointRefused, OptionError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    Unknown,
)
from pumphouse.leases.rules import checkpoint_fault
from pumphouse.leases.store import Change, CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.limits import ROWS_MAX
from pumphouse.leases.stores.postgres.changes import listen
from pumphouse.leases.stores.postgres.connections import Connection, Connections
from pumphouse.leases.stores.postgres.rows import (
    checkpoint_values,
    read_checkpoint,
    read_epoch,
    read_member,
    read_row,
    row_values,
)
from pumphouse.leases.stores.postgres.schema import (
    CLOCK,
    SCHEMA,
    VERSION,
    Statements,
    group_values,
)
from pumphouse.leases.stores.postgres.transactions import (
    PostgresTransaction,
    open_transaction,
    transaction_ended,
)

DEADLINE_S = 10.0
# Calls of one host at the same time: renewals, checkpoints of some partitions, a listing.
CONNECTIONS_MAX = 4
# A host serves as many partitions at the same time as it has threads for handlers.
TRANSACTIONS_MAX = 32
# As long as a lease: then another host may own the partition, and wait for locks of the handler.
TRANSACTION_IDLE_S = 30.0
# Serialises hosts that create the tables at the same time.
CREATION_LOCK = 0x50756D70  # "Pump"


class PostgresStore:
    """Keeps rows in the schema `schema` of the database that a URL of libpq names.

    Open it with `async with`, once or several times at the same time. `deadline_s` bounds every
    call. At most `connections_max` connections are open for calls, and one for notifications. With
    `create=False` the tables must exist.

    `transactions_max` handlers may be in a transaction at the same time, each with a connection.
    The server ends a transaction in which no statement runs for `transaction_idle_s`.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = SCHEMA,
        deadline_s: float = DEADLINE_S,
        connections_max: int = CONNECTIONS_MAX,
        create: bool = True,
        transactions_max: int = TRANSACTIONS_MAX,
        transaction_idle_s: float = TRANSACTION_IDLE_S,
        clock: str = CLOCK,
    ) -> None:
        if not deadline_s > 0:
            raise OptionError(f"deadline_s must be above 0 (got {deadline_s})")
        for name, most in (
            ("connections_max", connections_max), ("transactions_max", transactions_max)
        ):  # fmt: skip
            if most < 1:
                raise OptionError(f"{name} must be at least 1 (got {most})")
        if not transaction_idle_s >= 0.001:
            raise OptionError(f"transaction_idle_s must be above 0 (got {transaction_idle_s})")
        self._statements, self._create = Statements(schema, clock), create
        self._new_connections = partial(Connections, url, deadline_s, connections_max)
        self._connections = self._new_connections()
        self._connections.is_closed = True
        self._new_transactions = partial(Connections, url, deadline_s, transactions_max)
        self._transactions = self._connections
        self._transaction_idle_s = transaction_idle_s
        self._users = 0

    def __repr__(self) -> str:
        state = "closed" if self._connections.is_closed else "open"
        return f"<PostgresStore {self._connections.name} | {state}>"

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._connections.is_closed:
            self._connections = self._new_connections()
            self._transactions = self._new_transactions()
        try:
            await self._connections.run(self._prepare)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._users == 0:
            await asyncio.gather(self._connections.close(), self._transactions.close())

    async def _prepare(self, connection: Connection) -> None:
        """Create the tables if they are missing; StoreError if they are of a later version."""
        schema = self._statements.schema
        table = f"{schema}.store_version"
        cursor = await connection.execute("SELECT to_regclass(%s)", (table,))
        if (await cursor.fetchone() or (None,))[0] is None:
            if not self._create:
                raise StoreUnavailable(
                    f"{self._connections.name} has no schema {schema}: does a consumer use it?"
                )
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
                for statement in self._statements.creation():
                    await connection.execute(statement)
        (version,) = await _one(connection, self._statements.version)
        if version != VERSION:
            raise StoreError(
                f"{self._connections.name}: schema {schema} has the version {version}, this "
                f"Pumphouse supports {VERSION}; upgrade, or use another schema"
            )

    # -- ownership --------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        statements = (self._statements.rows, self._statements.members, self._statements.epochs)
        rows, members, epochs = await self._select(group, statements)
        return Listing(
            tuple(read_row(columns) for columns in rows),
            tuple(read_member(columns) for columns in members),
            dict(map(read_epoch, epochs)),
        )

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        if not (requested := list(claims)):
            return []
        written = [replace(row, etag=secrets.token_hex(8), age_s=0.0) for row in requested]
        calls = [self._row_call(group, *pair) for pair in zip(requested, written, strict=True)]
        try:
            granted = await self._connections.run(partial(_write_rows, calls=calls))
        except StoreUnavailable as error:
            return [Unknown(row, str(error)) for row in requested]
        refused = [
            row for row, is_granted in zip(requested, granted, strict=True) if not is_granted
        ]
        stored = await self._stored(group, refused)
        return [
            Granted(row) if is_granted else Refused(before, stored.get(before.partition))
            for before, row, is_granted in zip(requested, written, granted, strict=True)
        ]

    def _row_call(self, group: Group, requested: Ownership, written: Ownership) -> Call:
        values = group_values(group) | row_values(requested, written.etag)
        statement = self._statements.next_row if requested.etag else self._statements.first_row
        return statement, values | {"channel": self._statements.channel(group)}

    async def _stored(self, group: Group, refused: Sequence[Ownership]) -> dict[str, Ownership]:
        """The stored rows of refused claims; none if they cannot be read."""
        if not refused:
            return {}
        some: dict[str, object] = {"some": [row.partition for row in refused]}
        with suppress(StoreUnavailable):
            (rows,) = await self._select(group, (self._statements.rows_of,), some)
            return {row.partition: row for row in map(read_row, rows)}
        return {}

    # -- checkpoints ------------------------------------------------------------------------------

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        (rows,) = await self._select(group, (self._statements.checkpoints,))
        return [read_checkpoint(group, columns) for columns in rows]

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        try:
            return await self._connections.run(
                partial(self.write_checkpoint, checkpoint=checkpoint, rewind=rewind)
            )
        except StoreUnavailable as error:
            return Unknown(checkpoint, str(error))

    async def write_checkpoint(
        self, connection: Connection, checkpoint: Checkpoint, rewind: bool, mark: str | None = None
    ) -> CheckpointOutcome:
        """Write a checkpoint with this connection, also within a transaction of it.

        With a mark, only the transaction that has set it writes; OptionError in another.
        """
        written = replace(checkpoint, etag=secrets.token_hex(8))
        values = group_values(checkpoint.group) | checkpoint_values(checkpoint, written.etag)
        statements = self._statements
        statement = statements.next_checkpoint if checkpoint.etag else statements.first_checkpoint
        values |= {"rewind": rewind, "mark": mark}
        if await _first(connection, statement, values) is not None:
            return Granted(written)
        if mark is not None and (await _one(connection, statements.mark))[0] != mark:
            raise transaction_ended()
        columns = await _first(connection, statements.checkpoint_of, values)
        stored = None if columns is None else read_checkpoint(checkpoint.group, columns)
        same = stored is not None and stored.etag == checkpoint.etag
        if same and not rewind and (fault := checkpoint_fault(stored, checkpoint)):
            raise CheckpointRefused(fault)
        return Refused(checkpoint, stored)

    async def groups(self, namespace: str, hub: str) -> set[str]:
        """The names of the groups of a hub, in lower case."""
        (rows,) = await self._select(Group(namespace, hub), (self._statements.groups,))
        return {str(name) for (name,) in rows}

    # -- members ----------------------------------------------------------------------------------

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        values = group_values(group) | {"name": name, "max_partitions": max_partitions}
        await self._connections.run(partial(_first, statement=self._statements.beat, values=values))

    async def leave(self, group: Group, name: str) -> None:
        values = group_values(group) | {"name": name}
        await self._connections.run(
            partial(_first, statement=self._statements.leave, values=values)
        )

    # -- transactions -----------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        """A transaction in which rows of the user and a checkpoint commit together."""
        return open_transaction(self._transactions, self.write_checkpoint, self._transaction_idle_s)

    async def settled_checkpoint(self, group: Group, partition: str) -> Checkpoint | None:
        """The stored checkpoint, after every transaction that may still write it has ended."""
        values = group_values(group) | {"partition": partition}
        statement = f"{self._statements.checkpoint_of} FOR UPDATE"
        columns = await self._connections.run(partial(_first, statement=statement, values=values))
        return None if columns is None else read_checkpoint(group, columns)

    # -- changes ----------------------------------------------------------------------------------

    def changes(self, group: Group) -> AsyncGenerator[Change, None]:
        """Changes of the group's rows by any host, as they are committed."""
        return listen(self._connections, self._statements.channel(group))

    # -- statements -------------------------------------------------------------------------------

    async def _select(
        self, group: Group, statements: Sequence[str], more: dict[str, object] | None = None
    ) -> list[list[Sequence[Any]]]:
        """The rows of each statement, in one round trip."""
        calls = [(f"{statement} LIMIT %(limit)s", group_values(group) | (more or {}))
                 for statement in statements]  # fmt: skip
        tables = await self._connections.run(partial(_run, calls=calls))
        if any(len(rows) > ROWS_MAX for rows in tables):
            raise StoreError(
                f"{self._connections.name} has more than {ROWS_MAX} rows of {group}; remove some"
            )
        return tables


Call = tuple[str, Mapping[str, object]]


async def _write_rows(connection: Connection, calls: Sequence[Call]) -> list[bool]:
    """Whether each row was written, in the order of the calls."""
    # Rows are locked in one order by all hosts: two that write the same rows cannot deadlock.
    order = sorted(range(len(calls)), key=lambda index: str(calls[index][1]["partition"]))
    tables = await _run(connection, [calls[index] for index in order])
    written = dict(zip(order, (bool(rows) for rows in tables), strict=True))
    return [written[index] for index in range(len(calls))]


async def _run(connection: Connection, calls: Sequence[Call]) -> list[list[Sequence[Any]]]:
    """The rows of each statement; all are one transaction, in one round trip."""
    if len(calls) == 1:  # a transaction of its own, without BEGIN and COMMIT
        return [await _all(await connection.execute(*calls[0]))]
    async with connection.pipeline(), connection.transaction():
        cursors = [await connection.execute(*call) for call in calls]
    return [await _all(cursor) for cursor in cursors]


async def _all(cursor: psycopg.AsyncCursor[Any]) -> list[Sequence[Any]]:
    return await cursor.fetchall() if cursor.description else []


async def _first(
    connection: Connection, statement: str, values: Mapping[str, object]
) -> Sequence[Any] | None:
    cursor = await connection.execute(statement, values)
    row: Sequence[Any] | None = await cursor.fetchone() if cursor.description else None
    return row


async def _one(connection: Connection, statement: str) -> Sequence[Any]:
    return await _first(connection, statement, {}) or (None,)
