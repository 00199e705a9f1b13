"""A ledger whose hosts are killed at every statement: every transfer has its effect exactly once.

LEDGER_KILLS is the number of kills: by default one before and one after each statement of a
transfer; `make ledger` runs 2,000, in several ledgers at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
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
from tests.processor.transactions import ledger_host

KILLS = int(os.environ.get("LEDGER_KILLS", "16"))
LEDGERS = min(8, max(1, KILLS // 24))  # at once: a new host waits for leases most of the time
HUB, PARTITIONS = "transfers", 1
ACCOUNTS = [f"account-{number}" for number in range(4)]
LIMIT_S = 120.0
# Statements of one transfer: BEGIN, the limit of idle time, three rows, checkpoint, COMMIT.
STATEMENTS = 7
FIRST_STATEMENTS = 1 + STATEMENTS  # the first transfer also sets up its connection
TRANSFERS = 3  # sent before each kill: more than are handled before it
DISTURBANCES = max(1, KILLS // 12)
# Hosts are forked from a process that has imported everything: many kills need many hosts.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", ledger_host.__name__])


class Host:
    """A process with a host."""

    def __init__(self, *args: str, environment: dict[str, str]) -> None:
        self._process = FORKS.Process(target=ledger_host.run, args=(*args, environment))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def wait(self) -> int | None:
        async with asyncio.timeout(LIMIT_S):
            while self.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return self.returncode

    async def end(self) -> None:
        if self.returncode is None:
            self._process.kill()
        await self.wait()
        self._process.close()


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

    def start(self, name: str, **environment: str) -> Host:
        where = self.url_of_hosts, self.schema, self.connection
        return Host(*where, name, environment=environment)

    async def until_handled(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.query("SELECT count(*) FROM {schema}.entry") < [(self.sent,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def until_joined(self, hosts: int) -> None:
        """Until this many hosts have reached the database."""
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'"
        members = "SELECT count(*) FROM {schema}.member"
        async with asyncio.timeout(LIMIT_S):
            while self.query(tables) < [(6,)] or self.query(members) < [(hosts,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def check(self) -> None:
        rows = "SELECT count(*), count(DISTINCT (partition_id, sequence)) FROM {schema}.entry"
        ((entries, transfers),) = self.query(rows)
        self.lost, self.doubled = self.sent - transfers, entries - transfers
        assert (self.lost, self.doubled) == (0, 0)
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


@pytest.mark.timeout(max(600, 60 * KILLS))
async def test_killed_hosts_neither_lose_nor_double_a_transfer(postgres: PostgresServer) -> None:
    kills = [range(first, KILLS, LEDGERS) for first in range(LEDGERS)]
    sent = await asyncio.gather(*(kill_hosts(postgres, numbers) for numbers in kills))
    sys.stdout.write(f"{KILLS} kills, {sum(sent)} transfers: 0 lost, 0 doubled\n")


async def kill_hosts(postgres: PostgresServer, kills: range) -> int:
    """Kill a host at each of these; returns how many transfers were sent."""
    async with ledger(postgres) as accounts:
        for kill in kills:
            await accounts.send(TRANSFERS)
            # Each statement of the first two transfers in turn; every second time after it was
            # sent.
            at = 1 + kill // 2 % (FIRST_STATEMENTS + STATEMENTS)
            after = {"KILL_AFTER": "1"} if kill % 2 else {}
            host = accounts.start("host", KILL_AT=str(at), **after)
            try:
                assert await host.wait() == -9
            finally:
                await host.end()
        host = accounts.start("host")
        try:
            await accounts.until_handled()
        finally:
            await host.end()
        accounts.check()
        return accounts.sent


async def until_stopped(process: Host) -> None:
    """Until a process has suspended itself."""
    async with asyncio.timeout(LIMIT_S):
        while state_of(process.pid) != "T":
            assert process.returncode is None, "the host has ended"
            await asyncio.sleep(0.05)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]


@pytest.mark.timeout(max(600, 120 * DISTURBANCES))
@pytest.mark.parametrize(
    ("at", "after"),
    # With the current event; in its transaction; with the commit sent and its response not read.
    [(0, {}), (6, {}), (FIRST_STATEMENTS, {"KILL_AFTER": "1"})],
)
async def test_zombies_neither_lose_nor_double_a_transfer(
    at: int, after: dict[str, str], postgres: PostgresServer
) -> None:
    """A host is suspended in its transaction, another one takes over, the zombie continues."""
    async with ledger(postgres) as accounts:
        for _ in range(DISTURBANCES):
            await accounts.send(TRANSFERS)
            zombie = accounts.start("zombie", STOP_AT=str(at), **after)
            successor = None
            try:
                await until_stopped(zombie)
                successor = accounts.start("successor")
                await accounts.until_handled()
                zombie.send_signal(signal.SIGCONT)
                await accounts.send(TRANSFERS)
                await accounts.until_handled()
            finally:
                await zombie.end()
                if successor is not None:
                    await successor.end()
            accounts.check()


@pytest.mark.timeout(max(600, 60 * DISTURBANCES))
async def test_outages_of_the_database_neither_lose_nor_double_a_transfer() -> None:
    """Restarts of the server, broken connections, and responses that are lost."""
    with PostgresServer() as server:
        async with ledger(server) as accounts, proxy_to(server.folder) as proxy:
            accounts.url_of_hosts = proxy.url(server.shared().split("/")[3].split("?")[0])
            hosts = [accounts.start(name) for name in ("anna", "bert")]
            try:
                await accounts.until_joined(len(hosts))
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
                for host in hosts:
                    await host.end()
