"""The official client, held so that one judge serves both of its faces.

azure-eventhub has two hand-kept twins: a blocking client with threads, and an asyncio one. Neither
may be able to tell our hub from the service, so a test takes `sdk` and runs with each. The calls
themselves are the SDK's own, arguments and all; the blocking ones are made on threads.

    async with sdk.producer(eh.connection) as producer, sdk.read(eh, "0") as reader:
        await producer.send_batch([EventData(b"hello")], partition_id="0")
        [event] = await reader.take(1)

The SDK takes a second to put a consumer away, so that is left to a `Reaper`, which the whole run
shares and which waits for the last of them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

from azure.eventhub import (
    CloseReason,
    EventData,
    EventDataBatch,
    EventHubConsumerClient,
    EventHubProducerClient,
    PartitionContext,
)
from azure.eventhub import aio as azure_aio
from azure.eventhub._eventprocessor.in_memory_checkpoint_store import InMemoryCheckpointStore
from azure.eventhub.aio._eventprocessor.in_memory_checkpoint_store import (
    InMemoryCheckpointStore as AioInMemoryCheckpointStore,
)
from azure.eventhub.exceptions import EventHubError

from pumphouse.errors import AmqpError
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.hub import EventHub, Partition

# No judgement depends on speed: this only ends a wait for something that will not come.
DEADLINE_S = 30.0
# The SDK starts a failed consumer again at this pace. Never, as far as a test is concerned.
NEVER_S = 3600.0
# For what is expected to fail. The SDK waits before it finds that there are no attempts left.
NO_RETRY: dict[str, Any] = {"retry_total": 0, "retry_backoff_factor": 0.01}
MILLISECOND = timedelta(milliseconds=1)

group_numbers = count(1)


# -- the hub --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entity:
    """One event hub of the namespace under test."""

    hub: EmbeddedHub
    name: str

    @property
    def connection(self) -> str:
        return self.hub.connection_string(self.name)

    @property
    def address(self) -> str:
        """Host and port, for clients that are made from a credential."""
        return f"{self.hub.host}:{self.hub.port}"

    @property
    def model(self) -> EventHub:
        return self.hub.namespace.hub(self.name)

    def partition(self, number: int | str) -> Partition:
        return self.model.partitions[int(number)]

    def new_group(self) -> str:
        """A consumer group that nobody else reads, not even a reader that is being put away."""
        name = f"group-{next(group_numbers)}"
        self.hub.create_group(self.name, name)
        return name

    def reader_count(self, number: int | str = 0, group: str = "$default") -> int:
        return len(self.partition(number).readers.get(group, []))

    async def attached(
        self, count: int = 1, number: int | str = 0, group: str = "$default"
    ) -> None:
        """Wait until so many readers are on a partition."""
        await eventually(
            lambda: self.reader_count(number, group) == count,
            lambda: f"{count} readers on {self.name}/{number}: {self.reader_count(number, group)}",
        )


@asynccontextmanager
async def running(hub: EmbeddedHub) -> AsyncIterator[EmbeddedHub]:
    """A hub of a test's own. Clients on this loop must be able to hear it say good-bye."""
    await asyncio.to_thread(hub.__enter__)
    try:
        yield hub
    finally:
        await asyncio.to_thread(hub.__exit__)


async def eventually(
    condition: Callable[[], object], complaint: Callable[[], str] = lambda: "the condition"
) -> None:
    """Wait for something that no event tells of."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S} s for {complaint()}"
        await asyncio.sleep(0.01)


class MovableClock:
    """Real time, and however much a test has added to it.

    The SDK's tokens are good for an hour of real time. A test that wants to let much time go by
    without ending them starts in the past.
    """

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def advance(self, seconds: float) -> None:
        self.ahead_s += seconds

    def now(self) -> float:
        return time.time() + self.ahead_s

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Refusals(logging.Handler):
    """The links that the hub refused, from its log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[AmqpError] = []

    def count(self, code: str, text: str) -> int:
        return sum(e.condition == code and e.description.startswith(text) for e in self.found)

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and isinstance(record.args[-1], AmqpError):
            self.found.append(record.args[-1])


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
    """Add events to a batch until it will take no more."""
    while True:
        batch.add(EventData(content))


def numbered(count: int, start: int = 0) -> list[EventData]:
    return [EventData(str(number)) for number in range(start, start + count)]


# -- readers --------------------------------------------------------------------------------------


