"""ProcessorGroup: processors of several hubs or consumer groups in one process.

    group = ProcessorGroup(connection_of_namespace, store=store, host="vm-1")
    group.pull("orders", serve)                        # a Processor
    group.push("alarms", SimpleEventProcessor)         # an EventProcessorHost
    group.fixed("doors", on_batch, partitions=2)       # a FixedPartitionProcessor
    await group.run()                                  # until one fails, or it is stopped

    ProcessorGroup -> one store, one client per hub -> Processor, EventProcessorHost, ...
    ^^^^^^^^^^^^^^ this module
                   -> /livez, /readyz: one result for all members

Members start together: if one cannot start, none runs. If a member fails while it runs, the others
are stopped and `run` raises its error. With `keep_going` the others continue; the process is then
not ready, and `run` raises when all have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from pumphouse.client.base import DEFAULT_GROUP, ConnectionString, HubClient
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore
from pumphouse.option_names import named_options, unknown_name
from pumphouse.processor.checks.factories import check_factory
from pumphouse.processor.checks.parts import check_connect, check_store
from pumphouse.processor.checks.values import check_flag, check_function
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor, OnBatch
from pumphouse.processor.handling.event_processors import Factory, OnError, OnMessage
from pumphouse.processor.health.host_health import HostHealth
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.hosting.environment import read_environment
from pumphouse.processor.hosting.shared_client import SharedClient
from pumphouse.processor.options import EventProcessorOptions, ProcessorOptions
from pumphouse.processor.processor import Processor
from pumphouse.processor.pump import Serve
from pumphouse.telemetry.health import CHECKS, LIVE, READY

ConnectHub = str | ConnectionString | Callable[[str], HubClient]
AnyProcessor = Processor | EventProcessorHost | FixedPartitionProcessor


@dataclass(slots=True, eq=False)
class Member:
    """One processor, and how it is run: `serve` calls its argument when it has started."""

    name: str
    processor: AnyProcessor
    serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]
    started: asyncio.Event = field(default_factory=asyncio.Event)
    engine: Engine | None = None  # stays after the end, for the health checks
    task: asyncio.Task[None] | None = None

    def has_ended(self, task: asyncio.Task[None]) -> None:
        """Its task has ended; nothing waits for its start any more."""
        self.started.set()

    @property
    def error(self) -> BaseException | None:
        """Why it has failed."""
        task = self.task
        return None if task is None or not task.done() or task.cancelled() else task.exception()


@named_options()
class ProcessorGroup:
    """Processors that share a store, clients and a host name, and start and end together.

    `connect` is a connection string of the namespace (a hub in it is replaced), or a function that
    returns the client of the hub that it is called with, for instance with a credential.
    """

    def __init__(
        self,
        connect: ConnectHub,
        *,
        store: CheckpointStore,
        host: str = "",
        keep_going: bool = False,
    ) -> None:
        check_connect("connect", connect, "hub")
        check_store(store)
        check_flag("keep_going", keep_going)
        self.store = store
        self.host = host or EventProcessorHost.create_host_name()
        self._connect, self._keep_going = connect, keep_going
        self._clients: dict[str, SharedClient] = {}
        self._members: dict[str, Member] = {}
        self._is_started = False
        self._start_ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None  # by `stop`
        self._opened = AsyncExitStack()

    @classmethod
    def from_env(cls, *, environ: Mapping[str, str] | None = None, **more: Any) -> Self:
        """A group for the namespace and the store of environment variables.

        They are those of `Processor.from_env`. EVENT_HUB_NAME and PUMPHOUSE_GROUP are not used.
        """
        settings = read_environment(environ)
        if "store" not in more:
            more["store"] = settings.open_store(ProcessorOptions().lease_s, "lease_s")
        return cls(settings.connect_to, **{"host": settings.host} | more)

    def __repr__(self) -> str:
        return f"<ProcessorGroup {self.host} | {', '.join(self._members) or 'no members'}>"

    # -- members ----------------------------------------------------------------------------------

    @property
    def members(self) -> dict[str, AnyProcessor]:
        """The processors by HUB/GROUP."""
        return {name: member.processor for name, member in self._members.items()}

    def pull(self, hub: str, serve: Serve, group: str = DEFAULT_GROUP, **options: Any) -> Processor:
        """Add a `Processor` that calls `serve(partition)`; `options` are its arguments."""
        check_function("serve", serve, "partition")
        processor = Processor(self.connect(hub), group, **self._shared(options))

        async def run(started: asyncio.Event) -> None:
            async with processor:
                started.set()
                await processor.run(serve)

        self._add(hub, group, processor, run)
        return processor

    def push(
        self,
        hub: str,
        factory: Factory | None = None,
        group: str = DEFAULT_GROUP,
        *,
        on_message: OnMessage | None = None,
        on_message_error: OnError | None = None,
        event_processor_options: EventProcessorOptions | None = None,
        **options: Any,
    ) -> EventProcessorHost:
        """Add an `EventProcessorHost` with a `factory`, or with a function `on_message`."""
        if (factory is None) == (on_message is None):
            raise OptionError("push needs a factory or on_message, and not both")
        if factory is not None:
            check_factory(factory)
        else:
            check_function("on_message", on_message, "context", "event")
        arguments = self._shared(options)
        host = EventProcessorHost(arguments.pop("host"), self.connect(hub), group, **arguments)

        async def run(started: asyncio.Event) -> None:
            async with host:
                if factory is not None:
                    await host.register(factory, event_processor_options)
                elif on_message is not None:
                    await host.start(on_message, on_message_error, event_processor_options)
                started.set()
                await host.run()

        self._add(hub, group, host, run)
        return host

    def fixed(
        self, hub: str, on_batch: OnBatch, group: str = DEFAULT_GROUP, **options: Any
    ) -> FixedPartitionProcessor:
        """Add a `FixedPartitionProcessor`; `partitions` must be among the options."""
        processor = FixedPartitionProcessor(self.connect(hub), group, **self._shared(options))
        processor.on_batch(on_batch)

        async def run(started: asyncio.Event) -> None:
            async with processor:
                started.set()
                await processor.run()

        self._add(hub, group, processor, run)
        return processor

    def connect(self, hub: str) -> Callable[[], HubClient]:
        """A function that returns the client of this hub, which all members share."""
        if hub not in self._clients:
            self._clients[hub] = SharedClient(lambda: self._open(hub))
        return lambda: self._clients[hub]

    def _open(self, hub: str) -> HubClient:
        return self._connect(hub) if callable(self._connect) else open_client(self._connect, hub)

    def _shared(self, options: dict[str, Any]) -> dict[str, Any]:
        for name in ("store", "host", "connect"):
            if name in options:
                raise OptionError(f"{name} is given to the ProcessorGroup, not to its members")
        return {**options, "store": self.store, "host": self.host}

    def _add(
        self,
        hub: str,
        group: str,
        processor: AnyProcessor,
        serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    ) -> None:
        name = f"{hub}/{group}"
        if self._is_started:
            raise OptionError(f"{name} cannot be added: the group has started")
        if name.lower() in map(str.lower, self._members):
            raise OptionError(f"{name} is in the group already: two hosts would have one name")
        self._members[name] = Member(name, processor, serve)

    # -- starting and stopping --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all members, and continue in the background. If one cannot start, stop them all.

        If `stop` is called meanwhile, it returns when everything has stopped.
        """
        if self._is_started:
            raise OptionError(f"{self.host} was started already; make a new group to start again")
        if not self._members:
            raise OptionError("the group has no members: call pull, push or fixed first")
        self._is_started = True
        try:
            await self._start_members()
        finally:
            self._start_ended.set()

    async def _start_members(self) -> None:
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(self.store)
            if self._stopping.is_set():
                return
            for kind, check in ((LIVE, self.not_live), (READY, self.not_ready)):
                CHECKS.add(kind, self._check_name, check)
                undo.callback(CHECKS.remove, kind, self._check_name)
            # Pushed last, so called first: the process is not ready while its members stop.
            undo.push_async_callback(self._stop_members)
            for member in self._members.values():
                member.task = asyncio.create_task(self._run_member(member), name=member.name)
                # Not in the task: if it is cancelled before its first turn, it runs no code at all.
                member.task.add_done_callback(member.has_ended)
            for member in self._members.values():
                await self._started(member)
            if not self._stopping.is_set():
                self._opened = undo.pop_all()

    async def _run_member(self, member: Member) -> None:
        try:
            await member.serve(member.started)
        except Exception as error:
            error.add_note(f"of the processor {member.name}")
            raise

    async def _started(self, member: Member) -> None:
        await member.started.wait()
        member.engine = engine_of(member.processor)
        if member.engine is None or member.engine.ended:
            await asyncio.wait([task_of(member)])
        if member.error is not None:
            raise member.error

    async def run(self) -> None:
        """Start the group if it is not started, and wait until a member fails or all have ended.

        If cancelled, stop the members first.
        """
        if not self._is_started:
            await self.start()
        try:
            await self._wait()
        finally:
            await self._close()
        self._raise_errors()

    async def _wait(self) -> None:
        when = asyncio.ALL_COMPLETED if self._keep_going else asyncio.FIRST_EXCEPTION
        if tasks := self._tasks():
            await asyncio.wait(tasks, return_when=when)

    async def stop(self) -> None:
        """Stop all members: finish batches, write checkpoints, release partitions.

        Raises the error of a member that has failed. A group that is starting ends its start; one
        that was not started yet starts nothing when `run` is called. If a handler calls this, it
        returns at once, and the group stops after that handler has returned.
        """
        self._stopping.set()
        if not self._is_started:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end group {self.host}")
        caller = asyncio.current_task()
        engines = [engine for _, engine in self._engines()]
        for engine in engines:
            engine.reporter.ignore(caller)  # a callback that awaits stop() is not awaited by it
        if not any(engine.is_served_by(caller) for engine in engines):
            await asyncio.shield(self._ending)
            self._raise_errors()

    async def _end(self) -> None:
        for member in self._members.values():
            if member.task is not None and not member.started.is_set():
                member.task.cancel()
        await self._start_ended.wait()
        await self._close_members()

    def pause(self, member: str | None = None) -> None:
        """Deliver no more batches of the member HUB/GROUP, or of all. They keep their leases."""
        for processor in self._chosen(member):
            processor.pause()

    def resume(self, member: str | None = None) -> None:
        """Deliver batches again. Partitions that poison has stopped are started again."""
        for processor in self._chosen(member):
            processor.resume()

    def _chosen(self, member: str | None) -> list[AnyProcessor]:
        if member is None:
            return list(self.members.values())
        if member not in self._members:
            raise OptionError(f"the group has no member {unknown_name(member, self._members)}")
        return [self._members[member].processor]

    async def _close(self) -> None:
        await self._close_members()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _close_members(self) -> None:
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()
        # Another caller may be closing: wait for the same end.
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the members that were started."""
        return [member.task for member in self._members.values() if member.task is not None]

    async def _stop_members(self) -> None:
        self._stopping.set()
        await asyncio.gather(*map(stop_member, self._members.values()))

    def _raise_errors(self) -> None:
        errors = [member.error for member in self._members.values() if member.error is not None]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} members of the group failed", errors)

    # -- health -----------------------------------------------------------------------------------

    @property
    def _check_name(self) -> str:
        return f"processor group {self.host}"

    def not_live(self) -> str | None:
        """Why a member is not live; None if all are. Served at /livez while the group runs."""
        return joined({name: HostHealth(engine).not_live() for name, engine in self._engines()})

    def not_ready(self) -> str | None:
        """Why a member is not ready; None if all are. Served at /readyz while the group runs."""
        if self._stopping.is_set():
            return "the group stops"
        return joined({name: why_not_ready(member) for name, member in self._members.items()})

    def _engines(self) -> list[tuple[str, Engine]]:
        return [
            (name, member.engine)
            for name, member in self._members.items()
            if member.engine is not None
        ]


def engine_of(processor: AnyProcessor) -> Engine | None:
    return processor.engine


def why_not_ready(member: Member) -> str | None:
    if member.error is not None:
        return f"it has failed: {type(member.error).__name__}"
    return "it starts" if member.engine is None else HostHealth(member.engine).not_ready()


def task_of(member: Member) -> asyncio.Task[None]:
    assert member.task is not None
    return member.task


async def stop_member(member: Member) -> None:
    """Stop a member, and wait for its task; its error stays in the task."""
    task = task_of(member)
    if member.started.is_set():
        with suppress(Exception):
            await member.processor.stop()
    else:
        task.cancel()
    await asyncio.wait([task])


def joined(problems: dict[str, str | None]) -> str | None:
    texts = [f"{name}: {problem}" for name, problem in problems.items() if problem is not None]
    return "; ".join(texts) or None
