"""What the contract's tests share: a hub to speak to, by each driver and through each door.

A test names neither driver nor door. It takes `place` (or `client`) and runs once for each driver;
a test that is about the way to the hub says so with `@every_door`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pumphouse.client.azure.client import AzureClient
from pumphouse.client.base import HubClient, Reader, ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.consumer import ConsumerLink
from pumphouse.hub.namespace import Partition

# No judgement depends on speed: this only ends a wait for something that will not come.
DEADLINE_S = 60.0

DRIVERS: dict[str, Callable[..., HubClient]] = {"native": NativeClient, "azure": AzureClient}
DOORS = ("plain", "tls", "ws", "wss")
every_door = pytest.mark.parametrize("door", DOORS)

# Patient enough for a busy machine, and quick, because the hub comes back at once.
PATIENT = RetryOptions(attempts=30, first_s=0.05, most_s=1.0)
HASTY = RetryOptions(attempts=2, first_s=0.01, most_s=0.02)


@dataclass(frozen=True)
class Place:
    """One event hub, and the way by which a driver comes to it."""

    hub: EmbeddedHub
    name: str
    driver: str
    door: str = "plain"

    def client(self, rule: str = "", name: str | None = None, **options: Any) -> HubClient:
        """A client of this hub, or of the one that is named ("" is the namespace)."""
        tls = self.door in ("tls", "wss")
        text = self.hub.connection_string(None, **({"rule": rule} if rule else {}), tls=tls)
        return self.client_with(text, self.name if name is None else name, **options)

    def client_with(self, connection: str, hub: str, **options: Any) -> HubClient:
        way: dict[str, Any] = {"retry": PATIENT}
        if self.door in ("tls", "wss"):
            way["ca_file"] = self.hub.ca_file
        if self.door in ("ws", "wss"):
            way |= {"transport": "websocket", "endpoint": f"127.0.0.1:{self.hub.ws_port}"}
        return DRIVERS[self.driver](connection, hub, **{**way, **options})

    # -- what the hub knows -----------------------------------------------------------------------

    def partition(self, number: int | str = 0) -> Partition:
        return self.hub.namespace.hub(self.name).partitions[int(number)]

    def count(self, number: int | str = 0) -> int:
        """How many events the hub has stored there."""
        return self.partition(number).log.next_sequence

    def counts(self) -> list[int]:
        partitions = self.hub.namespace.hub(self.name).partitions
        return [partition.log.next_sequence for partition in partitions]

    def outlets(self, number: int | str = 0, group: str = "$default") -> list[ConsumerLink]:
        """The readers on a partition, from the hub's side."""
        return list(self.partition(number).readers.get(group, []))  # type: ignore[arg-type]

    def granted(self, outlet: ConsumerLink) -> int:
        """Up to where the hub has sent and may send, as of one moment."""
        return self.hub._call(lambda: outlet.next_sequence + outlet.link.credit)

    async def empty(self, number: int | str = 0, group: str = "$default") -> None:
        """Wait until nobody reads a partition."""
        await eventually(lambda: not self.outlets(number, group))


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for something that no event tells of."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S} s"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(hub: EmbeddedHub) -> AsyncIterator[EmbeddedHub]:
    """A hub of a test's own, on a thread. Clients on this loop hear it say good-bye."""
    await asyncio.to_thread(hub.__enter__)
    try:
        yield hub
    finally:
        await asyncio.to_thread(hub.__exit__)


# -- reading and sending --------------------------------------------------------------------------


async def take(reader: Reader, count: int, at_once: int = 1000) -> list[Event]:
    """So many events; the test fails if they do not come."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += await reader.receive(min(at_once, count - len(events)), DEADLINE_S)
    return events


async def read(client: HubClient, partition: str, count: int, **options: Any) -> list[Event]:
    """The first events from somewhere, by a reader of their own."""
    reader = await client.reader(ReaderOptions(partition, **options))
    events = await take(reader, count)
    await reader.close()
    return events


async def fill(client: HubClient, partition: str, count: int, start: int = 0) -> None:
    """Numbered events into a partition."""
    sender = await client.sender(partition)
    await sender.send(numbered(count, start))
    await sender.close()


def numbered(count: int, start: int = 0, key: str | None = None) -> list[Event]:
    return [Event(b"%d" % number, partition_key=key) for number in range(start, start + count)]


def bodies(events: Iterable[Event]) -> list[bytes]:
    return [event.body for event in events]


def sequences(events: Iterable[Event]) -> list[int | None]:
    return [event.sequence for event in events]
