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

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Self, TypeVar, Unpack

from pumphouse.client.base import DEFAULT_GROUP
from pumphouse.clock import Clock
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor import reporting
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import CallbackThreads, Handling, call_user_code
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


class FixedPartitionProcessor:
    """Claims `partitions` partitions and keeps them.

    The fields of `FixedPartitionOptions` (start, should_checkpoint, lease_s, renew_s,
    max_batch_size, poison) may be given as keywords too.
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
        if partitions < 1:
            raise OptionError(f"partitions must be at least 1 (got {partitions})")
        fixed = replace(options or FixedPartitionOptions(), **settings)
        engine_options = fixed_engine_options(fixed, partitions)
        self.should_checkpoint = fixed.should_checkpoint
        self._batch: list[OnBatch] = []
        self._ownership: dict[str, list[OnPartition]] = {ASSIGNED: [], RENEWED: [], RELEASED: []}
        self._errors: list[OnError] = []
        self._engine = Engine(
            connect,
            self._serve,
            store=store,
            group=group,
            strategy=f"fixed:{partitions}",
            host=host,
            options=engine_options,
            on_error=self._failed,
            on_ownership=self._changed,
            clock=clock,
            rng=rng,
        )
        self._callbacks = CallbackThreads(self.host, OWNERSHIP, ERRORS)
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
        """A processor from the environment variables STORAGE_CONNSTRING, STORAGE_CONTAINER_NAME,
        INBOUND_EVENTHUB_CONNSTRING, INBOUND_EVENTHUB_CONSUMER_GROUP,
        INBOUND_EVENTHUB_MAX_BATCH_SIZE, ASSIGN_TO_X_PARTITIONS, LEASE_FOR_X_SEC and
        RENEW_EVERY_X_SEC. Without a storage account, PUMPHOUSE_STORE may name another store.
        """
        variables = os.environ if environ is None else environ
        default = FixedPartitionOptions()
        size = read_integer(variables, "INBOUND_EVENTHUB_MAX_BATCH_SIZE", default.max_batch_size)
        options = FixedPartitionOptions(
            start=start,
            should_checkpoint=should_checkpoint,
            lease_s=read_seconds(variables, "LEASE_FOR_X_SEC", default.lease_s),
            renew_s=read_seconds(variables, "RENEW_EVERY_X_SEC", default.renew_s),
            max_batch_size=size,
        )
        return cls(
            read_text(variables, "INBOUND_EVENTHUB_CONNSTRING"),
            variables.get("INBOUND_EVENTHUB_CONSUMER_GROUP") or DEFAULT_GROUP,
            partitions=read_integer(variables, "ASSIGN_TO_X_PARTITIONS", None),
            store=read_store(variables, options.lease_s),
            options=options,
            **more,
        )

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

        The first call makes it, and so does a call after it was stopped.
        """
        variables = os.environ if environ is None else environ
        key = (
            variables.get("INBOUND_EVENTHUB_CONNSTRING", ""),
            variables.get("INBOUND_EVENTHUB_CONSUMER_GROUP", ""),
        )
        if key not in cls._made or cls._made[key].stopped:
            cls._made[key] = cls.from_env(start, should_checkpoint, environ=environ, **more)
        return cls._made[key]

    # -- your callbacks ---------------------------------------------------------------------------

    def on_batch(self, handler: B) -> B:
        """Call `handler(partition, events)` for every batch; `partition` can checkpoint."""
        self._batch.append(handler)
        return handler

    def on_assigned(self, handler: P) -> P:
        """Call this with the name of every partition that becomes ours."""
        self._ownership[ASSIGNED].append(handler)
        return handler

    def on_renewed(self, handler: P) -> P:
        """Call this whenever the lease of a partition was renewed."""
        self._ownership[RENEWED].append(handler)
        return handler

    def on_released(self, handler: P) -> P:
        """Call this with the name of every partition that is no longer ours."""
        self._ownership[RELEASED].append(handler)
        return handler

    def on_error(self, handler: E) -> E:
        """Call `handler(partition or None, exception)` for every error."""
        self._errors.append(handler)
        return handler

    # -- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and continue in the background. Raises if the host cannot start."""
        await self._engine.start()
        self._engine.call_on_close(self._close)

    async def stop(self) -> None:
        """Wait for work in progress, write checkpoints, release the partitions. Bounded."""
        self.stopped = True
        await self._engine.stop()

    stopped = False

    async def _close(self) -> None:
        self._callbacks.close()
        await self._handling.close()

    async def run(self) -> None:
        """Until cancelled or stopped; raises if the processor itself failed."""
        await self._engine.run()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

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
        await self._handling.serve(partition)

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        for handler in self._batch:
            await call_user_code(None, handler, partition, batch)

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


# -- the environment ------------------------------------------------------------------------------


def read_text(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        raise OptionError(f"the environment variable {name} is not set")
    return variables[name]


def read_seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; it must be a number of seconds") from None


def read_integer(variables: Mapping[str, str], name: str, default: int | None) -> int:
    if not variables.get(name) and default is not None:
        return default
    text = read_text(variables, name)
    if not text.strip().isdecimal():
        raise OptionError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


def read_store(variables: Mapping[str, str], lease_s: float) -> CheckpointStore:
    if not variables.get("STORAGE_CONNSTRING") and variables.get("PUMPHOUSE_STORE"):
        from pumphouse.leases.store_url import open_store

        return open_store(variables["PUMPHOUSE_STORE"])
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore

    return BlobLeaseStore.from_connection_string(
        read_text(variables, "STORAGE_CONNSTRING"),
        read_text(variables, "STORAGE_CONTAINER_NAME"),
        lease_s=lease_s,
    )
