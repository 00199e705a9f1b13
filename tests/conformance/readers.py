"""Readers of the official client: what they received, and waiting for more."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from azure.eventhub import CloseReason, EventData, EventDataBatch, PartitionContext
from azure.eventhub.exceptions import EventHubError

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.entity import DEADLINE_S, Entity, Refusals, eventually

MILLISECOND = timedelta(milliseconds=1)

# -- what came back -------------------------------------------------------------------------------


def body(event: EventData) -> bytes:
    """The body of an event that was sent as data."""
    return b"".join(event.body)  # type: ignore[arg-type]


def bodies(events: Iterable[EventData]) -> list[bytes]:
    return [body(event) for event in events]


def sequences(events: Iterable[EventData]) -> list[int | None]:
    return [event.sequence_number for event in events]


def condition(error: BaseException) -> str | None:
    """The AMQP condition as the SDK keeps it: without the part before the first colon."""
    assert isinstance(error, EventHubError), repr(error)
    return error.error


def fill(batch: EventDataBatch, content: bytes) -> None:
    """Add events to a batch until it is full."""
    while True:
        batch.add(EventData(content))


def numbered(count: int, start: int = 0) -> list[EventData]:
    return [EventData(str(number)) for number in range(start, start + count)]


# -- readers --------------------------------------------------------------------------------------


@dataclass
class Reader:
    """A running `receive`, and what it has called back with so far."""

    what: str
    reports_refusals: bool
    events: list[EventData] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)  # as they came: an event, a list, or None
    contexts: list[PartitionContext] = field(default_factory=list)  # one for each call
    errors: list[Exception] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)  # partitions, as they were initialised
    closed: list[tuple[str, CloseReason]] = field(default_factory=list)
    ended: BaseException | None = None  # what `receive` itself raised
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stop: Callable[[], Coroutine[Any, Any, None]] | None = None

    def called(self, context: PartitionContext, value: Any) -> None:
        self.calls.append(value)
        self.contexts.append(context)
        if value:
            self.events += value if isinstance(value, list) else [value]
        self.changed.set()

    def failed(self, context: PartitionContext | None, error: Exception) -> None:
        self.errors.append(error)
        self.changed.set()

    def initialised(self, context: PartitionContext) -> None:
        self.opened.append(context.partition_id)
        self.changed.set()

    def closed_by_sdk(self, context: PartitionContext, reason: CloseReason) -> None:
        self.closed.append((context.partition_id, reason))
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition that a callback of this reader makes true."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    assert self.ended is None, f"{self}"
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited {DEADLINE_S} s for {self}") from self.ended

    async def take(self, count: int) -> list[EventData]:
        """The first `count` events. An error before that fails the test."""
        await self.until(lambda: len(self.events) >= count or self.errors)
        assert not self.errors, self.errors
        return self.events[:count]

    async def error(self) -> Exception:
        """The first error that `on_error` received."""
        await self.until(lambda: self.errors)
        return self.errors[0]

    async def close(self) -> None:
        """Close the client and wait for it."""
        if self.stop is not None:
            stop, self.stop = self.stop, None
            await stop()

    def __str__(self) -> str:
        return (
            f"{self.what}: {len(self.events)} events, {len(self.calls)} calls, "
            f"errors {self.errors}, closed {self.closed}, ended {self.ended!r}"
        )


async def refused(reader: Reader, refusals: Refusals, code: str, text: str) -> None:
    """Assert that the hub refuses a reader's link with this condition and this start of a text.

    The blocking client reports the refusal. The asyncio client does not: unless the link was
    stolen it retries for ever (azure-sdk-for-python issue 27137). For that client the refusals are
    counted in the hub's log.
    """
    if reader.reports_refusals:
        error = await reader.error()
        assert condition(error) == code.partition(":")[2]
        assert str(error).startswith(text)
    else:
        await eventually(lambda: refusals.count(code, text) >= 2, lambda: f"{refusals.errors}")
        assert reader.errors == []
    assert refusals.count(code, text) >= 1
    assert reader.events == []


@dataclass
class OpenLink:
    """A producer, and a reader of a hub's only partition, that many tests share.

    The SDK needs half a second to attach a link and another half to read the partition ids. A test
    that is not about attaching saves that time.
    """

    eh: Entity
    producer: Any
    reader: Reader
    mark: int = 0

    def start(self) -> None:
        """Start a test: only later events are its own."""
        self.mark = self.eh.partition(0).log.next_sequence

    async def take(self, count: int) -> list[EventData]:
        """The first `count` events of this test."""
        return (await self.reader.take(self.mark + count))[self.mark :]


@dataclass
class PartitionCounter:
    """A shared producer to a hub with many partitions, and the events that each partition got."""

    eh: Entity
    producer: Any
    before: list[int] = field(default_factory=list)

    def start(self) -> None:
        self.before = self.counts()

    def counts(self) -> list[int]:
        return [partition.log.next_sequence for partition in self.eh.model.partitions]

    def got(self) -> list[int]:
        """The number of events of this test by partition."""
        return [now - then for now, then in zip(self.counts(), self.before, strict=True)]


class BackgroundCloser:
    """Closes readers, and hubs of one test, while the next test runs."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def take(self, reader: Reader) -> None:
        self.begin(self.closed_by_sdk(reader))

    def close_later(self, hub: EmbeddedHub) -> None:
        """Stop a hub and remove its files after its readers are closed."""
        self.begin(self.close_hub(hub, [*self.tasks]))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def closed_by_sdk(self, reader: Reader) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await reader.close()
        except Exception as wrong:
            # The SDK sometimes fails to close a reader whose connection is gone. That is its
            # defect, so the test does not fail.
            logging.getLogger(__name__).warning("closing %s: %r", reader, wrong)

    async def close_hub(self, hub: EmbeddedHub, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        await asyncio.to_thread(remove_hub, hub)

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks)


def remove_hub(hub: EmbeddedHub) -> None:
    hub.__exit__()
    if hub.data is not None:
        shutil.rmtree(hub.data)
