"""A consumer group of the hub `orders` with events, a store, and commands that use both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Granted, Group, Ownership
from pumphouse.leases.stores.sqlite.store import SqliteStore


class OrdersGroup:
    """Runs commands with a store and the hub `orders`, which has ten events per partition."""

    def __init__(self, call: Callable[..., Result], event_hub: EmbeddedHub, folder: Path) -> None:
        self.call, self.hub, self.path = call, event_hub, folder / "leases.db"
        self.connection = event_hub.connection_string("orders")
        with_client(self.connection, self.fill)

    async def fill(self, client: Any) -> None:
        self.group = Group(client.namespace, "orders")
        for partition in ("0", "1"):
            sender = await client.sender(partition)
            await sender.send([Event(b"%d" % number) for number in range(10)])

    def run(self, *args: str) -> Result:
        store = ("--store", str(self.path), "--hub", "orders")
        return self.call(*args, *store)

    def write(self, *rows: Ownership | Checkpoint) -> None:
        async def work() -> None:
            async with SqliteStore(self.path) as store:
                for row in rows:
                    if isinstance(row, Ownership):
                        (outcome,) = await store.claim_ownership(self.group, [row])
                        assert isinstance(outcome, Granted)
                    else:
                        assert isinstance(await store.update_checkpoint(row), Granted)

        asyncio.run(work())

    def checkpoint(self, partition: str, sequence: int) -> Checkpoint:
        done = event_at(self.connection, partition, sequence)
        return Checkpoint(
            self.group, partition, sequence, done.offset, 1, enqueued_ms=done.enqueued_ms
        )

    def rows(self) -> list[Ownership]:
        async def work() -> list[Ownership]:
            async with SqliteStore(self.path) as store:
                return list((await store.list_ownership(self.group)).ownerships)

        return asyncio.run(work())

    def stored(self, group: str = "$Default") -> dict[str, Checkpoint]:
        async def work() -> list[Checkpoint]:
            async with SqliteStore(self.path) as store:
                return await store.list_checkpoints(replace(self.group, name=group))

        return {row.partition: row for row in asyncio.run(work())}


def with_client(connection: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with open_client(connection) as client:
            return await work(client)

    return asyncio.run(run())


def event_at(connection: str, partition: str, sequence: int) -> Event:
    from pumphouse.client.base import ReaderOptions
    from pumphouse.events import Position

    async def read(client: Any) -> Event:
        position = Position("sequence", str(sequence), inclusive=True)
        reader = await client.reader(ReaderOptions(partition, position=position))
        events: list[Event] = await reader.receive(1, 30)
        return events[0]

    done: Event = with_client(connection, read)
    return done
