"""EventProcessorHost, the push API: register a class, or two functions, and they are called.

    host = EventProcessorHost(EventProcessorHost.create_host_name("vm"), connection, store=store)
    await host.register(SimpleEventProcessor)      # one object per partition that is ours
    await host.start(on_message, on_error)         # or: one call per event
    await host.unregister()                        # or stop(): the same

    Engine -> EventProcessorHost -> open, process_events, process_error, close
              ^^^^^^^^^^^^^^^^^^ this module

* Per partition, calls never overlap; partitions run in parallel. Only `process_error` may be called
  during another call: it must be able to report a `process_events` that hangs.
* A checkpoint without an event covers everything handed out so far; with an event, everything up to
  it. Neither moves backwards.
* `close` gets the reason: the lease is lost (another host has the partition, or was given it), or
  the host shuts down. It may still checkpoint, unless the lease has ended.
  It is not called if a plain `process_events` still runs in its thread when the host must stop.
* Methods may be coroutines or plain functions. Plain ones run in threads and block nothing else.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Protocol, Self

from pumphouse.client.base import DEFAULT_GROUP, read_connection_string
from pumphouse.clock import Clock
from pumphouse.errors import OptionError, OwnershipLost
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import (
    CallbackThreads,
    Handling,
    ThreadCall,
    in_thread,
    is_async,
)
from pumphouse.processor.options import (
    EventProcessorOptions,
    ExceptionReceived,
    PartitionManagerOptions,
    ProcessorOptions,
    host_engine_options,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import StopReason

MaybeAwaitable = Awaitable[None] | None
PROCESS_ERROR, ON_EXCEPTION, ON_ERROR = "process_error", "on_exception", "on_error"


class CloseReason(StrEnum):
    """Why an event processor is closed."""

    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"


class EventProcessor(Protocol):
    """The methods of a class that can be registered. One object serves one partition."""

    def open(self, context: PartitionContext) -> MaybeAwaitable: ...

    def close(self, context: PartitionContext, reason: CloseReason) -> MaybeAwaitable: ...

    def process_events(
        self, context: PartitionContext, messages: list[Event]
    ) -> MaybeAwaitable: ...

    def process_error(self, context: PartitionContext, error: Exception) -> MaybeAwaitable: ...


Factory = Callable[..., EventProcessor]
OnMessage = Callable[["PartitionContext", Event], MaybeAwaitable]
OnError = Callable[[Exception], MaybeAwaitable]


@dataclass(slots=True)
class PartitionContext:
    """The partition that an event processor serves, and its checkpoint."""

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
        """Record that everything up to `event` is handled; without it, all handed out so far."""
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
            raise OptionError("host_name is empty: use EventProcessorHost.create_host_name()")
        self.host_name = host_name
        self.consumer_group = consumer_group
        self.partition_manager_options = partition_manager_options or PartitionManagerOptions()
        self._connect, self._store, self._strategy = connect, store, strategy
        self._dead_letters, self._on_error = dead_letters, on_error
        self._clock, self._rng = clock, rng
        self._options = EventProcessorOptions()
        self._served: dict[str, ServedPartition] = {}
        self._engine: Engine | None = None
        self._handling: Handling | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._callbacks: CallbackThreads | None = None
        self._thread_calls: dict[str, ThreadCall] = {}  # the last call of each partition

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
        """A host that keeps leases and checkpoints in Azure Blob storage, in the EPH format."""
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
        host has joined; raises if it cannot.
        """
        if self._engine is not None:
            raise OptionError(f"{self.host_name} is registered already; unregister it first")
        self._options = options or EventProcessorOptions()
        settings = host_engine_options(self._options, self.partition_manager_options)
        self._factory = factory
        engine = self._make_engine(settings)
        self._handling = Handling(
            self._handle,
            settings,
            engine.reporter,
            dead_letters=self._dead_letters,
            group=self.consumer_group,
            host=self.host_name,
            rng=self._rng,
        )
        self._threads = ThreadPoolExecutor(settings.handler_threads, "pumphouse processor")
        self._callbacks = CallbackThreads(self.host_name, PROCESS_ERROR, ON_EXCEPTION, ON_ERROR)
        self._thread_calls, self._engine = {}, engine
        try:
            await engine.start()
        except BaseException:
            await self._close_threads()
            raise
        engine.call_on_close(self._close_threads)

    def _make_engine(self, settings: ProcessorOptions) -> Engine:
        return Engine(
            self._connect,
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

    async def start(
        self,
        on_message: OnMessage,
        on_error: OnError | None = None,
        options: EventProcessorOptions | None = None,
    ) -> None:
        """Call `on_message` for every event, one at a time per partition; `on_error` for errors."""

        def new_processor() -> EventProcessor:
            return OneByOne(on_message, on_error, self._call, self._call_on_error)

        await self.register(new_processor, options)

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

    async def _close_threads(self) -> None:
        """Called when the engine has ended, or could not start."""
        self._engine = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._callbacks is not None:
            self._callbacks.close()
        if self._handling is not None:
            await self._handling.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.unregister()

    # -- state ------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine | None:
        """The engine while the host is registered."""
        return self._engine

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
        engine, handling = self._engine, self._handling
        assert engine is not None
        assert handling is not None
        hub = engine.client.hub
        context = PartitionContext(self.host_name, self.consumer_group, hub, partition)
        served = ServedPartition(context, make_processor(self._factory, context))
        await self._call(context, served.processor.open, context)
        self._served[partition.id] = served
        try:
            await handling.serve(partition)
        finally:
            del self._served[partition.id]
            if not self._is_in_thread(partition.id):
                await self._close(engine, served)

    async def _close(self, engine: Engine, served: ServedPartition) -> None:
        """An exception of `close` must not replace the reason why the partition ends."""
        context, reason = served.context, close_reason(served.context.partition)
        try:
            await self._call(context, served.processor.close, context, reason)
        except OwnershipLost as lost:
            if reason is not CloseReason.LEASE_LOST:  # otherwise it is expected
                engine.reporter.failed("close_failed", context.partition_id, lost)
        except Exception as error:
            engine.reporter.failed("close_failed", context.partition_id, error)

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        served = self._served[partition.id]
        await self._call(served.context, served.processor.process_events, served.context, batch)

    async def _call(
        self, context: PartitionContext, method: Callable[..., Any], *args: object
    ) -> None:
        """Await a coroutine function; run a plain one in a thread."""
        if is_async(method):
            await method(*args)
            return
        call = self._thread_calls[context.partition_id] = ThreadCall(method, *args)
        result = await in_thread(self._threads, call)
        if inspect.isawaitable(result):
            await result

    def _is_in_thread(self, partition: str) -> bool:
        """Whether a plain method still runs in its thread, though its caller was cancelled."""
        call = self._thread_calls.get(partition)
        return call is not None and call.runs

    # -- errors -----------------------------------------------------------------------------------

    async def _failed(self, partition: str | None, error: Exception) -> None:
        """Call `process_error` of the partition first, then `on_exception` and `on_error`."""
        served, callbacks = self._served.get(partition or ""), self._callbacks
        assert callbacks is not None
        if served is not None:
            await callbacks.call(
                PROCESS_ERROR, served.processor.process_error, served.context, error
            )
        if self._options.on_exception is not None:
            received = ExceptionReceived(self.host_name, partition, error)
            await callbacks.call(ON_EXCEPTION, self._options.on_exception, received)
        if self._on_error is not None:
            await callbacks.call(ON_ERROR, self._on_error, error)

    async def _call_on_error(self, on_error: OnError, error: Exception) -> None:
        """For `start`: its `on_error` takes the place of `process_error`."""
        assert self._callbacks is not None
        await self._callbacks.call(PROCESS_ERROR, on_error, error)


@dataclass(frozen=True, slots=True)
class ServedPartition:
    """A partition while it is ours, and the object that serves it."""

    context: PartitionContext
    processor: EventProcessor


class OneByOne:
    """An event processor made of two functions, with one call per event.

    When a batch is retried, events that were handled already are left out.
    """

    def __init__(
        self,
        on_message: OnMessage,
        on_error: OnError | None,
        call: Callable[..., Awaitable[None]],
        call_on_error: Callable[[OnError, Exception], Awaitable[None]],
    ) -> None:
        self._on_message, self._on_error = on_message, on_error
        self._call, self._call_on_error = call, call_on_error
        self._handled = -1  # the last sequence number that was handled

    async def open(self, context: PartitionContext) -> None:
        """Nothing to prepare."""

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """Nothing to close."""

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        for event in messages:
            if event.sequence is not None and event.sequence <= self._handled:
                continue
            if not context.partition.live:  # the lease may expire between two events
                raise OwnershipLost(context.partition_id, context.epoch)
            context.at = event
            await self._call(context, self._on_message, context, event)
            self._handled = self._handled if event.sequence is None else event.sequence
            context.partition.mark_handled([event])

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        if self._on_error is not None:
            await self._call_on_error(self._on_error, error)


def make_processor(factory: Factory, context: PartitionContext) -> EventProcessor:
    """An object for one partition; a factory with a parameter gets the context."""
    return factory(context) if takes_context(factory) else factory()


def takes_context(factory: Factory) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a C function without a signature
        return False
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def close_reason(partition: PartitionClient) -> CloseReason:
    lost = partition.reason in (StopReason.LOST, StopReason.HAND_OFF)
    return CloseReason.LEASE_LOST if lost else CloseReason.SHUTDOWN
