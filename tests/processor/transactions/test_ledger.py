"""A ledger whose hosts are killed at every statement: every transfer has its effect exactly once.

LEDGER_KILLS is the number of kills: by default one before and one after each statement of a
transfer; `make ledger` runs 2,000.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.postgres.proxy import proxy_to
from tests.postgres.server import PostgresServer

KILLS = int(os.environ.get("LEDGER_KILLS", "12"))
HUB, PARTITIONS = "transfers", 1
ACCOUNTS = [f"account-{number}" for number in range(4)]
LIMIT_S = 120.0
# Statements of one transfer after BEGIN: three rows, checkpoint, commit.
STATEMENTS = 5
TRANSFERS = 3  # sent before each kill: more than are handled before it
DISTURBANCES = max(1, KILLS // 12)


class Ledger:
    def __init__(self, url: str, schema: str, connection: str) -> None:
        self.url, self.schema, self.connection = url, schema, connection
        self.url_of_hosts = url
        self.sent = 0
        self.rng = Random(7)

    def query(self, statement: str) -> list[tuple[int, ...]]:
        with psycopg.connect(self.url, autocommit=True) as database:
            cursor = database.execute(statement.format(schema=self.schema))
            return cursor.fetchall() if cursor.description else []

    async def send(self, count: int) -> None:
        async with open_client(self.connection) as client:
            for number in range(count):
                sender = await client.sender(str(number % PARTITIONS))
                pair = self.rng.sample(ACCOUNTS, 2)
                await sender.send([Event(" ".join(pair).encode())])
                self.sent += 1

    async def start(self, name: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.processor.transactions.ledger_host",
            self.url_of_hosts, self.schema, self.connection, name,
            stdout=asyncio.subprocess.DEVNULL,
            env={**os.environ, **environment},
        )  # fmt: skip

    async def until_handled(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.query("SELECT count(*) FROM {schema}.entry") < [(self.sent,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def check(self) -> None:
        doubled = "SELECT count(*) - count(DISTINCT (partition_id, sequence)) FROM {schema}.entry"
        assert self.query(doubled) == [(0,)]
        assert self.query("SELECT count(*) FROM {schema}.entry") == [(self.sent,)]
        assert self.query("SELECT sum(coins) FROM {schema}.account") == [(0,)]


@asynccontextmanager
async def ledger(postgres: PostgresServer) -> AsyncIterator[Ledger]:
    async with EmbeddedHub({HUB: PARTITIONS}) as hub:
        opened = Ledger(postgres.shared(), f"t_{uuid.uuid4().hex}", hub.connection_string(HUB))
        opened.query("CREATE SCHEMA {schema}")
        opened.query("CREATE TABLE {schema}.entry (partition_id text, sequence bigint)")
        opened.query("CREATE TABLE {schema}.account (name text PRIMARY KEY, coins bigint)")
        for account in ACCOUNTS:
            opened.query(f"INSERT INTO {{schema}}.account VALUES ('{account}', 0)")
        yield opened


@pytest.mark.timeout(max(600, 20 * KILLS))
async def test_killed_hosts_neither_lose_nor_double_a_transfer(postgres: PostgresServer) -> None:
    async with ledger(postgres) as accounts:
        for kill in range(KILLS):
            await accounts.send(TRANSFERS)
            # Each statement of the first two transfers in turn; every second time after it was
            # sent.
            at = 1 + kill // 2 % (2 * STATEMENTS)
            after = {"KILL_AFTER": "1"} if kill % 2 else {}
            host = await accounts.start("host", KILL_AT=str(at), **after)
            try:
                code = await asyncio.wait_for(host.wait(), LIMIT_S)
            finally:
                if host.returncode is None:
                    host.kill()
            assert code == -9
        host = await accounts.start("host")
        try:
            await accounts.until_handled()
        finally:
            host.kill()
            await host.wait()
        accounts.check()


async def until_stopped(process: asyncio.subprocess.Process) -> None:
    """Until a process has suspended itself."""
    async with asyncio.timeout(LIMIT_S):
        while state_of(process.pid) != "T":
            assert process.returncode is None, "the host has ended"
            await asyncio.sleep(0.05)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]


async def end(*processes: asyncio.subprocess.Process) -> None:
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.timeout(max(600, 60 * DISTURBANCES))
@pytest.mark.parametrize(
    ("at", "after"),
    # With the event in hand; in its transaction; with the commit sent and its response not read.
    [(0, {}), (3, {}), (STATEMENTS, {"KILL_AFTER": "1"})],
)
async def test_zombies_neither_lose_nor_double_a_transfer(
    at: int, after: dict[str, str], postgres: PostgresServer
) -> None:
    """A host is suspended in its transaction, another one takes over, the zombie continues."""
    async with ledger(postgres) as accounts:
        for _ in range(DISTURBANCES):
            await accounts.send(TRANSFERS)
            zombie = await accounts.start("zombie", STOP_AT=str(at), **after)
            successor = None
            try:
                await until_stopped(zombie)
                successor = await accounts.start("successor")
                await accounts.until_handled()
                zombie.send_signal(signal.SIGCONT)
                await accounts.send(TRANSFERS)
                await accounts.until_handled()
            finally:
                await end(zombie, *([successor] if successor else []))
            accounts.check()


@pytest.mark.timeout(max(600, 60 * DISTURBANCES))
async def test_outages_of_the_database_neither_lose_nor_double_a_transfer() -> None:
    """Restarts of the server, broken connections, and responses that are lost."""
    with PostgresServer() as server:
        async with ledger(server) as accounts, proxy_to(server.folder) as proxy:
            accounts.url_of_hosts = proxy.url(server.shared().split("/")[3].split("?")[0])
            hosts = [await accounts.start(name) for name in ("anna", "bert")]
            try:
                for _ in range(DISTURBANCES):
                    await accounts.send(TRANSFERS)
                    proxy.silent_after = b"COMMIT"
                    await accounts.send(TRANSFERS)
                    await asyncio.sleep(accounts.rng.uniform(0.1, 1))
                    proxy.recover()
                    proxy.cut()
                    await accounts.until_handled()
                    await accounts.send(TRANSFERS)
                    server.stop()
                    server.restart()
                    await accounts.until_handled()
                    accounts.check()
            finally:
                await end(*hosts)
