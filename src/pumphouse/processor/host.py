"""The push face: an Event Processor Host. Register a class, or two functions, and it is called.

    host = EventProcessorHost(EventProcessorHost.create_host_name("vm"), connection, store=store)
    await host.register(SimpleEventProcessor)      # one object per partition that is ours
    await host.start(on_message, on_error)         # or: one call per event
    await host.unregister()                        # or stop(): the same

    Engine -> EventProcessorHost -> open, process_events, process_error, close
              ^^^^^^^^^^^^^^^^^^ this module

* Per partition, calls never overlap; partitions run in parallel. Only `process_error` may be called
  beside the others: it must be able to tell of a `process_events` that hangs.
* A checkpoint without an event says that everything handed out so far is handled; with an event,
  that everything up to it is. Neither moves backwards.
* `close` says why: the lease is lost (somebody else has the partition, or was given it), or we shut
  down. It may still checkpoint, unless the lease is lost for good.
  It is not called for a partition whose plain `process_events` still runs when we have to leave.
* Methods may be coroutines or plain; plain ones run in threads and hold up nothing else.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Protocol, Self

from pumphouse.client.base import DEFAULT_GROUP, HubClient, read_connection_string
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock
from pumphouse.errors import OptionError, OwnershipLost
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import Handling, is_async
from pumphouse.processor.host_options import (
    EventProcessorOptions,
    ExceptionReceived,
    PartitionManagerOptions,
    engine_options,
)
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import StopReason
from pumphouse.processor.threads import REPORT_THREADS, Calling, in_thread

log = logging.getLogger("pumphouse.processor")

Told = Awaitable[None] | None


class CloseReason(StrEnum):
    """Why an event processor is closed."""

    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"


class EventProcessor(Protocol):
    """What a class must offer to be registered. One object serves one partition."""

    def open(self, context: PartitionContext) -> Told: ...

    def close(self, context: PartitionContext, reason: CloseReason) -> Told: ...

    def process_events(self, context: PartitionContext, messages: list[Event]) -> Told: ...

    def process_error(self, context: PartitionContext, error: Exception) -> Told: ...


Factory = Callable[..., EventProcessor]
OnMessage = Callable[["PartitionContext", Event], Told]
OnError = Callable[[Exception], Told]


@dataclass(slots=True)
class PartitionContext:
    """Which partition it is, and the way to checkpoint it."""

    host_name: str
    consumer_group: str
    hub: str
    partition: PartitionClient = field(repr=False)
    at: Event | None = None  # the event in hand, where events are handled one by one

    @property
    def partition_id(self) -> str:
        return self.partition.id

    @property
    def epoch(self) -> int:
        return self.partition.epoch

    async def checkpoint(self, event: Event | None = None) -> None:
        """Everything up to `event` is handled; without one, everything handed out so far."""
        await self.partition.checkpoint(event or self.at)


class EventProcessorHost:
    """One host of many that share the partitions of a hub."""

    def __init__(
        self,
        host_name: str,
        connect: Connect,
        consumer_group: str = DEFAULT_GROUP,
        *,
        store: CheckpointStore,
        strategy: str | Strategy = "steady",
        partition_manager_options: PartitionManagerOptions | None = None,
        dead_letters: DeadLetters | None = None,
        on_error: OnError | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        if not host_name:
            raise OptionError("a host needs a name of its own; create_host_name makes one")
        self.host_name = host_name
        self.consumer_group = consumer_group
        self.partition_manager_options = partition_manager_options or PartitionManagerOptions()
        self._connect, self._store, self._strategy = connect, store, strategy
        self._dead_letters, self._on_error = dead_letters, on_error
        self._clock, self._rng = clock, rng
        self._options = EventProcessorOptions()
        self._stays: dict[str, Stay] = {}
        self._engine: Engine | None = None
        self._handling: Handling | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._reports: ThreadPoolExecutor | None = None
        self._in_thread: dict[str, Calling] = {}  # the last call of each partition

    def __repr__(self) -> str:
        if self._engine is None:
            return f"<EventProcessorHost {self.host_name} | not registered>"
        return repr(self._engine).replace("Engine", "EventProcessorHost", 1)

    @staticmethod
    def create_host_name(prefix: str = "host") -> str:
        """A name that no other host has."""
        return f"{prefix}-{uuid.uuid4()}"

    @classmethod
    def from_connection_string(
        cls,
        host_name: str,
        storage_connection_string: str,
        storage_container_name: str,
        event_hub_connection_string: str,
        *,
        event_hub_path: str = "",
        consumer_group: str = DEFAULT_GROUP,
        storage_blob_prefix: str = "",
        partition_manager_options: PartitionManagerOptions | None = None,
        **more: Any,
    ) -> Self:
        """A host with leases and checkpoints in Azure Blob storage, where such hosts keep them."""
        from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore

        manager = partition_manager_options or PartitionManagerOptions()
        store = BlobLeaseStore.from_connection_string(
            storage_connection_string,
            storage_container_name,
            prefix=storage_blob_prefix,
            lease_s=manager.lease_duration_s,
        )
        return cls(
            host_name,
            read_connection_string(event_hub_connection_string, event_hub_path),
            consumer_group,
            store=store,
            partition_manager_options=manager,
            **more,
        )

    # -- starting and stopping --------------------------------------------------------------------

    async def register(
        self, factory: Factory, options: EventProcessorOptions | None = None
    ) -> None:
        """Serve every partition that is ours with an object of its own, made by `factory`.

        `factory` is a class, or a function that may take the PartitionContext. Returns once the
        host takes part; raises what makes that impossible.
        """
        if self._engine is not None:
            raise OptionError(f"{self.host_name} is registered already; unregister it first")
        self._options = options or EventProcessorOptions()
        settings = engine_options(self._options, self.partition_manager_options)
        self._factory = factory
        engine = self._make_engine(settings)
        self._handling = Handling(
            self._handle,
            settings,
            engine.report,
            dead_letters=self._dead_letters,
            group=self.consumer_group,
            host=self.host_name,
            rng=self._rng,
        )
        self._threads = ThreadPoolExecutor(settings.handler_threads, "pumphouse processor")
        self._reports = ThreadPoolExecutor(REPORT_THREADS, "pumphouse processor reports")
        self._in_thread, self._engine, self._report = {}, engine, engine.report
        try:
            await engine.start()
        except BaseException:
            await self._let_go()
            raise
        engine.closes(self._let_go)

    def _make_engine(self, settings: ProcessorOptions) -> Engine:
        return Engine(
            self._open_client,
            self._serve,
            store=self._store,
            group=self.consumer_group,
            strategy=self._strategy,
            host=self.host_name,
            options=settings,
            on_error=self._failed,
            clock=self._clock,
            rng=self._rng,
        )

    def _open_client(self) -> HubClient:
        connect = self._connect
        self._client = connect() if callable(connect) else open_client(connect)
        return self._client

    async def start(
        self,
        on_message: OnMessage,
        on_error: OnError | None = None,
        options: EventProcessorOptions | None = None,
    ) -> None:
        """Call `on_message` for every event, one at a time per partition; `on_error` for errors."""

        def make() -> EventProcessor:
            return OneByOne(on_message, on_error, self._call, self._tell)

        await self.register(make, options)

    async def run(self) -> None:
        """Until cancelled or unregistered; raises if the host itself failed."""
        if self._engine is None:
            raise OptionError(f"{self.host_name} is not registered")
        await self._engine.run()

    async def unregister(self) -> None:
        """Finish what is in hand, close every processor, release the leases, leave. Bounded."""
        if self._engine is not None:
            await self._engine.stop()

    stop = unregister

    async def _let_go(self) -> None:
        """The engine has ended, or never began."""
        self._engine = None
        for threads in (self._threads, self._reports):
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)
        if self._handling is not None:
            await self._handling.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.unregister()

    # -- how it stands ----------------------------------------------------------------------------

    @property
    def owned(self) -> tuple[str, ...]:
        return () if self._engine is None else self._engine.owned

    def pause(self, partition: str | None = None) -> None:
        """Hand out no more events, of one partition or of all; the leases are kept."""
        if self._engine is not None:
            self._engine.pause(partition)

    def resume(self, partition: str | None = None) -> None:
        if self._engine is not None:
            self._engine.resume(partition)

    # -- serving ----------------------------------------------------------------------------------

    async def _serve(self, partition: PartitionClient) -> None:
        assert self._handling is not None
        hub = self._client.hub
        context = PartitionContext(self.host_name, self.consumer_group, hub, partition)
        stay = Stay(context, make_processor(self._factory, context))
        await self._call(context, stay.processor.open, context)
        self._stays[partition.id] = stay
        try:
            await self._handling.serve(partition)
        finally:
            del self._stays[partition.id]
            if not self._is_in_thread(partition.id):
                await self._close(stay)

    async def _close(self, stay: Stay) -> None:
        """Whatever it raises, why the partition ends here is more important."""
        context, reason = stay.context, close_reason(stay.context.partition)
        try:
            await self._call(context, stay.processor.close, context, reason)
        except OwnershipLost as lost:
            if reason is not CloseReason.LEASE_LOST:  # otherwise it knows already
                self._report(context.partition_id, lost)
        except Exception as failed:
            self._report(context.partition_id, failed)

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        stay = self._stays[partition.id]
        await self._call(stay.context, stay.processor.process_events, stay.context, batch)

    async def _call(
        self, context: PartitionContext, method: Callable[..., Any], *args: object
    ) -> None:
        """Await a coroutine function; let a plain one run in a thread."""
        if is_async(method):
            await method(*args)
            return
        call = self._in_thread[context.partition_id] = Calling(method, *args)
        told = await in_thread(self._threads, call)
        if inspect.isawaitable(told):
            await told

    def _is_in_thread(self, partition: str) -> bool:
        """Whether a plain method runs on, though nobody waits for it any more."""
        call = self._in_thread.get(partition)
        return call is not None and call.runs

    # -- errors -----------------------------------------------------------------------------------

    async def _failed(self, partition: str | None, failed: Exception) -> None:
        """Everybody who asked to hear of errors hears of this one."""
        received = ExceptionReceived(self.host_name, partition, failed)
        stay = self._stays.get(partition or "")
        if stay is not None:
            await self._tell(stay.processor.process_error, stay.context, failed)
        for listener, word in self._listeners(received, failed):
            await self._tell(listener, word)

    async def _tell(self, listener: Callable[..., Any], *args: object) -> None:
        """Call one of them; what it raises keeps nobody else from hearing."""
        try:
            if is_async(listener):
                await listener(*args)
                return
            told = await in_thread(self._reports, Calling(listener, *args))
            if inspect.isawaitable(told):
                await told
        except Exception:
            log.exception("a callback failed host=%s", self.host_name)

    def _listeners(
        self, received: ExceptionReceived, failed: Exception
    ) -> Iterable[tuple[Callable[..., Any], object]]:
        if self._options.on_exception is not None:
            yield self._options.on_exception, received
        if self._on_error is not None:
            yield self._on_error, failed


@dataclass(frozen=True, slots=True)
class Stay:
    """One partition while it is ours, and the object that serves it."""

    context: PartitionContext
    processor: EventProcessor


class OneByOne:
    """Two functions in the place of a class: one call per event.

    When a batch is tried again, the events that went well are not handled twice.
    """

    def __init__(
        self,
        on_message: OnMessage,
        on_error: OnError | None,
        call: Callable[..., Awaitable[None]],
        tell: Callable[..., Awaitable[None]],
    ) -> None:
        self._on_message, self._on_error = on_message, on_error
        self._call, self._tell = call, tell
        self._done = -1  # the last sequence number that was handled

    async def open(self, context: PartitionContext) -> None:
        """Nothing to prepare."""

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """Nothing to tidy up."""

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        for event in messages:
            if event.sequence is not None and event.sequence <= self._done:
                continue
            if not context.partition.live:  # each event is handed out by itself
                raise OwnershipLost(context.partition_id, context.epoch)
            context.at = event
            await self._call(context, self._on_message, context, event)
            self._done = self._done if event.sequence is None else event.sequence
            context.partition.handled([event])

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        if self._on_error is not None:
            await self._tell(self._on_error, error)


def make_processor(factory: Factory, context: PartitionContext) -> EventProcessor:
    """An object for one partition; a factory that asks for the context gets it."""
    return factory(context) if wants_context(factory) else factory()


def wants_context(factory: Factory) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # something of C without a signature
        return False
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def close_reason(partition: PartitionClient) -> CloseReason:
    lost = partition.reason in (StopReason.LOST, StopReason.HAND_OFF)
    return CloseReason.LEASE_LOST if lost else CloseReason.SHUTDOWN
