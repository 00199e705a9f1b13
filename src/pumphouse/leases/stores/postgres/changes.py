"""Notifications of a group's changed rows, by LISTEN on a connection of its own.

    NOTIFY of a write -> listen -> Change -> processor: list now, instead of at the next interval
                         ^^^^^^ this module

A notification can be lost: with the connection, with a failover, or behind a pooler that shares
connections. So it only makes a listing earlier; every change is found by the next listing too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import psycopg

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.store import Change
from pumphouse.leases.stores.postgres.connections import (
    Connection,
    Connections,
    interruptible,
)

# After this time without a notification, the connection may be dead: check it.
CHECK_S = 15.0


async def listen(connections: Connections, channel: str) -> AsyncGenerator[Change, None]:
    """The changes that are notified on a channel; StoreUnavailable if the connection is lost.

    The first change has no hosts: it concerns everyone, because earlier ones may have been missed.
    """
    async with connections.reported(), asyncio.timeout(connections.deadline_s):
        connection = await connections.connect()
        try:
            await interruptible(connection, _start(connection, channel))
        except BaseException:
            connections.discard(connection)
            raise
    try:
        yield Change()
        while True:
            async for payload in _payloads(connections, connection):
                yield read_change(payload)
            async with connections.reported(), asyncio.timeout(connections.deadline_s):
                await interruptible(connection, _check(connection))
    finally:
        connections.discard(connection)


async def _start(connection: Connection, channel: str) -> None:
    await connection.execute(f"LISTEN {channel}")


async def _check(connection: Connection) -> None:
    await connection.execute("SELECT 1")


async def _payloads(connections: Connections, connection: Connection) -> AsyncGenerator[str, None]:
    """The payloads that arrive within CHECK_S."""
    try:
        async for notify in connection.notifies(timeout=CHECK_S):
            yield notify.payload
    except psycopg.Error as error:
        raise StoreUnavailable(f"{connections.name}: notifications ended: {error}") from None


def read_change(payload: str) -> Change:
    """The change of a payload; one that concerns everyone if it cannot be read."""
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        return Change()
    if not isinstance(values, list) or len(values) != 4:
        return Change()
    partition, former, owner, successor = map(str, values)
    # A released partition is free for every host.
    hosts = frozenset(name for name in (former, owner, successor) if name) if owner else None
    return Change(partition, hosts)
