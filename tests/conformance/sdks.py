"""The two official Python clients behind one interface, so that one test runs with both.

azure-eventhub has a blocking client with threads and an asyncio client. A test takes `sdk` and runs
with each. The calls and their arguments are the SDK's own; blocking calls run on threads. The hub
variant (variants.py) selects the transport.

    async with sdk.producer(eh.connection) as producer, sdk.read(eh, "0") as reader:
        await producer.send_batch([EventData(b"hello")], partition_id="0")
        [event] = await reader.take(1)

The SDK needs a second to close a consumer, so a `BackgroundCloser` does that while other tests run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub import aio as azure_aio
from azure.eventhub._eventprocessor.in_memory_checkpoint_store import InMemoryCheckpointStore
from azure.eventhub.aio._eventprocessor.in_memory_checkpoint_store import (
    InMemoryCheckpointStore as AioInMemoryCheckpointStore,
)

from tests.conformance.entity import DEADLINE_S, Entity
from tests.conformance.readers import BackgroundCloser, Reader
from tests.conformance.variants import PLAIN, HubVariant, address_of

# The SDK restarts a failed consumer at this interval: longer than any test.
NEVER_S = 3600.0
# For calls that are expected to fail. The SDK waits once more before it gives up.
NO_RETRY: dict[str, Any] = {"retry_total": 0, "retry_backoff_factor": 0.01}

# Calls after which the hub holds acknowledged events.
SENDING = ("send_event", "send_batch")
SENDING_BUFFERED = ("flush",)

Send = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class AwaitableClient:
    """A client with only awaitable methods."""

    def __init__(
        self, client: Any, run: Callable[..., Awaitable[Any]], send: Send | None = None
    ) -> None:
        self.client = client
        self.run = run
        self.send = send
        self.sending = SENDING_BUFFERED if is_buffered(client) else SENDING

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.client, name)

        async def call(*args: Any, **options: Any) -> Any:
            if self.send is not None and name in self.sending:
                return await self.send(lambda: self.run(method, *args, **options))
            return await self.run(method, *args, **options)

        return call


def is_buffered(client: Any) -> bool:
    return bool(getattr(client, "_buffered_mode", False))


class Sdk:
    """One client of the SDK. The subclasses define what differs."""

    name: str
    producer_class: Any
    consumer_class: Any
    reports_refusals = True  # whether on_error is called for a refused link

    def __init__(self, closer: BackgroundCloser, variant: HubVariant | None = None) -> None:
        self.closer = closer
        self.variant = variant or HubVariant(PLAIN, Path())

    async def run(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def callback(self, act: Callable[..., None]) -> Callable[..., Any]:
        """A callback for the SDK that runs `act` on the event loop of the test."""
        raise NotImplementedError

    def start(self, reader: Reader, client: Any, receive: Callable[[], Any]) -> None:
        """Start a `receive` and set how it is stopped."""
        raise NotImplementedError

    # -- clients --

    def producer(self, connection: str, **options: Any) -> AbstractAsyncContextManager[Any]:
        address = address_of(connection)
        settings = self.variant.defaults | options | self.variant.options(address)
        return self.open(
            self.producer_class.from_connection_string(connection, **settings), address
        )

    def consumer(
        self, connection: str, group: str = "$Default", **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        return self.open(self.make_consumer(connection, group, **options))

    def make_consumer(self, connection: str, group: str = "$Default", **options: Any) -> Any:
        """A consumer for `read_with`."""
        settings = (
            self.variant.defaults
            | options
            | self.variant.options(address_of(connection), reading=True)
        )
        return self.consumer_class.from_connection_string(connection, group, **settings)

    def producer_with(
        self, eh: Entity, credential: Any, **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """A producer without a connection string."""
        settings = self.variant.defaults | options | self.variant.credential_options(eh.address)
        return self.open(
            self.producer_class(eh.address, eh.name, credential, **settings), eh.address
        )

    def make_consumer_with(
        self, eh: Entity, credential: Any, group: str = "$Default", **options: Any
    ) -> Any:
        settings = (
            self.variant.defaults
            | options
            | self.variant.credential_options(eh.address, reading=True)
        )
        return self.consumer_class(eh.address, eh.name, group, credential, **settings)

    @asynccontextmanager
    async def open(self, client: Any, address: str = "") -> AsyncIterator[Any]:
        awaitable = AwaitableClient(client, self.run, functools.partial(self.variant.send, address))
        try:
            yield awaitable
        finally:
            await awaitable.close()

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
        made = self.make_consumer(eh.connection, group, **settings)
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
        """Receive with a given client; `checkpoint` writes a checkpoint after each call."""
        reader = Reader(
            f"{self.name} reader of {client.eventhub_name}/{partition}", self.reports_refusals
        )
        receive = client.receive_batch if batch else client.receive
        called = self.callback(reader.called)
        if checkpoint:
            called = self.checkpointing(called)
        callbacks = {
            "on_error": self.callback(reader.failed),
            "on_partition_initialize": self.callback(reader.initialised),
            "on_partition_close": self.callback(reader.closed_by_sdk),
        }
        settings = {"partition_id": partition, "starting_position": start, **callbacks, **options}
        self.start(reader, client, lambda: receive(called, **settings))
        try:
            yield reader
        finally:
            self.closer.take(reader)

    def checkpointing(self, called: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError


class AioSdk(Sdk):
    name = "aio"
    reports_refusals = False
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
            # `receive` sleeps until its next balancing cycle, even when the client is closed.
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
            assert not thread.is_alive(), "receive continues after close"

        async def stop() -> None:
            await self.run(close)

        reader.stop = stop


# The SDK's checkpoint stores for one process.
STORES: dict[str, type[Any]] = {
    "sync": InMemoryCheckpointStore,
    "aio": AioInMemoryCheckpointStore,
}

SDKS: dict[str, type[Sdk]] = {"sync": SyncSdk, "aio": AioSdk}

Test = Callable[..., Coroutine[Any, Any, None]]


def both_sdks(test: Test) -> Test:
    """Run a test with both clients at the same time: the SDK waits most of the time.

    Each run gets its own `sdk`, `eh` and `single`; other fixtures are shared. A failure carries a
    note with the name of the client.
    """
    parameters = inspect.signature(test).parameters
    own = [name for name in ("sdk", "eh", "single") if name in parameters]

    async def run_with(
        sdk: Sdk, make_entity: Callable[[int], Entity], shared: dict[str, Any]
    ) -> None:
        make: dict[str, Callable[[], Any]] = {
            "sdk": lambda: sdk,
            "eh": lambda: make_entity(4),
            "single": lambda: make_entity(1),
        }
        try:
            await test(**{name: make[name]() for name in own}, **shared)
        except Exception as wrong:
            wrong.add_note(f"with the {sdk.name} client")
            raise

    @functools.wraps(test)
    async def both(
        sdks: dict[str, Sdk], make_entity: Callable[[int], Entity], **shared: Any
    ) -> None:
        runs = (run_with(sdk, make_entity, shared) for sdk in sdks.values())
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        failed = [outcome for outcome in outcomes if outcome is not None]
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise BaseExceptionGroup("with both clients", failed)

    # pytest sees the fixtures that each run is built from, and those that the runs share.
    fixtures = ["sdks", "make_entity", *(name for name in parameters if name not in own)]
    both.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in fixtures]
    )
    return both
