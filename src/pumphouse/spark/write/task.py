"""Sends the rows of a task to the hub, in full messages, each acknowledged.

RecordBatch -> RowFormat.events -> by partition -> Sender.send -> acknowledged -> WriteTotals
                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import pyarrow as pa

from pumphouse.client.base import HubClient, Sender
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import (
    AuthError,
    ConnectionFailed,
    EventTooLarge,
    HubNotFound,
    HubUntrusted,
    OptionError,
    PumphouseError,
)
from pumphouse.events import Event
from pumphouse.logs import line
from pumphouse.spark.advice import no_response_error, with_advice
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import HubIdentity, SinkOptions
from pumphouse.spark.outages import WAITS, Outage, pause_s
from pumphouse.spark.process_log import describe_process
from pumphouse.spark.write.rows import OutgoingRows, RowFormat, RowOrigin

log = logging.getLogger("pumphouse.spark")

CHUNK_ROWS = 10_000  # converted to events at a time: this bounds the memory of a task
RNG = Random()
# A message holds events of one key: the more rows are grouped, the fuller the messages.
KEYED_ROWS, KEYED_BYTES = 50_000, 32 << 20


@dataclass(frozen=True, slots=True)
class WriteTotals:
    """The events and bytes that a task has written."""

    events: int = 0
    bytes: int = 0


NumberedEvent = tuple[int, Event]  # the number of a row in the task, and its event


def write_rows(
    batches: Iterable[pa.RecordBatch],
    row_format: RowFormat,
    options: SinkOptions,
    origin: RowOrigin | None,
    *,
    is_checked: bool = False,
) -> WriteTotals:
    """Send all rows of a task; raise unless the hub acknowledges all of them.

    `is_checked`: the hub has accepted a sender when the query started. A task without rows then
    opens no connection.
    """
    query = origin.query if origin is not None else ""
    describe_process(query=query, hub=options.identity.hub)
    with asyncio.Runner() as runner:
        writer = TaskWriter(row_format, options, origin)
        try:
            if not is_checked:
                runner.run(writer.open())
            # Rows are taken from Spark outside the event loop: `next` blocks.
            for group in group_batches(batches, row_format, options.rate_max):
                runner.run(writer.write(group))
        finally:
            runner.run(writer.close())
        return writer.totals


def check_hub_accepts_sender(identity: HubIdentity) -> None:
    """When a query starts, raise if the hub refuses its rows.

    A hub that does not respond raises nothing: it may respond when there are rows to write, and
    Spark retries the tasks that write them.
    """
    try:
        attach_sender_once(identity)
    except (AuthError, HubNotFound, HubUntrusted, OptionError):
        raise
    except PumphouseError as failed:
        log.warning(
            "%s",
            line(
                "hub_not_checked", hub=identity.hub, error=failed,
                todo="check that the driver reaches the hub; tasks fail until they reach it",
            ),
        )  # fmt: skip


@lru_cache(maxsize=64)
def attach_sender_once(identity: HubIdentity) -> None:
    """Attach a sender. Spark makes a writer for every batch, so a success is cached."""

    async def attach() -> None:
        client = await connect_hub(identity)
        try:
            async with asyncio.timeout(identity.operation_timeout_s):
                await (await client.sender()).close()
        except TimeoutError:
            raise no_response_error(identity) from None
        except PumphouseError as failed:
            raise with_advice(failed, identity) from failed
        finally:
            await client.__aexit__(None, None, None)

    asyncio.run(attach())


async def connect_hub(identity: HubIdentity) -> HubClient:
    client = open_hub(identity)
    try:
        async with asyncio.timeout(identity.operation_timeout_s):
            return await client.__aenter__()
    except TimeoutError:
        raise no_response_error(identity) from None
    except PumphouseError as failed:
        raise with_advice(failed, identity) from failed


def chunk_rows(rate_max: int | None) -> int:
    """Rows sent at a time; with a rate limit those of a tenth of a second, to send evenly."""
    return CHUNK_ROWS if rate_max is None else max(1, min(CHUNK_ROWS, rate_max // 10))


def group_batches(
    batches: Iterable[pa.RecordBatch], row_format: RowFormat, rate_max: int | None
) -> Iterator[list[pa.RecordBatch]]:
    """Rows that are sent together: one piece of a batch, or several pieces if rows have keys."""
    groups_pieces = row_format.key_column is not None and rate_max is None
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces(batches, chunk_rows(rate_max)):
        group.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if not groups_pieces or rows >= KEYED_ROWS or size >= KEYED_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


class TaskWriter:
    """The connection of one task, with a sender for each partition that its rows go to."""

    def __init__(
        self,
        row_format: RowFormat,
        options: SinkOptions,
        origin: RowOrigin | None,
        clock: Clock | None = None,
    ) -> None:
        self.row_format = row_format
        self.options = options
        self.origin = origin
        self.clock: Clock = clock or SystemClock()
        self.totals = WriteTotals()
        self._rows = 0
        self._client: HubClient | None = None
        self._senders: dict[str | None, Sender] = {}
        # Partitions that send at the same time.
        self._slots = asyncio.Semaphore(options.in_flight)

    async def open(self) -> None:
        if self._client is None:
            self._client = await self.connect()
            self._since_s = self.clock.monotonic()

    async def connect(self) -> HubClient:
        """Connect to the hub; during an outage try again for `outageTimeout`."""
        outage = Outage(self.options.outage_s, contacted=True)
        while True:
            try:
                return await connect_hub(self.options.identity)
            except PumphouseError as failed:
                if not outage.failed(failed, self.clock.monotonic()):
                    raise
                if outage.is_logged():
                    log.warning(
                        "%s",
                        line(
                            "hub_unreachable", hub=self.options.identity.hub, error=failed,
                            count=outage.failures, todo=WAITS,
                        ),
                    )  # fmt: skip
            await self.clock.sleep(pause_s(outage.failures, RNG))

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.__aexit__(None, None, None)

    async def write(self, group: Sequence[pa.RecordBatch]) -> None:
        await self.open()
        by_partition = self.by_partition(group)
        sends = [self.send(partition, rows) for partition, rows in by_partition.items()]
        # After a failure the other sends continue to their end: a cancelled send might store rows
        # after Spark has started the task again.
        for failed in await asyncio.gather(*sends, return_exceptions=True):
            if failed is not None:
                raise failed
        size = sum(rows.body_bytes() for rows in by_partition.values())
        self.totals = WriteTotals(self._rows, self.totals.bytes + size)
        await self.limit_rate()

    def by_partition(self, group: Sequence[pa.RecordBatch]) -> dict[str | None, OutgoingRows]:
        """Rows by the partition they go to; None: the hub chooses."""
        first, row_format = self._rows, self.row_format
        self._rows += sum(piece.num_rows for piece in group)
        if row_format.is_plain(self.origin):
            return {row_format.partition: row_format.plain_rows(group, first)}
        by_partition: defaultdict[str | None, list[NumberedEvent]] = defaultdict(list)
        for piece in group:
            events = row_format.events(piece, first, self.origin)
            for number, (partition, event) in enumerate(events, first):
                by_partition[partition].append((number, event))
            first += piece.num_rows
        if row_format.key_column is not None:
            for rows in by_partition.values():
                # Rows of one key side by side make full messages; the sort keeps their order.
                rows.sort(key=partition_key)
        return {
            partition: OutgoingRows([row[0] for row in rows], [row[1] for row in rows])
            for partition, rows in by_partition.items()
        }

    async def send(self, partition: str | None, rows: OutgoingRows) -> None:
        try:
            async with self._slots, asyncio.timeout(self.send_limit_s(len(rows.numbers))):
                sender = await self.sender(partition)
                await sender.send(
                    rows.events,
                    batch_bytes_max=self.options.batch_bytes,
                    under_way_max=self.options.in_flight,
                )
        except TimeoutError:
            raise ConnectionFailed(
                f"hub {self.options.identity.hub} did not acknowledge {rows} in time "
                f"({self.options.send_timeout_s:g} s for each message, see sendTimeout)"
            ) from None
        except EventTooLarge as failed:
            number, largest = rows.largest()
            raise PumphouseError(
                f"row {number} of the task, with a body of {len(largest.body):,} bytes: {failed}"
            ) from None
        except PumphouseError as failed:
            where = f"partition {partition}" if partition is not None else "the hub"
            why = with_advice(failed, self.options.identity)
            raise error_type(failed)(f"{rows} to {where}: {why}") from failed

    async def sender(self, partition: str | None) -> Sender:
        sender = self._senders.get(partition)
        if sender is None:
            assert self._client is not None
            sender = self._senders[partition] = await self._client.sender(partition)
        return sender

    def send_limit_s(self, events: int) -> float:
        """`sendTimeout` for each message, assuming that a message holds 100 events."""
        return self.options.send_timeout_s * (1 + events // 100)

    async def limit_rate(self) -> None:
        if self.options.rate_max is not None:
            due_s = self._since_s + self._rows / self.options.rate_max
            await self.clock.sleep(max(0.0, due_s - self.clock.monotonic()))


def partition_key(row: NumberedEvent) -> str:
    return row[1].partition_key or ""


def error_type(failed: PumphouseError) -> type[PumphouseError]:
    """The class to raise with a new message: subclasses take other arguments."""
    return ConnectionFailed if isinstance(failed, ConnectionFailed) else PumphouseError
