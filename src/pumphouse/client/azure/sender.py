"""A sender over the official SDK.

    Event -> batches (one per key) -> ProducerSlot -> EventHubProducerClient.send_batch
             ^^^^^^^ this module      ^^^^^^^^^^^^

An SDK producer has one pending batch. To have several, a sender to the hub keeps several producers,
each in a slot. All events of a key use the same slot, so their order is kept. A sender to one
partition has one slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pumphouse.client.azure.calls import SdkCaller, close_quietly
from pumphouse.client.azure.events import event_data
from pumphouse.client.base import BATCH_EVENTS_MAX
from pumphouse.client.batches import as_given, event_too_large
from pumphouse.errors import LocalProtocolError, OptionError, PumphouseError
from pumphouse.events import Event

SLOTS = 4
UNDER_WAY_MAX = 8  # batches that wait for their outcome; up to 1 MiB each

MakeProducer = Callable[[], Any]


@dataclass(slots=True)
class ProducerSlot:
    """A producer of the SDK, and the lock for its pending batch."""

    make: MakeProducer
    producer: Any = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def open_producer(self) -> Any:
        if self.producer is None:
            self.producer = self.make()
        return self.producer

    async def post(self, batch: Any) -> None:
        """Send one batch; returns after its acknowledgement."""
        try:
            await self.open_producer().send_batch(batch)
        except asyncio.CancelledError:
            # The outcome of the batch is unknown: the next batch needs a new producer.
            await self.close()
            raise

    async def close(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            await close_quietly(producer.close(), "producer")


class AzureSender:
    """Sends to one partition, or to a hub that chooses the partition by key or in turn."""

    def __init__(self, partition: str | None, make: MakeProducer, caller: SdkCaller) -> None:
        self.partition = partition
        self._caller = caller
        self._slots = [ProducerSlot(make) for _ in range(SLOTS if partition is None else 1)]
        self._accepted = 0
        self._closed = False

    def __repr__(self) -> str:
        target = "any partition" if self.partition is None else f"partition {self.partition}"
        return f"<AzureSender to {target} {self._accepted} accepted>"

    @property
    def accepted(self) -> int:
        return self._accepted

    async def open(self) -> None:
        """Attach the first producer, so that errors are raised now."""
        try:
            await self._caller.call_with_retries(self._new_batch)
        except BaseException:
            await self.close()
            raise

    def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Send events in as few batches as possible; returns their number, all acknowledged.

        After an error `accepted` is the number of acknowledged events.
        """
        # Not a coroutine itself: a coroutine would take the events only when it is awaited.
        return self._send(as_given(events), batch_events_max, batch_bytes_max, under_way_max)

    async def _send(
        self,
        events: Iterable[Event],
        batch_events_max: int,
        batch_bytes_max: int | None,
        under_way_max: int | None,
    ) -> int:
        if self._closed:
            raise LocalProtocolError(f"{self!r} has been closed")
        failed: list[PumphouseError] = []
        acknowledged: list[int] = []
        bounds = (batch_events_max, batch_bytes_max)
        room = asyncio.Semaphore(min(UNDER_WAY_MAX, under_way_max or UNDER_WAY_MAX))
        async with asyncio.TaskGroup() as under_way:
            try:
                async with aclosing(self._batches(events, *bounds)) as batches:
                    async for key, batch in batches:
                        await room.acquire()
                        sending = under_way.create_task(
                            self._deliver(key, batch, acknowledged, failed)
                        )
                        sending.add_done_callback(lambda _: room.release())
                        if failed:
                            break
            except PumphouseError as wrong:
                # Raised later: raised here, it would cancel the pending batches.
                failed.append(wrong)
        if failed:
            raise failed[0]
        return sum(acknowledged)

    async def _deliver(
        self, key: str | None, batch: Any, acknowledged: list[int], failed: list[PumphouseError]
    ) -> None:
        """Send a batch in its turn, unless an earlier one has failed."""
        slot = self._slot_for(key)
        try:
            async with slot.turn:
                if not failed:
                    await self._caller.call_with_retries(lambda: slot.post(batch))
                    acknowledged.append(len(batch))
                    self._accepted += len(batch)
        except PumphouseError as wrong:
            failed.append(wrong)

    def _slot_for(self, key: str | None) -> ProducerSlot:
        """The slot of a key; without a key the first free slot, or the first if none is free."""
        if key is not None:
            return self._slots[crc32(key.encode()) % len(self._slots)]
        return next((slot for slot in self._slots if not slot.turn.locked()), self._slots[0])

    # -- events into batches ----------------------------------------------------------------------

    async def _batches(
        self, events: Iterable[Event], count_max: int, bytes_max: int | None
    ) -> AsyncGenerator[tuple[str | None, Any], None]:
        """Events in as few batches as size, count and keys allow. The order per key is kept."""
        open_batches: dict[str | None, Any] = {}
        open_bytes = 0
        for event in events:
            # To a partition all keys share one batch, and each event carries its own key.
            key = event.partition_key if self.partition is None else None
            data = event_data(event, to_partition=self.partition is not None)
            batch = open_batches.get(key)
            bytes_before = 0 if batch is None else batch.size_in_bytes
            if batch is not None and (len(batch) >= count_max or not try_add(batch, data)):
                yield key, open_batches.pop(key)
                open_bytes, bytes_before, batch = open_bytes - bytes_before, 0, None
            if batch is None:
                batch = open_batches[key] = await self._new_batch_with(key, bytes_max, event, data)
            open_bytes += batch.size_in_bytes - bytes_before
            if open_bytes > batch.max_size_in_bytes:
                # Bounds the memory for many keys: the open batches together hold about one batch.
                for keyed_batch in open_batches.items():
                    yield keyed_batch
                open_batches, open_bytes = {}, 0
        for keyed_batch in open_batches.items():
            yield keyed_batch

    async def _new_batch_with(
        self, key: str | None, bytes_max: int | None, event: Event, data: Any
    ) -> Any:
        """A batch with its first event."""
        batch = await self._caller.call_with_retries(lambda: self._new_batch(key, bytes_max))
        if not try_add(batch, data):
            # The SDK does not report the size of the whole event.
            raise event_too_large(len(event.body), batch.max_size_in_bytes)
        return batch

    async def _new_batch(self, key: str | None = None, bytes_max: int | None = None) -> Any:
        producer = self._slots[0].open_producer()
        batch = await producer.create_batch(partition_id=self.partition, partition_key=key)
        if bytes_max is None or bytes_max >= batch.max_size_in_bytes:
            return batch
        return await producer.create_batch(
            partition_id=self.partition, partition_key=key, max_size_in_bytes=bytes_max
        )

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(slot.close() for slot in self._slots))


def try_add(batch: Any, data: Any) -> bool:
    """Add an event to a batch; False if the batch is full."""
    try:
        batch.add(data)
    except ValueError as wrong:
        # The SDK raises the same class for a full batch and for an invalid event.
        if "reached its size limit" in str(wrong):
            return False
        raise OptionError(f"the event cannot be encoded: {wrong}") from None
    return True
