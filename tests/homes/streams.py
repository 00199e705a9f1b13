"""Sends events to a hub, reads them back, and runs queries to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from benchmarks._spark_start import STARTS_MAX, TOO_SLOW
from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TO_THE_END = {"availableNow": True}
ENDED_S = 500


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query to its end. The Python process that plans a state has the same time limit as that
    of a source, and is needed later: on a busy machine the query is restarted, as by a pipeline."""
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
    """Send one slice after the other: in one call, some homes would be hours ahead of others."""

    async def work() -> None:
        async with open_client(connection(namespace, hub)) as client:
            sender = await client.sender()
            for events in slices:
                await sender.send(events)

    asyncio.run(work())


def read_all(namespace: HomesNamespace, hub: str) -> list[Event]:
    async def work() -> list[Event]:
        received: list[Event] = []
        async with open_client(connection(namespace, hub)) as client:
            for partition in (await client.properties()).partitions:
                last = (await client.partition_properties(partition)).last_sequence
                reader = await client.reader(ReaderOptions(partition, prefetch=2000))
                following = 0
                while following <= last:
                    events = await reader.receive(2000, 60)
                    assert events, f"{hub}/{partition} sent no event for a minute"
                    received += events
                    following = (events[-1].sequence or 0) + 1
        return received

    return asyncio.run(work())
