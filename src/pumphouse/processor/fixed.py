"""FixedPartitionProcessor: a host that claims a fixed number of partitions and keeps them.

For work that must not move: a day of data in memory, or a database with a single writer. Once a
second it claims one more free partition, up to `partitions`. It never takes a partition from
another host, and gives none up while it runs.

    processor = FixedPartitionProcessor.from_env()

    @processor.on_batch
    async def handle(partition, batch): ...   # also on_assigned, on_renewed, on_released, on_error

    await processor.start()                         # returns at once
    await processor.stop()                          # waits for work in progress

    Engine with fixed(n) -> FixedPartitionProcessor -> your event handlers
                            ^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Self, TypeVar, Unpack

from pumphouse.client.base import DEFAULT_GROUP
from pumphouse.clock import Clock
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import fixed
from pumphouse.option_names import named_options
from pumphouse.processor import reporting
from pumphouse.processor.checks.parts import check_connect, check_dead_letters, check_store
from pumphouse.processor.checks.values import (
    check_function,
    check_name,
    check_options,
    check_whole,
)
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import Handling
from pumphouse.processor.handling.threads import CallbackThreads, DaemonThreads, call_user_code
from pumphouse.processor.hosting.fixed_environment import (
    OF_HUB,
    SETTINGS,
    name_of,
    read_hub,
    read_integer,
    read_options,
    read_store,
)
from pumphouse.processor.options import (
    FixedPartitionOptions,
    FixedPartitionSettings,
    fixed_engine_options,
)
from pumphouse.processor.partition import PartitionClient

MaybeAwaitable = Awaitable[None] | None
OnPartition = Callable[[str], MaybeAwaitable]
OnBatch = Callable[[PartitionClient, list[Event]], MaybeAwaitable]
OnError = Callable[[str | None, Exception], MaybeAwaitable]
P = TypeVar("P", bound=OnPartition)
B = TypeVar("B", bound=OnBatch)
E = TypeVar("E", bound=OnError)

ASSIGNED, RENEWED, RELEASED = "assigned", "renewed", "released"
# The names that this API has for the changes of ownership which the engine reports.
CHANGES = {
    reporting.CLAIMED: ASSIGNED,
    reporting.RENEWED: RENEWED,
    reporting.RELEASED: RELEASED,
    reporting.LOST: RELEASED,
}
OWNERSHIP, ERRORS = "ownership callbacks", "error callbacks"


@named_options(FixedPartitionSettings.__annotations__)
class FixedPartitionProcessor:
    """Claims `partitions` partitions and keeps them.

    Each field of `FixedPartitionOptions` can also be passed as a keyword, such as `lease_s=60`.
    """

    _made: ClassVar[dict[tuple[str, ...], FixedPartitionProcessor]] = {}

    def __init__(
        self,
        connect: Connect,
        group: str = DEFAULT_GROUP,
        *,
        partitions: int,
        store: CheckpointStore,
        host: str = "",
        options: FixedPartitionOptions | None = None,
        dead_letters: DeadLetters | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        **settings: Unpack[FixedPartitionSettings],
    ) -> None:
        check_whole("partitions", partitions, 1)
        check_connect("connect", connect, has_hub=True)
        check_store(store)
        check_dead_letters(dead_letters)
        check_name("group", group)
        check_name("host", host or "host")
        check_options("options", options, FixedPartitionOptions, "lease_s=60")
        given = replace(options or FixedPartitionOptions(), **settings)
        engine_options = fixed_engine_options(given, partitions)
        self.should_checkpoint = given.should_checkpoint
        self._batch: list[OnBatch] = []
        self._has_batch_handler = asyncio.Event()
        self._ownership: dict[str, list[OnPartition]] = {ASSIGNED: [], RENEWED: [], RELEASED: []}
        self._errors: list[OnError] = []
        self._engine = Engine(
            connect,
            self._serve,
            store=store,
            group=group,
            strategy=fixed(partitions, paced=True),
            host=host,
            options=engine_options,
            on_error=self._failed,
            on_ownership=self._changed,
            clock=clock,
            rng=rng,
        )
        self._callbacks = CallbackThreads(self._engine.reporter, OWNERSHIP, ERRORS)
        self._threads = DaemonThreads(engine_options.handler_threads, "pumphouse handler")
        self._handling = Handling(
            self._handle,
            engine_options,
            self._engine.reporter,
            dead_letters=dead_letters,
            group=group,
            host=self.host,
            rng=rng,
        )

    def __repr__(self) -> str:
        return repr(self._engine).replace("Engine", "FixedPartitionProcessor", 1)

    # -- construction -----------------------------------------------------------------------------

    @classmethod
    def from_env(
        cls,
        start: Position = EARLIEST,
        should_checkpoint: bool = True,
        *,
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Self:
        """A processor from environment variables.

        They are those of `Processor.from_env`, ASSIGN_TO_X_PARTITIONS, LEASE_FOR_X_SEC,
        RENEW_EVERY_X_SEC and INBOUND_EVENTHUB_MAX_BATCH_SIZE. If they are set, these have
        precedence: INBOUND_EVENTHUB_CONNSTRING, INBOUND_EVENTHUB_CONSUMER_GROUP, and
        STORAGE_CONNSTRING with STORAGE_CONTAINER_NAME. `more` are arguments of the processor and
        fields of its options, such as `lease_s=30`; they take precedence over all variables.
        """
        variables = os.environ if environ is None else environ
        settings = {name: more.pop(name) for name in SETTINGS & more.keys()}
        if (options := more.pop("options", None)) is None:
            settings |= {"start": start, "should_checkpoint": should_checkpoint}
            options = read_options(variables, **settings)
        else:
            check_options("options", options, FixedPartitionOptions, "lease_s=60")
            options = replace(options, **settings)
        if "partitions" not in more:
            more["partitions"] = read_integer(variables, "ASSIGN_TO_X_PARTITIONS", None)
            check_whole("ASSIGN_TO_X_PARTITIONS", more["partitions"], 1)
        connect, group, host = read_hub(variables)
        if "store" not in more:
            more["store"] = read_store(variables, options.lease_s, name_of("lease_s", settings))
        return cls(**{"connect": connect, "group": group, "host": host, "options": options} | more)

    @classmethod
    def get_or_create(
        cls,
        start: Position = EARLIEST,
        should_checkpoint: bool = True,
        *,
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> FixedPartitionProcessor:
        """The processor of this process for this hub and group.

        The first call creates it. A call after it has stopped or failed creates a new one.
        """
        variables = os.environ if environ is None else environ
        key = tuple(variables.get(name, "") for name in OF_HUB)
        if key not in cls._made or cls._made[key].stopped:
            cls._made[key] = cls.from_env(start, should_checkpoint, environ=environ, **more)
        return cls._made[key]

    # -- your callbacks ---------------------------------------------------------------------------

    def on_batch(self, handler: B) -> B:
        """Register `handler(partition, events)` for every batch; see `PartitionClient`.

        Without one, partitions are assigned, but their events are not read.
        """
        check_function("on_batch", handler, "partition", "events")
        self._batch.append(handler)
        self._has_batch_handler.set()
        self._engine.reporter.name_handler(handler)
        return handler

    def on_assigned(self, handler: P) -> P:
        """Register `handler(partition_id)`, called when this host has claimed a partition."""
        check_function("on_assigned", handler, "partition_id")
        self._ownership[ASSIGNED].append(handler)
        return handler

    def on_renewed(self, handler: P) -> P:
        """Register `handler(partition_id)`, called when a lease was renewed."""
        check_function("on_renewed", handler, "partition_id")
        self._ownership[RENEWED].append(handler)
        return handler

    def on_released(self, handler: P) -> P:
        """Register `handler(partition_id)`, called when this host no longer owns a partition."""
        check_function("on_released", handler, "partition_id")
        self._ownership[RELEASED].append(handler)
        return handler

    def on_error(self, handler: E) -> E:
        """Register `handler(partition_id or None, exception)`, called with every error."""
        check_function("on_error", handler, "partition_id", "exception")
        self._errors.append(handler)
        return handler

    # -- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and continue in the background. Raises if the host cannot start."""
        await self._engine.start()
        self._engine.call_on_close(self._close)

    async def stop(self) -> None:
        """Wait for handlers (at most `stop_s`), write checkpoints, release the partitions."""
        self._stopped = True
        await self._engine.stop()

    _stopped = False

    @property
    def stopped(self) -> bool:
        """Whether it was stopped, or has ended by itself. It cannot be started again."""
        return self._stopped or self._engine.ended

    async def _close(self) -> None:
        self._callbacks.close()
        self._engine.reporter.abandoned(self._threads.close())
        await self._handling.close()

    async def run(self) -> None:
        """Wait until the processor is stopped; raises if it failed. If cancelled, stop it first."""
        await self._engine.run()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def pause(self, partition: str | None = None) -> None:
        """Hand out no more batches, of one partition or of all; the leases are kept."""
        self._engine.pause(partition)

    def resume(self, partition: str | None = None) -> None:
        """Hand out batches again. A partition that poison has stopped is started again."""
        self._engine.resume(partition)

    @property
    def host(self) -> str:
        return self._engine.host

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def owned(self) -> tuple[str, ...]:
        return self._engine.owned

    # -- called by the engine ---------------------------------------------------------------------

    async def _serve(self, partition: PartitionClient) -> None:
        if not self._batch:
            # Batches that no handler gets would count as handled.
            self._engine.reporter.warning("batch_handler_missing", partition=partition.id)
        if await partition.wait_for(self._has_batch_handler):
            await self._handling.serve(partition)

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        """With several handlers, a batch is handled only after the last one."""
        for position, handler in enumerate(self._batch, 1):
            partition.set_in_hand(batch if position == len(self._batch) else [])
            events = list(batch)  # the handler may change its list
            await call_user_code(self._threads, handler, partition, events, timer=partition)

    def _changed(self, change: str, partition: str) -> Any:
        handlers = self._ownership.get(CHANGES.get(change, ""), [])
        return self._call_all(OWNERSHIP, handlers, partition) if handlers else None

    async def _failed(self, partition: str | None, error: Exception) -> None:
        await self._call_all(ERRORS, self._errors, partition, error)

    async def _call_all(
        self, lane: str, handlers: Iterable[Callable[..., Any]], *args: object
    ) -> None:
        for handler in handlers:
            await self._callbacks.call(lane, handler, *args)
