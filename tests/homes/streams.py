"""Events into a hub and out of it, and queries to their end, for the tests of the stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TO_THE_END = {"availableNow": True}
ENDED_S = 500
STARTS_MAX = 8
TOO_SLOW = "failed to connect back"


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query to its end. Spark gives the Python process that plans a state ten seconds to start,
    and nobody can tell it otherwise; on a busy machine it is started again, as a pipeline does."""
    from pyspark.errors import StreamingQueryException

    for tries in range(STARTS_MAX):
        query = start()
        try:
            assert query.awaitTermination(ENDED_S), "the query did not end"
            return query
        except StreamingQueryException as failed:
            if TOO_SLOW not in str(failed) or tries == STARTS_MAX - 1:
                raise
    raise AssertionError("not reached")


def connection(namespace: HomesNamespace, hub: str) -> str:
    return f"{namespace.connection};EntityPath={hub}"


def put(namespace: HomesNamespace, hub: str, events: Iterable[Event]) -> None:
    async def work() -> None:
        async with open_client(connection(namespace, hub)) as client:
            await (await client.sender()).send(events)

    asyncio.run(work())


def put_in_turn(namespace: HomesNamespace, hub: str, slices: Iterable[Iterable[Event]]) -> None:
    """Slice after slice: in one go the events of a home would overtake those of others by hours."""

    async def work() -> None:
        async with open_client(connection(namespace, hub)) as client:
            sender = await client.sender()
            for events in slices:
                await sender.send(events)

    asyncio.run(work())


def read_all(namespace: HomesNamespace, hub: str) -> list[Event]:
    async def work() -> list[Event]:
        found: list[Event] = []
        async with open_client(connection(namespace, hub)) as client:
            for partition in (await client.properties()).partitions:
                last = (await client.partition_properties(partition)).last_sequence
                reader = await client.reader(ReaderOptions(partition, prefetch=2000))
                following = 0
                while following <= last:
                    events = await reader.receive(2000, 60)
                    assert events, f"{hub}/{partition} said nothing for a minute"
                    found += events
                    following = (events[-1].sequence or 0) + 1
        return found

    return asyncio.run(work())
