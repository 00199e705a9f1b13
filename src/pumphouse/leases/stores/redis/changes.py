"""Notifications of a group's changed rows, by SUBSCRIBE on a connection of its own.

    PUBLISH of a write -> listen -> Change -> processor: list now, instead of at the next interval
                          ^^^^^^ this module

Redis keeps no message for a subscriber that is not connected. So a notification only makes a
listing earlier; every change is found by the next listing too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from redis.asyncio import Connection
from redis.exceptions import RedisError

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.store import Change
from pumphouse.leases.stores.redis.connections import Connections, exchange

# Silence this long may be a dead connection: ask the server.
CHECK_S = 15.0


async def listen(connections: Connections, channel: str) -> AsyncGenerator[Change, None]:
    """The changes that are published on a channel; StoreUnavailable if the connection is lost.

    The first change has no hosts: it concerns everyone, because earlier ones may have been missed.
    """
    connection = await connections.open()
    try:
        async with connections.reported():
            async with asyncio.timeout(connections.deadline_s):
                await exchange(connection, "SUBSCRIBE", channel)
            yield Change()
            async for change in _published(connection, connections.deadline_s):
                yield change
    finally:
        with suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)


async def _published(connection: Connection, deadline_s: float) -> AsyncGenerator[Change, None]:
    is_asked = False
    while True:
        response = await _read(connection, deadline_s if is_asked else CHECK_S)
        if response is None and is_asked:
            raise TimeoutError
        if response is None:
            await connection.send_command("PING")
        is_asked = response is None
        if isinstance(response, list) and len(response) == 3 and response[0] == b"message":
            yield read_change(response[2])


async def _read(connection: Connection, limit_s: float) -> Any:
    """The next message, or None if there is none within this time."""
    try:
        return await connection.read_response(timeout=limit_s, disconnect_on_error=False)
    except RedisError as error:
        raise StoreUnavailable(f"notifications ended: {error}") from None


def read_change(payload: bytes) -> Change:
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
