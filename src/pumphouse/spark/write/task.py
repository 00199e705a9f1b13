"""What a task of the sink does: its rows to the hub, in full batches, every one acknowledged.

RecordBatch -> Shape.events -> by partition -> Sender.send -> acknowledged -> Written
                               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from pumphouse.client.base import HubClient, Sender, encode_event
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
from pumphouse.spark.advice import no_response_error, with_advice
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import HubIdentity, SinkOptions
from pumphouse.spark.write.rows import RowFormat, RowOrigin

log = logging.getLogger("pumphouse.spark")

CHUNK_ROWS = 10_000  # turned into events at a time: what a task holds in memory has a bound
# A message holds events of one key: the more rows are looked at together, the fuller they are.
KEYED_ROWS, KEYED_BYTES = 50_000, 32 << 20


@dataclass(frozen=True, slots=True)
class WriteTotals:
    """What a task wrote."""

    events: int = 0
    bytes: int = 0


class Row(NamedTuple):
    """An event, and which row of the task it was."""

    number: int
    event: Event


def write_rows(
    batches: Iterable[pa.RecordBatch],
    shape: RowFormat,
    options: SinkOptions,
    origin: RowOrigin | None,
) -> WriteTotals:
    """All rows of a task, acknowledged by the hub; or an exception, and Spark runs it again."""
    with asyncio.Runner() as runner:
        work = TaskWriter(shape, options, origin)
        runner.run(work.open())
        try:
            # Rows are taken outside of the loop: it is Spark that we wait for then.
            for some in gathered(batches, shape, options.rate_max):
                runner.run(work.write(some))
        finally:
            runner.run(work.close())
        return work.written


def check_hub_accepts_sender(identity: HubIdentity) -> None:
    """Raise if the hub refuses us: a query shall not wait for its first rows to tell.

    One that does not answer may be away for a moment: that is left to the tasks, which are tried
    again.
    """
    try:
        attach_sender_once(identity)
    except (AuthError, HubNotFound, HubUntrusted, OptionError):
        raise
    except PumphouseError as failed:
        log.warning("the hub could not be asked before there are rows: %s", failed)


@lru_cache(maxsize=64)
def attach_sender_once(identity: HubIdentity) -> None:
    """Spark asks anew for every batch; a place that took us is not bothered again from here."""

    async def meet() -> None:
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

    asyncio.run(meet())


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
    """Rows sent at a time: with a rate, a tenth of a second's, so that they flow evenly."""
    return CHUNK_ROWS if rate_max is None else max(1, min(CHUNK_ROWS, rate_max // 10))


def gathered(
    batches: Iterable[pa.RecordBatch], shape: RowFormat, rate_max: int | None
) -> Iterator[list[pa.RecordBatch]]:
    """Rows that are sent together: one piece of a batch, or several if they have keys."""
    read_in_parallel = shape.key_column is not None and rate_max is None
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces(batches, chunk_rows(rate_max)):
        some.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if not read_in_parallel or rows >= KEYED_ROWS or size >= KEYED_BYTES:
            yield some
            some, rows, size = [], 0, 0
    if some:
        yield some


def pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


class TaskWriter:
    """One task's connection, with a sender for each place its rows go to."""

    def __init__(
        self,
        shape: RowFormat,
        options: SinkOptions,
        origin: RowOrigin | None,
        clock: Clock | None = None,
    ) -> None:
        self.shape = shape
        self.options = options
        self.origin = origin
        self.clock: Clock = clock or SystemClock()
        self.written = WriteTotals()
        self._rows = 0
        self._client: HubClient | None = None
        self._senders: dict[str | None, Sender] = {}
        self._turns = asyncio.Semaphore(options.in_flight)  # of partitions, each with one under way

    async def open(self) -> None:
        self._client = await connect_hub(self.options.identity)
        self._since_s = self.clock.monotonic()

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.__aexit__(None, None, None)

    async def write(self, some: Sequence[pa.RecordBatch]) -> None:
        by_place = self.by_place(some)
        sends = [self.send(place, rows) for place, rows in by_place.items()]
        # Those under way are waited for: cut off, they would all be sent twice.
        for failed in await asyncio.gather(*sends, return_exceptions=True):
            if failed is not None:
                raise failed
        size = sum(len(row.event.body) for rows in by_place.values() for row in rows)
        self.written = WriteTotals(self._rows, self.written.bytes + size)
        await self.keep_pace()

    def by_place(self, some: Sequence[pa.RecordBatch]) -> dict[str | None, list[Row]]:
        """Rows by the partition they go to; None is for the hub to choose."""
        found: defaultdict[str | None, list[Row]] = defaultdict(list)
        for piece in some:
            events = self.shape.events(piece, self._rows, self.origin)
            for number, (partition, event) in enumerate(events, self._rows):
                found[partition].append(Row(number, event))
            self._rows += piece.num_rows
        if self.shape.key_column is not None:
            for rows in found.values():
                # Those of a key side by side make full messages; their order stays.
                rows.sort(key=lambda row: row.event.partition_key or "")
        return found

    async def send(self, partition: str | None, rows: list[Row]) -> None:
        try:
            async with self._turns, asyncio.timeout(self.patience_s(len(rows))):
                sender = await self.sender(partition)
                await sender.send(
                    [row.event for row in rows],
                    batch_bytes_max=self.options.batch_bytes,
                    under_way_max=self.options.in_flight,
                )
        except TimeoutError:
            raise ConnectionFailed(
                f"hub {self.options.identity.hub} did not acknowledge {told(rows)} in time "
                f"({self.options.send_timeout_s:g} s for each message, see sendTimeout)"
            ) from None
        except EventTooLarge as failed:
            # It need not be the body: properties count as well.
            largest = max(rows, key=lambda row: len(encode_event(row.event)))
            raise PumphouseError(
                f"row {largest.number} of the task, with a body of {len(largest.event.body):,} "
                f"bytes: {failed}"
            ) from None
        except PumphouseError as failed:
            where = f"partition {partition}" if partition is not None else "the hub"
            why = with_advice(failed, self.options.identity)
            raise error_type(failed)(f"{told(rows)} to {where}: {why}") from failed

    async def sender(self, partition: str | None) -> Sender:
        found = self._senders.get(partition)
        if found is None:
            assert self._client is not None
            found = self._senders[partition] = await self._client.sender(partition)
        return found

    def patience_s(self, events: int) -> float:
        """`sendTimeout` for each batch that they may need."""
        return self.options.send_timeout_s * (1 + events // 100)

    async def keep_pace(self) -> None:
        if self.options.rate_max is not None:
            due_s = self._since_s + self._rows / self.options.rate_max
            await self.clock.sleep(max(0.0, due_s - self.clock.monotonic()))


def told(rows: list[Row]) -> str:
    first, last = min(row.number for row in rows), max(row.number for row in rows)
    return f"row {first} of the task" if first == last else f"rows {first} to {last} of the task"


def error_type(failed: PumphouseError) -> type[PumphouseError]:
    """Errors with arguments of their own cannot be made from a sentence."""
    return ConnectionFailed if isinstance(failed, ConnectionFailed) else PumphouseError