@dataclass
class Reader:
    """A running `receive`, and what it has called back with so far."""

    what: str
    tells_refusals: bool
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

    def put_away(self, context: PartitionContext, reason: CloseReason) -> None:
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
        """The first events, once there are so many. An error meanwhile is the test's failure."""
        await self.until(lambda: len(self.events) >= count or self.errors)
        assert not self.errors, self.errors
        return self.events[:count]

    async def error(self) -> Exception:
        """The first error told to `on_error`."""
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
    """The hub refuses a reader's link, with this condition and a text that begins like this.

    The blocking client tells. The asyncio client does not: unless the link was stolen it takes
    an error while opening for its own closing, and tries again for ever (azure-sdk-for-python
    issue 27137). That it does is part of the judgement; what it was told is in the hub's log.
    """
    if reader.tells_refusals:
        error = await reader.error()
        assert condition(error) == code.partition(":")[2]
        assert str(error).startswith(text)
    else:
        await eventually(lambda: refusals.count(code, text) >= 2, lambda: f"{refusals.found}")
        assert reader.errors == []
    assert refusals.count(code, text) >= 1
    assert reader.events == []


@dataclass
class Wire:
    """A producer, and a reader of a hub's only partition, that many tests share.

    To attach a link costs the SDK half a second, and to ask for the partitions, which it does
    before it reads, another half. A test that is not about attaching need not pay for it.
    """

    eh: Entity
    producer: Any
    reader: Reader
    mark: int = 0

    def start(self) -> None:
        """A test begins: what comes from now on is its own."""
        self.mark = self.eh.partition(0).log.next_sequence

    async def take(self, count: int) -> list[EventData]:
        """The first events since the test began."""
        return (await self.reader.take(self.mark + count))[self.mark :]


@dataclass
class Spreader:
    """A producer to a hub of many partitions that many tests share."""

    eh: Entity
    producer: Any
    before: list[int] = field(default_factory=list)

    def start(self) -> None:
        self.before = self.counts()

    def counts(self) -> list[int]:
        return [partition.log.next_sequence for partition in self.eh.model.partitions]

    def got(self) -> list[int]:
        """How many events each partition got since the test began."""
        return [now - then for now, then in zip(self.counts(), self.before, strict=True)]


