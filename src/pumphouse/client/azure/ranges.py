"""A range of events read by the official SDK, as the same record batches.

The SDK speaks to the hub; what it delivers is turned into columns by the code that also reads odd
messages for the native driver, so both drivers say the same of the same event. It is for those who
trust the SDK more than us: it costs many times the CPU.

    AzureReader.receive_payloads -> read_range -> Alone -> RecordBatch
                                    ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from pumphouse.amqp.messages import Message, decode_message
from pumphouse.client.azure.reader import AzureReader
from pumphouse.client.base import PREFETCH, HubClient, ReaderOptions
from pumphouse.client.batches import SEQUENCE
from pumphouse.client.bulk.arrow import Alone, Batches, Rows
from pumphouse.client.bulk.client import EventsGone, RangeOptions, RangeTimeout
from pumphouse.errors import RemoteProtocolError
from pumphouse.events import Position


def read_range(
    client: HubClient,
    partition: str,
    first: int,
    last: int,
    options: RangeOptions,
    prefetch: int = PREFETCH,
) -> Iterator[pa.RecordBatch]:
    """The events of a partition from `first` up to, not including, `last`.

    `client` is one that nobody has entered yet, of the azure driver. The loop that it runs in
    stands still while the rows are taken.
    """
    with asyncio.Runner() as runner:
        work = OfficialRange(client, partition, first, last, options, prefetch)
        try:
            runner.run(work.open())
            while work.next < last:
                yield runner.run(work.next_batch())
        finally:
            runner.run(work.close())


class OfficialRange:
    """Reads one range with a reader of the official SDK."""

    def __init__(
        self,
        client: HubClient,
        partition: str,
        first: int,
        last: int,
        options: RangeOptions,
        prefetch: int,
    ) -> None:
        self.client = client
        self.partition = partition
        self.next = first
        self.last = last
        self.options = options
        self.prefetch = min(prefetch, last - first)
        self._batches = Batches(partition, options.columns)
        self._reader: AzureReader | None = None

    async def open(self) -> None:
        await self.client.__aenter__()
        start = Position("sequence", str(self.next), inclusive=True)
        options = ReaderOptions(
            self.partition,
            self.options.group,
            start,
            epoch=self.options.epoch,
            prefetch=self.prefetch,
            name=self.options.receiver_name or "",
        )
        self._reader = cast(AzureReader, await self.client.reader(options))

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)

    async def next_batch(self) -> pa.RecordBatch:
        wanted = min(self.options.batch_rows, self.last - self.next)
        messages: list[Message] = []
        size = 0
        while len(messages) < wanted and size < self.options.batch_bytes:
            payloads = await self.receive(wanted - len(messages), self.next + len(messages))
            for payload in payloads:
                if self.take(messages, decode_message(payload)):
                    size += len(payload)
        self.next += len(messages)
        return Rows(self._batches, [], [Alone(messages)], None).batch()

    def take(self, messages: list[Message], message: Message) -> bool:
        """Add the event that must come next; False for one that came before."""
        wanted, came = self.next + len(messages), message.annotations.get(SEQUENCE)
        if not isinstance(came, int):
            raise RemoteProtocolError(f"an event came with {came!r} as its sequence number")
        if came > wanted:
            raise EventsGone(self.partition, wanted, came)
        if came == wanted:
            messages.append(message)
        return came == wanted

    async def receive(self, most: int, wanted: int) -> list[bytes]:
        assert self._reader is not None
        payloads = await self._reader.receive_payloads(most, self.options.deadline_s)
        if payloads:
            return payloads
        found = await self.client.partition_properties(self.partition)
        if found.first_sequence > wanted:
            raise EventsGone(self.partition, wanted, found.first_sequence)
        raise RangeTimeout(self.partition, wanted, self.last, self.options.deadline_s)
