"""Reads a range through any client that returns encoded messages, into the same record batches.

The azure driver uses this: the SDK receives the messages, and the same decoder that the native
driver uses for single messages turns them into columns. So both drivers return the same rows for
the same event. The SDK costs many times the CPU of `BulkClient`.

    MessageReader.receive_messages -> read_range_of_messages -> RecordBatch
                                      ^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa

from pumphouse.amqp.messages import Message, decode_message
from pumphouse.client.base import PREFETCH, HubClient, MessageReader, ReaderOptions
from pumphouse.client.batches import SEQUENCE
from pumphouse.client.bulk.arrays import invalid_sequence
from pumphouse.client.bulk.arrow import BatchBuilder, MessageRows, Rows
from pumphouse.client.bulk.ranges import EventsGone, RangeOptions, RangeTimeout
from pumphouse.events import Position


def read_range_of_messages(
    client: HubClient,
    partition: str,
    first: int,
    last: int,
    options: RangeOptions,
    prefetch: int = PREFETCH,
) -> Iterator[pa.RecordBatch]:
    """The events of a partition from `first` up to, not including, `last`.

    `client` must not be entered yet. Its event loop runs only while the next batch is requested.
    """
    with asyncio.Runner() as runner:
        reader = MessageRangeReader(client, partition, first, last, options, prefetch)
        try:
            runner.run(reader.open())
            while reader.next < last:
                yield runner.run(reader.next_batch())
        finally:
            runner.run(reader.close())


class MessageRangeReader:
    """Reads one range with a message reader."""

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
        self._builder = BatchBuilder(partition, options.columns)
        self._reader: MessageReader | None = None

    async def open(self) -> None:
        await self.client.__aenter__()
        options = ReaderOptions(
            self.partition,
            self.options.group,
            Position("sequence", str(self.next), inclusive=True),
            epoch=self.options.epoch,
            prefetch=self.prefetch,
            name=self.options.receiver_name or "",
        )
        self._reader = await self.client.message_reader(options)

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)

    async def next_batch(self) -> pa.RecordBatch:
        rows = min(self.options.batch_rows, self.last - self.next)
        messages: list[Message] = []
        size = 0
        while len(messages) < rows and size < self.options.batch_bytes:
            payloads = await self.receive(rows - len(messages), self.next + len(messages))
            for payload in payloads:
                if self.append(messages, decode_message(payload)):
                    size += len(payload)
        self.next += len(messages)
        return Rows(self._builder, [], [MessageRows(messages)], None).batch()

    def append(self, messages: list[Message], message: Message) -> bool:
        """Append the message with the expected sequence number; False for a duplicate."""
        expected, sequence = self.next + len(messages), message.annotations.get(SEQUENCE)
        if not isinstance(sequence, int):
            raise invalid_sequence(sequence)
        if sequence > expected:
            raise EventsGone(self.partition, expected, sequence)
        if sequence == expected:
            messages.append(message)
        return sequence == expected

    async def receive(self, max_events: int, expected: int) -> list[bytes]:
        assert self._reader is not None
        payloads = await self._reader.receive_messages(max_events, self.options.deadline_s)
        if payloads:
            return payloads
        properties = await self.client.partition_properties(self.partition)
        if properties.first_sequence > expected:
            raise EventsGone(self.partition, expected, properties.first_sequence)
        raise RangeTimeout(self.partition, expected, self.last, self.options.deadline_s)
