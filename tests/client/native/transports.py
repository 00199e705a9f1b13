"""Clients of a hub over each of its listeners."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.reader import NativeReader
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub

TRANSPORTS = ("tcp", "tls", "ws", "wss")
DEADLINE_S = 60.0
# Short delays and many attempts, because a test may break a connection many times.
QUICK = RetryOptions(attempts=50, first_s=0.001, most_s=0.05)
OPTIONS = ConnectionOptions(rng=Random(7))


def client_over(transport: str, hub: EmbeddedHub, **options: Any) -> NativeClient:
    """A client over one of the transports."""
    tls = transport in ("tls", "wss")
    if tls:
        options.setdefault("ca_file", hub.ca_file)
    if transport in ("ws", "wss"):
        options |= {"transport": "websocket", "endpoint": f"sb://127.0.0.1:{hub.ws_port}"}
    return NativeClient(
        hub.connection_string("eh", tls=tls), **{"retry": QUICK, "options": OPTIONS, **options}
    )


async def read(reader: NativeReader, count: int, at_once: int = 100) -> list[Event]:
    """Receive `count` events, or fail at the deadline."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += await reader.receive(min(at_once, count - len(events)), 5.0)
    return events


async def read_all(client: NativeClient, partition: str = "0") -> list[Event]:
    """All events of a partition."""
    properties = await client.partition_properties(partition)
    reader = await client.reader(ReaderOptions(partition))
    events = await read(reader, properties.last_sequence + 1)
    await reader.close()
    return events


def numbered(count: int, key: str | None = None, start: int = 0) -> list[Event]:
    return [Event(b"%d" % number, partition_key=key) for number in range(start, start + count)]


def sequences(events: list[Event]) -> list[int | None]:
    return [event.sequence for event in events]