class Reaper:
    """Puts readers away while the next test runs."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def take(self, reader: Reader) -> None:
        task = asyncio.create_task(self.put_away(reader))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def put_away(self, reader: Reader) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await reader.close()
        except Exception as wrong:
            # The SDK sometimes fails to close a reader whose connection has gone; that is not the
            # hub's doing, and no verdict on it.
            logging.getLogger(__name__).warning("closing %s: %r", reader, wrong)

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks)


# -- the two faces --------------------------------------------------------------------------------


class Facade:
    """A client whose methods are all to be awaited."""

    def __init__(self, client: Any, run: Callable[..., Awaitable[Any]]) -> None:
        self.client = client
        self.run = run

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.client, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await self.run(method, *args, **options)

        return call


class Sdk:
    """One face of the SDK. The subclasses say what differs."""

    name: str
    producer_class: Any
    consumer_class: Any
    tells_refusals = True  # whether on_error hears of a link that was refused

    def __init__(self, reaper: Reaper) -> None:
        self.reaper = reaper

    async def run(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def callback(self, act: Callable[..., None]) -> Callable[..., Any]:
        """A callback of the kind the SDK wants, which acts on the test's own loop."""
        raise NotImplementedError

    def start(self, reader: Reader, client: Any, receive: Callable[[], Any]) -> None:
        """Start a `receive`, and say how it is stopped."""
        raise NotImplementedError

    # -- clients --

    def producer(self, connection: str, **options: Any) -> AbstractAsyncContextManager[Any]:
        return self.open(self.producer_class.from_connection_string(connection, **options))

    def consumer(
        self, connection: str, group: str = "$Default", **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        return self.open(self.consumer_class.from_connection_string(connection, group, **options))

    @asynccontextmanager
    async def open(self, client: Any) -> AsyncIterator[Any]:
        facade = Facade(client, self.run)
        try:
            yield facade
        finally:
            await facade.close()

    # -- reading --

    def read(
        self,
        eh: Entity,
        partition: str | None = "0",
        *,
        group: str = "$Default",
        start: Any = "-1",
        client: dict[str, Any] | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[Reader]:
        """Receive from one partition, or from all of them (None)."""
        settings = {"load_balancing_interval": NEVER_S, **NO_RETRY, **(client or {})}
        made = self.consumer_class.from_connection_string(eh.connection, group, **settings)
        return self.read_with(made, partition, start=start, **options)

    @asynccontextmanager
    async def read_with(
        self,
        client: Any,
        partition: str | None = "0",
        *,
        start: Any = "-1",
        batch: bool = False,
        checkpoint: bool = False,
        **options: Any,
    ) -> AsyncIterator[Reader]:
        """Receive with a given client; with `checkpoint` each call ends with one."""
        reader = Reader(
            f"{self.name} reader of {client.eventhub_name}/{partition}", self.tells_refusals
        )
        receive = client.receive_batch if batch else client.receive
        called = self.callback(reader.called)
        if checkpoint:
            called = self.checkpointing(called)
        callbacks = {
            "on_error": self.callback(reader.failed),
            "on_partition_initialize": self.callback(reader.initialised),
            "on_partition_close": self.callback(reader.put_away),
        }
        settings = {"partition_id": partition, "starting_position": start, **callbacks, **options}
        self.start(reader, client, lambda: receive(called, **settings))
        try:
            yield reader
        finally:
            self.reaper.take(reader)

    def checkpointing(self, called: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError


class AioSdk(Sdk):
    name = "aio"
    tells_refusals = False
    producer_class = azure_aio.EventHubProducerClient
    consumer_class = azure_aio.EventHubConsumerClient

    async def run(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = method(*args, **options)
        return await answer if inspect.isawaitable(answer) else answer

    def callback(self, act: Callable[..., None]) -> Callable[..., Any]:
        async def call(*args: Any) -> None:
            act(*args)

        return call

    def checkpointing(self, called: Callable[..., Any]) -> Callable[..., Any]:
        async def call(context: Any, value: Any) -> None:
            await called(context, value)
            await context.update_checkpoint()

        return call

    def start(self, reader: Reader, client: Any, receive: Callable[[], Any]) -> None:
        async def run() -> None:
            try:
                await receive()
            except Exception as wrong:
                reader.ended = wrong
                reader.changed.set()

        task = asyncio.create_task(run())

        async def stop() -> None:
            await client.close()
            # `receive` sleeps until its next look at the partitions, closed or not.
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        reader.stop = stop


class SyncSdk(Sdk):
    name = "sync"
    producer_class = EventHubProducerClient
    consumer_class = EventHubConsumerClient

    threads = ThreadPoolExecutor(64, "sync sdk")

    async def run(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: method(*args, **options))

    def callback(self, act: Callable[..., None]) -> Callable[..., Any]:
        loop = asyncio.get_running_loop()

        def call(*args: Any) -> None:
            loop.call_soon_threadsafe(act, *args)

        return call

    def checkpointing(self, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(context: Any, value: Any) -> None:
            called(context, value)
            context.update_checkpoint()

        return call

    def start(self, reader: Reader, client: Any, receive: Callable[[], Any]) -> None:
        changed = self.callback(reader.changed.set)

        def run() -> None:
            try:
                receive()
            except Exception as wrong:
                reader.ended = wrong
                changed()

        thread = threading.Thread(target=run, name=reader.what, daemon=True)
        thread.start()

        def close() -> None:
            client.close()
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "receive goes on after close"

        async def stop() -> None:
            await self.run(close)

        reader.stop = stop


# What each face keeps checkpoints and ownership in when there is only one process.
STORES: dict[str, type[Any]] = {
    "sync": InMemoryCheckpointStore,
    "aio": AioInMemoryCheckpointStore,
}

FACES: dict[str, type[Sdk]] = {"sync": SyncSdk, "aio": AioSdk}

Judge = Callable[..., Coroutine[Any, Any, None]]


def both_faces(test: Judge) -> Judge:
    """Run a test with both faces at the same time: nearly all of its time is the SDK's waiting.

    Each gets an `sdk`, `eh` and `single` of its own; other fixtures are shared. What fails bears a
    note that says with which face.
    """
    wanted = inspect.signature(test).parameters
    own = [name for name in ("sdk", "eh", "single") if name in wanted]

    async def judge(
        face: str, reaper: Reaper, make_entity: Callable[[int], Entity], shared: dict[str, Any]
    ) -> None:
        kit = {"sdk": FACES[face](reaper), "eh": make_entity(4), "single": make_entity(1)}
        try:
            await test(**{name: kit[name] for name in own}, **shared)
        except Exception as wrong:
            wrong.add_note(f"with the {face} client")
            raise

    @functools.wraps(test)
    async def both(reaper: Reaper, make_entity: Callable[[int], Entity], **shared: Any) -> None:
        judges = (judge(face, reaper, make_entity, shared) for face in FACES)
        outcomes = await asyncio.gather(*judges, return_exceptions=True)
        failed = [outcome for outcome in outcomes if outcome is not None]
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise BaseExceptionGroup("with both clients", failed)

    # What pytest is to see: the fixtures that make a kit, and those that the test shares.
    fixtures = ["reaper", "make_entity", *(name for name in wanted if name not in own)]
    both.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in fixtures]
    )
    return both
