"""A hub with all its doors open, and clients that come in by each of them."""

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

WAYS = ("tcp", "tls", "ws", "wss")
DEADLINE_S = 60.0
# Breaks are mended at once; patience is long, because a test may break a connection many times.
QUICK = RetryOptions(attempts=50, first_s=0.001, most_s=0.05)
OPTIONS = ConnectionOptions(rng=Random(7))


def client_by(way: str, hub: EmbeddedHub, **options: Any) -> NativeClient:
    """A client that comes in by one of the doors."""
    tls = way in ("tls", "wss")
    if tls:
        options.setdefault("ca_file", hub.ca_file)
    if way in ("ws", "wss"):
        options |= {"transport": "websocket", "endpoint": f"sb://127.0.0.1:{hub.ws_port}"}
    return NativeClient(
        hub.connection_string("eh", tls=tls), **{"retry": QUICK, "options": OPTIONS, **options}
    )


async def read(reader: NativeReader, count: int, at_once: int = 100) -> list[Event]:
    """So many events; the test fails if they do not come."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += await reader.receive(min(at_once, count - len(events)), 5.0)
    return events


async def read_all(client: NativeClient, partition: str = "0") -> list[Event]:
    """Everything that is in a partition now."""
    properties = await client.partition_properties(partition)
    reader = await client.reader(ReaderOptions(partition))
    found = await read(reader, properties.last_sequence + 1)
    await reader.close()
    return found


def numbered(count: int, key: str | None = None, start: int = 0) -> list[Event]:
    return [Event(b"%d" % number, partition_key=key) for number in range(start, start + count)]


def sequences(events: list[Event]) -> list[int | None]:
    return [event.sequence for event in events]
