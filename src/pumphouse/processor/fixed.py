"""The fixed face: a host that takes a given number of partitions and keeps them.

For work that must not move: a day of data in memory, or a database that only one may write to. Once
a second it takes one more free partition, up to its number; it never takes one from another host,
and gives none up while it lives.

    processor = FixedPartitionProcessor.from_env()

    @processor.on_batch
    async def handle(partition, batch): ...   # also on_assigned, on_renewed, on_released, on_error

    await processor.start()                         # returns at once
    await processor.stop()                          # waits for work in progress

    Engine with fixed(n) -> FixedPartitionProcessor -> your event handlers
                            ^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random
from typing import Any, ClassVar, Self, TypeVar

from pumphouse.client.base import DEFAULT_GROUP
from pumphouse.clock import Clock
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import Handling
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.threads import REPORT_THREADS, Calling, in_thread

log = logging.getLogger("pumphouse.processor")

ASSIGN_EVERY_S = 1.0  # one partition a second
LEASE_S, RENEW_S = 60.0, 20.0  # a lease lasts for three renewals
BATCH_EVENTS_MAX = 100

Told = Awaitable[None] | None
OnPartition = Callable[[str], Told]
OnBatch = Callable[[PartitionClient, list[Event]], Told]
OnError = Callable[[str | None, Exception], Told]
P = TypeVar("P", bound=OnPartition)
B = TypeVar("B", bound=OnBatch)
E = TypeVar("E", bound=OnError)

ASSIGNED, RENEWED, RELEASED = "assigned", "renewed", "released"
# What the engine says of a partition, in the words of this face.
WORDS = {"claimed": ASSIGNED, "renewed": RENEWED, "released": RELEASED, "lost": RELEASED}


class FixedPartitionProcessor:
    """Takes `partitions` partitions and keeps them."""

    _made: ClassVar[dict[tuple[str, ...], FixedPartitionProcessor]] = {}

    def __init__(
        self,
        connect: Connect,
        group: str = DEFAULT_GROUP,
        *,
        partitions: int,
        store: CheckpointStore,
        host: str = "",
        start: Position = EARLIEST,
        should_checkpoint: bool = True,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        max_batch_size: int = BATCH_EVENTS_MAX,
        poison: PoisonPolicy | None = None,
        dead_letters: DeadLetters | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        check(partitions, lease_s, renew_s)
        # A renewal writes how far we are, so the checkpoints come as often as the renewals.
        checkpoints = CheckpointPolicy(every_s=renew_s) if should_checkpoint else CheckpointPolicy()
        options = ProcessorOptions(
            interval_s=ASSIGN_EVERY_S,
            lease_s=lease_s,
            renew_s=renew_s,
            batch_events_max=max_batch_size,
            prefetch=max(300, max_batch_size),
            start=start,
            max_partitions=partitions,
            checkpoints=checkpoints,
            poison=poison or PoisonPolicy(),
        )
        self.should_checkpoint = should_checkpoint
        self._batch: list[OnBatch] = []
        self._ownership: dict[str, list[OnPartition]] = {ASSIGNED: [], RENEWED: [], RELEASED: []}
        self._errors: list[OnError] = []
        self._reports: ThreadPoolExecutor | None = None
        self._engine = Engine(
            connect,
            self._serve,
            store=store,
            group=group,
            strategy=f"fixed:{partitions}",
            host=host,
            options=options,
            on_error=self._failed,
            on_ownership=self._changed,
            clock=clock,
            rng=rng,
        )
        self._handling = Handling(
            self._handle,
            options,
            self._engine.report,
            dead_letters=dead_letters,
            group=group,
            host=self._engine.host,
            rng=rng,
        )

    def __repr__(self) -> str:
        return repr(self._engine).replace("Engine", "FixedPartitionProcessor", 1)

    # -- making one -------------------------------------------------------------------------------

    @classmethod
    def from_env(
        cls,
        start: Position = EARLIEST,
        should_checkpoint: bool = True,
        *,
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Self:
        """One from the environment: STORAGE_CONNSTRING, STORAGE_CONTAINER_NAME,
        INBOUND_EVENTHUB_CONNSTRING, INBOUND_EVENTHUB_CONSUMER_GROUP,
        INBOUND_EVENTHUB_MAX_BATCH_SIZE, ASSIGN_TO_X_PARTITIONS, LEASE_FOR_X_SEC and
        RENEW_EVERY_X_SEC. Without a storage account, PUMPHOUSE_STORE may name another store.
        """
        given = os.environ if environ is None else environ
        lease_s = number(given, "LEASE_FOR_X_SEC", LEASE_S)
        return cls(
            need(given, "INBOUND_EVENTHUB_CONNSTRING"),
            given.get("INBOUND_EVENTHUB_CONSUMER_GROUP") or DEFAULT_GROUP,
            partitions=whole(given, "ASSIGN_TO_X_PARTITIONS", None),
            store=store_from(given, lease_s),
            start=start,
            should_checkpoint=should_checkpoint,
            lease_s=lease_s,
            renew_s=number(given, "RENEW_EVERY_X_SEC", RENEW_S),
            max_batch_size=whole(given, "INBOUND_EVENTHUB_MAX_BATCH_SIZE", BATCH_EVENTS_MAX),
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
        """The one of this process for this hub and group: made when it is first asked for."""
        given = os.environ if environ is None else environ
        key = (
            given.get("INBOUND_EVENTHUB_CONNSTRING", ""),
            given.get("INBOUND_EVENTHUB_CONSUMER_GROUP", ""),
        )
        if key not in cls._made or cls._made[key].stopped:
            cls._made[key] = cls.from_env(start, should_checkpoint, environ=environ, **more)
        return cls._made[key]

    # -- what is called ---------------------------------------------------------------------------

    def on_batch(self, handler: B) -> B:
        """Call this with every batch: the partition (it has an id, it can checkpoint), events."""
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
        """Call this with every error: the partition it concerns, or None, and the exception."""
        self._errors.append(handler)
        return handler

    # -- starting and stopping --------------------------------------------------------------------

    async def start(self) -> None:
        """Begin, and go on in the background. Raises what makes that impossible."""
        await self._engine.start()
        self._reports = ThreadPoolExecutor(REPORT_THREADS, "pumphouse reports")
        self._engine.closes(self._let_go)

    async def stop(self) -> None:
        """Wait for work in progress, write checkpoints, release the partitions. Bounded."""
        self.stopped = True
        await self._engine.stop()

    stopped = False

    async def _let_go(self) -> None:
        if self._reports is not None:
            self._reports.shutdown(wait=False, cancel_futures=True)
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
    def owned(self) -> tuple[str, ...]:
        return self._engine.owned

    # -- from the engine --------------------------------------------------------------------------

    async def _serve(self, partition: PartitionClient) -> None:
        await self._handling.serve(partition)

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        for handler in self._batch:
            await told(None, handler, partition, batch)

    def _changed(self, word: str, partition: str) -> Any:
        handlers = self._ownership.get(WORDS.get(word, ""), [])
        if handlers:
            return self._tell_all(handlers, partition)
        return None

    async def _tell_all(self, handlers: list[OnPartition], partition: str) -> None:
        for handler in handlers:
            await self._tell(handler, partition)

    async def _failed(self, partition: str | None, failed: Exception) -> None:
        for handler in self._errors:
            await self._tell(handler, partition, failed)

    async def _tell(self, handler: Callable[..., Any], *args: object) -> None:
        """Call one of them; what it raises keeps nobody else from hearing."""
        try:
            await told(self._reports, handler, *args)
        except Exception:
            log.exception("a callback failed host=%s", self.host)


async def told(threads: Executor | None, handler: Callable[..., Any], *args: object) -> None:
    """Call a handler: await a coroutine function, let a plain one run in a thread."""
    if inspect.iscoroutinefunction(handler):
        await handler(*args)
        return
    answer = await in_thread(threads, Calling(handler, *args))
    if inspect.isawaitable(answer):
        await answer


def check(partitions: int, lease_s: float, renew_s: float) -> None:
    if partitions < 1:
        raise OptionError(f"partitions must be at least 1 (got {partitions})")
    if lease_s < 3 * renew_s:
        raise OptionError(
            "lease_s must be at least 3 x renew_s, so that renewals may fail "
            f"(got lease_s={lease_s:g}, renew_s={renew_s:g})"
        )


# -- the environment ------------------------------------------------------------------------------


def need(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise OptionError(f"the environment variable {name} is not set")
    return given[name]


def number(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; it must be a number of seconds") from None


def whole(given: Mapping[str, str], name: str, default: int | None) -> int:
    text = given.get(name)
    if not text:
        if default is None:
            raise OptionError(f"the environment variable {name} is not set")
        return default
    if not text.strip().isdecimal():
        raise OptionError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


def store_from(given: Mapping[str, str], lease_s: float) -> CheckpointStore:
    if not given.get("STORAGE_CONNSTRING") and given.get("PUMPHOUSE_STORE"):
        from pumphouse.leases.store_url import open_store

        return open_store(given["PUMPHOUSE_STORE"])
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore

    return BlobLeaseStore.from_connection_string(
        need(given, "STORAGE_CONNSTRING"), need(given, "STORAGE_CONTAINER_NAME"), lease_s=lease_s
    )
