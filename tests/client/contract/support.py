"""Helpers of the contract tests: a hub, used by each driver and over each listener.

A test names neither driver nor listener. It takes `target` (or `client`) and runs once for each
driver. A test of the network route uses `@every_listener`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from pumphouse.amqp.messages import BATCH_FORMAT, encode_batch
from pumphouse.client.azure.client import AzureClient
from pumphouse.client.base import HubClient, Reader, ReaderOptions, RetryOptions, encode_event
from pumphouse.client.metered import MeteredClient
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.consumer import ConsumerLink
from pumphouse.hub.namespace import Partition

# Ends a wait that never succeeds; no test depends on speed.
DEADLINE_S = 60.0

DRIVERS: dict[str, Callable[..., HubClient]] = {
    "native": NativeClient,
    "azure": AzureClient,
    "metered": lambda *arguments, **options: MeteredClient(NativeClient(*arguments, **options)),
}
LISTENERS = ("plain", "tls", "ws", "wss")
every_listener = pytest.mark.parametrize("listener", LISTENERS)

# Enough attempts for a busy machine, with short delays.
PATIENT = RetryOptions(attempts=30, first_s=0.05, most_s=1.0)
HASTY = RetryOptions(attempts=2, first_s=0.01, most_s=0.02)


hub_of_client: WeakKeyDictionary[HubClient, EmbeddedHub] = WeakKeyDictionary()


@dataclass(frozen=True)
class DriverTarget:
    """One event hub, and the driver and listener to reach it."""

    hub: EmbeddedHub
    name: str
    driver: str
    listener: str = "plain"

    def client(self, rule: str = "", name: str | None = None, **options: Any) -> HubClient:
        """A client of this hub, or of another one ("" is the namespace)."""
        tls = self.listener in ("tls", "wss")
        text = self.hub.connection_string(None, **({"rule": rule} if rule else {}), tls=tls)
        return self.client_with(text, self.name if name is None else name, **options)

    def client_with(self, connection: str, hub: str, **options: Any) -> HubClient:
        arguments: dict[str, Any] = {"retry": PATIENT}
        if self.listener in ("tls", "wss"):
            arguments["ca_file"] = self.hub.ca_file
        if self.listener in ("ws", "wss"):
            arguments |= {"transport": "websocket", "endpoint": f"127.0.0.1:{self.hub.ws_port}"}
        client = DRIVERS[self.driver](connection, hub, **{**arguments, **options})
        hub_of_client[client] = self.hub
        return client

    # -- state of the hub -------------------------------------------------------------------------

    def partition(self, number: int | str = 0) -> Partition:
        return self.hub.namespace.hub(self.name).partitions[int(number)]

    def count(self, number: int | str = 0) -> int:
        """The number of stored events."""
        return self.partition(number).log.next_sequence

    def counts(self) -> list[int]:
        partitions = self.hub.namespace.hub(self.name).partitions
        return [partition.log.next_sequence for partition in partitions]

    def consumer_links(self, number: int | str = 0, group: str = "$default") -> list[ConsumerLink]:
        """The consumer links of a partition in the hub."""
        return list(self.partition(number).readers.get(group, []))  # type: ignore[arg-type]

    def granted(self, consumer: ConsumerLink) -> int:
        """The sequence number up to which the hub may send."""
        return self.hub._call(lambda: consumer.next_sequence + consumer.link.credit)

    async def empty(self, number: int | str = 0, group: str = "$default") -> None:
        """Wait until a partition has no readers."""
        await eventually(lambda: not self.consumer_links(number, group))


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for a condition that has no event."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S} s"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(hub: EmbeddedHub) -> AsyncIterator[EmbeddedHub]:
    """A hub for one test, on a thread, so that clients on this loop receive its close."""
    await asyncio.to_thread(hub.__enter__)
    try:
        yield hub
    finally:
        await asyncio.to_thread(hub.__exit__)


# -- reading and sending --------------------------------------------------------------------------


async def take(reader: Reader, count: int, at_once: int = 1000) -> list[Event]:
    """Receive `count` events, or fail at the deadline."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += await reader.receive(min(at_once, count - len(events)), DEADLINE_S)
    return events


async def read(client: HubClient, partition: str, count: int, **options: Any) -> list[Event]:
    """Read the first events with a new reader."""
    reader = await client.reader(ReaderOptions(partition, **options))
    events = await take(reader, count)
    await reader.close()
    return events


async def fill(client: HubClient, partition: str, count: int, start: int = 0) -> None:
    """Store numbered events, directly in the hub: the azure driver needs seconds to send them."""
    hub = hub_of_client[client]
    payloads = [encode_event(event) for event in numbered(count, start)]
    batch = parse_payload(encode_batch(payloads), BATCH_FORMAT)

    def publish() -> None:
        stored = hub.namespace.hub(client.hub).partitions[int(partition)]
        hub.namespace.publish(stored, batch, None, lambda failure: None)

    await asyncio.to_thread(hub._call, publish)


def numbered(count: int, start: int = 0, key: str | None = None) -> list[Event]:
    return [Event(b"%d" % number, partition_key=key) for number in range(start, start + count)]


def bodies(events: Iterable[Event]) -> list[bytes]:
    return [event.body for event in events]


def sequences(events: Iterable[Event]) -> list[int | None]:
    return [event.sequence for event in events]
