"""A host with a ledger in PostgreSQL, in a process of its own.

With KILL_AT=n it kills itself at the n-th statement of its transfers: before it is sent or, with
KILL_AFTER, after the server has got it and before the response is read. With STOP_AT=n it suspends
itself there instead, with STOP_AT=0 before its first transaction: a zombie, if it continues later.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextvars import ContextVar
from typing import Any

import psycopg

from pumphouse import EventProcessorHost, PartitionContext, PartitionManagerOptions
from pumphouse.events import Event
from pumphouse.leases.stores.postgres.store import PostgresStore

IN_TRANSFER = ContextVar("in a transfer", default=False)  # from BEGIN to COMMIT
LEASES = PartitionManagerOptions(lease_duration_s=3, renew_interval_s=1)


def kill_at(count: int, *, after: bool, by: signal.Signals = signal.SIGKILL) -> None:
    """Die or stop at a statement of a handler's transaction; those of leases do not count.

    The statements are BEGIN, the limit of idle time, three rows, the checkpoint, and COMMIT. Before
    the first of them a new connection is set up, which counts as a statement too.
    """
    left = count
    wait = psycopg.AsyncConnection.wait

    async def counted(self: Any, gen: Any, *more: Any, **options: Any) -> Any:
        nonlocal left
        left -= IN_TRANSFER.get()
        if IN_TRANSFER.get() and left == 0:
            if after:
                gen.send(None)  # sends the statement, and waits for the response
                self.pgconn.flush()
            os.kill(os.getpid(), by)
        return await wait(self, gen, *more, **options)

    psycopg.AsyncConnection.wait = counted  # type: ignore[method-assign]


async def main(url: str, schema: str, connection: str, name: str) -> None:
    async def transfer(context: PartitionContext, event: Event) -> None:
        """Move one coin. Nothing here notices an event that is handled twice."""
        if os.environ.pop("STOP_AT", "") == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        debtor, creditor = event.body.decode().split()
        token = IN_TRANSFER.set(True)
        try:
            async with context.transaction() as database:
                await database.execute(
                    f"INSERT INTO {schema}.entry VALUES (%s, %s)",
                    (context.partition_id, event.sequence),
                )
                for account, amount in sorted([(debtor, -1), (creditor, 1)]):
                    await database.execute(
                        f"UPDATE {schema}.account SET coins = coins + %s WHERE name = %s",
                        (amount, account),
                    )
                # The checkpoint and the commit follow.
        finally:
            IN_TRANSFER.reset(token)

    # A zombie keeps the locks of its transaction for no longer than its lease.
    async with PostgresStore(url, schema=schema, transaction_idle_s=3) as store:
        host = EventProcessorHost(name, connection, store=store, partition_manager_options=LEASES)
        await host.start(transfer)
        await asyncio.Event().wait()


def run(url: str, schema: str, connection: str, name: str, environment: dict[str, str]) -> None:
    """Run a host in this process, which was forked from one that has imported everything."""
    random.seed()
    os.environ.update(environment)
    if "KILL_AT" in os.environ:
        kill_at(int(os.environ["KILL_AT"]), after="KILL_AFTER" in os.environ)
    if "STOP_AT" in os.environ:
        kill_at(int(os.environ["STOP_AT"]), after="KILL_AFTER" in os.environ, by=signal.SIGSTOP)
    asyncio.run(main(url, schema, connection, name))
