"""EventProcessorHost, the push API: register a class, or two functions, and they are called.

    host = EventProcessorHost(EventProcessorHost.create_host_name("vm"), connection, store=store)
    await host.register(SimpleEventProcessor)      # one object per partition that is ours
    await host.start(on_message, on_error)         # or: one call per event
    await host.unregister()                        # or stop(): the same

    Engine -> EventProcessorHost -> open, process_events, process_error, close
              ^^^^^^^^^^^^^^^^^^ this module

* Per partition, calls never overlap; partitions run in parallel. Only `process_error` may be called
  during another call: it must be able to report a `process_events` that hangs.
* A checkpoint without an event covers what was handled, and in `process_events` the current batch;
  with an event, everything up to it. Neither moves backwards. If the store fails, the call retries
  until the checkpoint is written or the lease has ended.
* `close` gets the reason: the lease is lost (taken by another host, or handed over to it), or the
  host shuts down. It may still checkpoint, unless the lease has ended.
  It is not called if a plain `process_events` still runs in its thread when the host must stop.
* Methods may be coroutines or plain functions. Plain ones run in threads and block nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Self

from pumphouse.client.base import DEFAULT_GROUP, read_connection_string
from pumphouse.clock import Clock
from pumphouse.errors import OptionError, OwnershipLost
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy, choose_strategy
from pumphouse.option_names import named_options
from pumphouse.processor.checks.callbacks import (
    OnErrorOfHost,
    check_error_callback,
    error_arguments,
)
from pumphouse.processor.checks.factories import check_factory
from pumphouse.processor.checks.parts import check_connect, check_dead_letters, check_store
from pumphouse.processor.checks.values import check_function, check_name, check_options
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import Handling
from pumphouse.processor.handling.event_processors import (
    CloseReason,
    EventProcessor,
    Factory,
    OneByOne,
    OnError,
    OnMessage,
    PartitionContext,
    close_reason,
    make_processor,
)
from pumphouse.processor.handling.pauses import Pauses
from pumphouse.processor.handling.threads import (
    CallbackThreads,
    DaemonThreads,
    ThreadCall,
    finish,
    in_thread,
    is_async,
)
from pumphouse.processor.hosting.environment import read_environment
from pumphouse.processor.options import (
    EventProcessorOptions,
    ExceptionReceived,
    PartitionManagerOptions,
    ProcessorOptions,
    host_engine_options,
)
from pumphouse.processor.partition import PartitionClient

if TYPE_CHECKING:
    from pumphouse.leases.stores.blob_lease.formats import Format
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore

__all__ = ["CloseReason", "EventProcessor", "EventProcessorHost", "PartitionContext"]

PROCESS_ERROR, ON_EXCEPTION, ON_ERROR = "process_error", "on_exception", "on_error"
POISON_REPORTED_S = 1.0  # how long `close` waits for `process_error`, which may hang


@named_options()
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
        on_error: OnErrorOfHost | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        if not host_name:
            raise OptionError("host_name is empty: use EventProcessorHost.create_host_name()")
        check_name("host_name", host_name)
        check_name("consumer_group", consumer_group)
        check_connect("connect", connect, has_hub=True)
        check_store(store)
        choose_strategy(strategy, None)
        check_dead_letters(dead_letters)
        check_error_callback("on_error", on_error)
        self.host_name = host_name
        self.consumer_group = consumer_group
        self.partition_manager_options = partition_manager_options or PartitionManagerOptions()
        self._connect, self._store, self._strategy = connect, store, strategy
        self._lease_store: BlobLeaseStore | None = None  # made by from_connection_string
        self._dead_letters, self._on_error = dead_letters, on_error
        self._clock, self._rng = clock, rng
        self._options = EventProcessorOptions()
        self._served: dict[str, ServedPartition] = {}
        self._engine: Engine | None = None
        self._pauses = Pauses()  # also before it is registered
        self._handling: Handling | None = None
        self._threads: DaemonThreads | None = None
        self._callbacks: CallbackThreads | None = None
        self._thread_calls: dict[str, list[ThreadCall]] = {}  # the last calls of each partition

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
        format: Format | None = None,
        partition_manager_options: PartitionManagerOptions | None = None,
        **more: Any,
    ) -> Self:
        """A host with leases and checkpoints in Blob Storage, as in the Event Processor Host.

        `format` is that of the blobs: "net", "java", "javascript" or "python". Without it the
        format that the container has is used.
        """
        from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore, whole_lease_s

        manager = partition_manager_options or PartitionManagerOptions()
        whole_lease_s(manager.lease_duration_s, "lease_duration_s")
        store = BlobLeaseStore.from_connection_string(
            storage_connection_string,
            storage_container_name,
            prefix=storage_blob_prefix,
            format=format,
            lease_s=manager.lease_duration_s,
        )
        host = cls(
            host_name,
            read_connection_string(event_hub_connection_string, event_hub_path),
            consumer_group,
            store=store,
            partition_manager_options=manager,
            **more,
        )
        host._lease_store = store
        return host

    @classmethod
    def from_env(cls, *, environ: Mapping[str, str] | None = None, **more: Any) -> Self:
        """A host from environment variables; see `Processor.from_env`.

        Without PUMPHOUSE_HOST it gets a unique name. `more` are arguments of the host.
        """
        settings = read_environment(environ)
        settings.need_hub()
        if "store" not in more:
            leases = more.get("partition_manager_options") or PartitionManagerOptions()
            store = settings.open_store(leases.lease_duration_s, "lease_duration_s")
            more["store"] = store
        host_name = more.pop("host_name", "") or settings.host or cls.create_host_name()
        return cls(host_name, settings.connect, **{"consumer_group": settings.group} | more)

    # -- starting and stopping --------------------------------------------------------------------

    async def register(
        self, factory: Factory, options: EventProcessorOptions | None = None
    ) -> None:
        """Create an object with `factory` for each partition that this host owns, and call it.

        `factory` is a class, or a function that may take the PartitionContext. Returns when the
        host has connected to hub and store; raises if it cannot.
        """
        if self._engine is not None:
            raise OptionError(f"{self.host_name} is registered already; unregister it first")
        check_factory(factory)
        check_options("options", options, EventProcessorOptions, "max_batch_size=100")
        check_options(
            "partition_manager_options",
            self.partition_manager_options,
            PartitionManagerOptions,
            "lease_duration_s=60",
        )
        if self._lease_store is not None:  # the options may have been replaced since
            lease_s = self.partition_manager_options.lease_duration_s
            self._lease_store.set_lease_s(lease_s, "lease_duration_s")
        self._options = options or EventProcessorOptions()
        settings = host_engine_options(self._options, self.partition_manager_options)
        self._factory = factory
        engine = self._make_engine(settings)
        engine.pauses = self._pauses
        engine.reporter.name_handler(getattr(factory, "process_events", factory))
        self._handling = Handling(
            self._handle,
            settings,
            engine.reporter,
            dead_letters=self._dead_letters,
            group=self.consumer_group,
            host=self.host_name,
            rng=self._rng,
        )
        self._threads = DaemonThreads(settings.handler_threads, "pumphouse processor")
        self._callbacks = CallbackThreads(engine.reporter, PROCESS_ERROR, ON_EXCEPTION, ON_ERROR)
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
        check_function("on_message", on_message, "context", "event")
        if on_error is not None:
            check_function("on_error", on_error, "error")

        def new_processor() -> EventProcessor:
            return OneByOne(on_message, on_error, self._call, self._call_on_error)

        new_processor.__qualname__ = getattr(on_message, "__qualname__", "on_message")
        await self.register(new_processor, options)

    async def run(self) -> None:
        """Wait until the host is unregistered; raises if it failed. If cancelled, stop it first."""
        if self._engine is None:
            raise OptionError(f"{self.host_name} is not registered")
        await self._engine.run()

    async def unregister(self) -> None:
        """Finish the current batches, close every processor and release the leases.

        It waits for handlers for at most `EventProcessorOptions.stop_s`.
        """
        if self._engine is not None:
            await self._engine.stop()

    stop = unregister

    async def _close_threads(self) -> None:
        """Called when the engine has ended, or could not start."""
        engine, self._engine = self._engine, None
        if self._threads is not None and engine is not None:
            engine.reporter.abandoned(self._threads.close())
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
        """Deliver no more events of one partition, or of all. The host keeps its leases."""
        self._pauses.pause(partition)
        if self._engine is not None:
            self._engine.pause(partition)

    def resume(self, partition: str | None = None) -> None:
        """Deliver events again. A partition that poison has stopped is started again."""
        self._pauses.resume(partition)
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
            if partition.poison is not None:  # report it to `process_error` before `close`
                await engine.reporter.wait(POISON_REPORTED_S)
            if not self._is_in_thread(partition.id):
                await self._close(engine, served)

    async def _close(self, engine: Engine, served: ServedPartition) -> None:
        """An exception of `close` must not replace the reason why the partition ends."""
        context, reason = served.context, close_reason(served.context.partition)
        try:
            await self._call(context, served.processor.close, context, reason)
        except OwnershipLost as lost:
            if reason is not CloseReason.LEASE_LOST:  # after a lost lease this error is expected
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
            await finish(await method(*args))
            return
        assert self._threads is not None
        call = ThreadCall(method, *args, timer=context.partition)
        calls = self._thread_calls.get(context.partition_id, [])
        self._thread_calls[context.partition_id] = [*(each for each in calls if each.runs), call]
        await finish(await in_thread(self._threads, call))

    def _is_in_thread(self, partition: str) -> bool:
        """Whether a plain method still runs in its thread, though its caller was cancelled."""
        return any(call.runs for call in self._thread_calls.get(partition, []))

    # -- errors -----------------------------------------------------------------------------------

    def _failed(self, partition: str | None, error: Exception) -> Coroutine[Any, Any, None]:
        """The object that serves the partition is looked up now: it may be closed soon."""
        return self._call_callbacks(self._served.get(partition or ""), partition, error)

    async def _call_callbacks(
        self, served: ServedPartition | None, partition: str | None, error: Exception
    ) -> None:
        """Call `process_error` of the partition first, then `on_exception` and `on_error`."""
        callbacks = self._callbacks
        assert callbacks is not None
        if served is not None:
            await callbacks.call(
                PROCESS_ERROR, served.processor.process_error, served.context, error
            )
        if self._options.on_exception is not None:
            received = ExceptionReceived(self.host_name, partition, error)
            await callbacks.call(ON_EXCEPTION, self._options.on_exception, received)
        if self._on_error is not None:
            arguments = error_arguments(self._on_error, partition, error)
            await callbacks.call(ON_ERROR, self._on_error, *arguments)

    async def _call_on_error(self, on_error: OnError, error: Exception) -> None:
        """For `start`: its `on_error` takes the place of `process_error`."""
        assert self._callbacks is not None
        await self._callbacks.call(PROCESS_ERROR, on_error, error)


@dataclass(frozen=True, slots=True)
class ServedPartition:
    """A partition while it is ours, and the object that serves it."""

    context: PartitionContext
    processor: EventProcessor
