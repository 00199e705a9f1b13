"""A sender over the official SDK: events into batches, batches into lanes.

    Event -> bundles (one per key) -> Lane -> EventHubProducerClient.send_batch
             ^^^^^^^ this module      ^^^^

The SDK has one batch under way per producer. To have several, a sender to the hub keeps several
producers, called lanes. All events of a key take the same lane, so their order is kept; those to
one partition have only one lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pumphouse.client.azure.calls import Caller, bounded
from pumphouse.client.azure.events import event_data
from pumphouse.client.base import BATCH_EVENTS_MAX
from pumphouse.client.batches import too_large
from pumphouse.errors import LocalProtocolError, OptionError, PumphouseError
from pumphouse.events import Event

LANES = 4
UNDER_WAY_MAX = 8  # batches that wait for their outcome; up to 1 MiB each

MakeProducer = Callable[[], Any]


@dataclass(slots=True)
class Lane:
    """A producer of the SDK, and whose turn it is."""

    make: MakeProducer
    producer: Any = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ready(self) -> Any:
        if self.producer is None:
            self.producer = self.make()
        return self.producer

    async def post(self, batch: Any) -> None:
        """Send one batch; it is acknowledged when this returns."""
        try:
            await self.ready().send_batch(batch)
        except asyncio.CancelledError:
            # It was interrupted, by its deadline or by the user, with a batch on the link.
            await self.close()
            raise

    async def close(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            await bounded(producer.close(), "producer")


class AzureSender:
    """Sends to one partition, or to a hub that chooses by key or in turn."""

    def __init__(self, partition: str | None, make: MakeProducer, caller: Caller) -> None:
        self.partition = partition
        self._caller = caller
        self._lanes = [Lane(make) for _ in range(LANES if partition is None else 1)]
        self._accepted = 0
        self._closed = False

    def __repr__(self) -> str:
        place = "any partition" if self.partition is None else f"partition {self.partition}"
        return f"<AzureSender to {place} {self._accepted} accepted>"

    @property
    def accepted(self) -> int:
        return self._accepted

    async def open(self) -> None:
        """Attach the first lane, so that an error shows now."""
        try:
            await self._caller.persist(self._new_batch)
        except BaseException:
            await self.close()
            raise

    async def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> int:
        """Send events in as few batches as fit; how many they were, once all are acknowledged.

        After an error `accepted` tells how many were taken for sure.
        """
        if self._closed:
            raise LocalProtocolError(f"{self!r} has been closed")
        failed: list[PumphouseError] = []
        taken: list[int] = []
        bounds = (batch_events_max, batch_bytes_max)
        room = asyncio.Semaphore(min(UNDER_WAY_MAX, under_way_max or UNDER_WAY_MAX))
        async with asyncio.TaskGroup() as under_way:
            try:
                async with aclosing(self._bundles(events, *bounds)) as bundles:
                    async for key, batch in bundles:
                        await room.acquire()
                        sending = under_way.create_task(self._deliver(key, batch, taken, failed))
                        sending.add_done_callback(lambda _: room.release())
                        if failed:
                            break
            except PumphouseError as wrong:
                # What is under way is not to be cut off by it.
                failed.append(wrong)
        if failed:
            raise failed[0]
        return sum(taken)

    async def _deliver(
        self, key: str | None, batch: Any, taken: list[int], failed: list[PumphouseError]
    ) -> None:
        """Send a batch when it is its turn, unless one before it has failed."""
        lane = self._lane_for(key)
        try:
            async with lane.turn:
                if not failed:
                    await self._caller.persist(lambda: lane.post(batch))
                    taken.append(len(batch))
                    self._accepted += len(batch)
        except PumphouseError as wrong:
            failed.append(wrong)

    def _lane_for(self, key: str | None) -> Lane:
        """Always the same for a key; without one the first that is free."""
        if key is not None:
            return self._lanes[crc32(key.encode()) % len(self._lanes)]
        return next((lane for lane in self._lanes if not lane.turn.locked()), self._lanes[0])

    # -- events into batches ----------------------------------------------------------------------

    async def _bundles(
        self, events: Iterable[Event], count_max: int, bytes_max: int | None
    ) -> AsyncGenerator[tuple[str | None, Any], None]:
        """Events in as few batches as size, count and keys allow; the order per key is kept."""
        waiting: dict[str | None, Any] = {}
        held = 0
        for event in events:
            # To a partition all go in one row, and each event carries its own key.
            key = event.partition_key if self.partition is None else None
            data = event_data(event, to_partition=self.partition is not None)
            batch = waiting.get(key)
            before = 0 if batch is None else batch.size_in_bytes
            if batch is not None and (len(batch) >= count_max or not added(batch, data)):
                yield key, waiting.pop(key)
                held, before, batch = held - before, 0, None
            if batch is None:
                batch = waiting[key] = await self._begun(key, bytes_max, event, data)
            held += batch.size_in_bytes - before
            if held > batch.max_size_in_bytes:
                # Many keys, few events each: all that waits is bounded by one batch.
                for bundle in waiting.items():
                    yield bundle
                waiting, held = {}, 0
        for bundle in waiting.items():
            yield bundle

    async def _begun(self, key: str | None, bytes_max: int | None, event: Event, data: Any) -> Any:
        """A batch with its first event."""
        batch = await self._caller.persist(lambda: self._new_batch(key, bytes_max))
        if not added(batch, data):
            # The SDK does not say how large it is; the properties are the rest.
            raise too_large(len(event.body), batch.max_size_in_bytes)
        return batch

    async def _new_batch(self, key: str | None = None, bytes_max: int | None = None) -> Any:
        producer = self._lanes[0].ready()
        batch = await producer.create_batch(partition_id=self.partition, partition_key=key)
        if bytes_max is None or bytes_max >= batch.max_size_in_bytes:
            return batch
        return await producer.create_batch(
            partition_id=self.partition, partition_key=key, max_size_in_bytes=bytes_max
        )

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(lane.close() for lane in self._lanes))


def added(batch: Any, data: Any) -> bool:
    """Whether an event fits into a batch; it is in there then."""
    try:
        batch.add(data)
    except ValueError as wrong:
        # The SDK has one class for "full" and for what cannot be encoded at all.
        if "reached its size limit" in str(wrong):
            return False
        raise OptionError(f"the event cannot be encoded: {wrong}") from None
    return True
