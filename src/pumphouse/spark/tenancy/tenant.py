"""A host of the consumer group inside a query: it owns partitions with others, and reads nothing.

The engine is that of the processors. It runs in a thread of its own beside the planner, so leases
are renewed however long a batch takes. The planner asks it what is ours, tells it what was planned
and what Spark has committed, and a task that was evicted asks it what to do.

    planner -> Tenant.rooms, planned, heard -> Lodging -> Engine -> store
               ^^^^^^ this module

All state is of the loop's thread: what is written `async` here is called by way of `wait`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import ConnectionFailed, PumphouseError
from pumphouse.events import Position
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.store_url import open_store, parse_store_url
from pumphouse.processor.engine import Engine
from pumphouse.processor.partition import PartitionClient
from pumphouse.spark.identity import open_hub
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.offsets import order
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.tenancy.appeals import Appeals
from pumphouse.spark.tenancy.commits import folder_of, is_committed
from pumphouse.spark.tenancy.journal import Journal, Loss, Tenancy, goes_on_at, owned_by
from pumphouse.spark.tenancy.leftovers import Leftovers
from pumphouse.spark.tenancy.lodging import Lodging
from pumphouse.spark.tenancy.options import processor_options
from pumphouse.spark.tenancy.rights import Book, Flight, Rights

log = logging.getLogger("pumphouse.spark")

T = TypeVar("T")
CLOSE_S = 20.0
MARKS_S = 0.25  # tasks tell which event was the last a moment after they end
MARKS_TICK_S = 0.001  # Spark waits meanwhile: as much is lost of every batch
LOOK_S = 10.0  # for one event that must be there
TICK_S = 0.02  # how often we look at what nobody tells us of
COMMITS_S = 0.2  # how often Spark's folder is looked into while somebody waits for a partition
NAMES_S = 0.5  # how often it is asked who has what we lost; Spark wants a report at every poll

UNNAMED = "our lease ran out, or another host has it"

Marks = Callable[[], Mapping[str, KnownPosition]]


@dataclass(frozen=True, slots=True)
class Room:
    """A partition that may be planned now."""

    partition: str
    epoch: int
    position: int | None  # None: nobody has said yet where it starts
    found: Checkpoint


class Tenant:
    """One run of a query, as a host."""

    def __init__(
        self,
        options: SourceOptions,
        tenancy: Tenancy,
        host: str,
        journal: Journal,
        *,
        marks: Marks,
        address: str,
        clock: Clock | None = None,
    ) -> None:
        self.options, self.tenancy, self.host = options, tenancy, host
        self.clock: Clock = clock or SystemClock()
        self._client: HubClient = open_hub(options.identity)
        group = Group(self._client.namespace, options.identity.hub, options.group)
        self.book = Book(
            self.host,
            tenancy,
            self.clock,
            open_store(parse_store_url(tenancy.store)),
            group,
            dict(journal.stretches),
            Leftovers(group, (host, journal.host)),
        )
        self.rights = Rights(self.book, self._check)
        self.appeals = Appeals(address, self.rights.judge)
        self._marks, self._folder = marks, folder_of(tenancy.folder)
        self._one = asyncio.Lock()  # one hears of a commit
        self._renewed_s: dict[str, float] = {}
        self._gap_s = 0.0  # the longest between two renewals of a partition
        self._names_asked_s = self.clock.monotonic() - NAMES_S
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tenant", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return (
            f"<Tenant {self.host} | {' '.join(sorted(self.book.lodgings, key=order)) or 'nothing'}>"
        )

    # -- from plain code --------------------------------------------------------------------------

    def wait(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run it in the loop and wait for it, no longer than `operationTimeout`."""
        limit_s = seconds or self.options.identity.operation_timeout_s
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise ConnectionFailed(f"{self.host} could not go on within {limit_s:g} s") from None

    def close(self) -> None:
        """Write what is known to be done, give up what we own, leave. Bounded."""
        self._end(self.leave())

    def abandon(self) -> None:
        """End as a crash would: nothing is written, and nothing given up."""
        self._end(self._cut_off())

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        with suppress(TimeoutError, PumphouseError):
            asyncio.run_coroutine_threadsafe(work, self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    # -- coming and going -------------------------------------------------------------------------

    async def start(self) -> None:
        async with open_store(parse_store_url(self.tenancy.store)) as store:
            await self.book.leftovers.read(store)
        self.book.forget_what_was_left()
        self._engine = Engine(
            lambda: self._client,
            self._stay,
            store=self.book.store,
            group=self.options.group,
            strategy=self.tenancy.assignment,
            host=self.host,
            options=processor_options(self.tenancy),
            on_ownership=self._told,
            clock=self.clock,
        )
        await self._engine.start()
        await self.appeals.start()
        self._running = asyncio.ensure_future(self._engine.run())
        self._watching = asyncio.ensure_future(self._watch_commits())
        log.info("tenant host=%s assignment=%s", self.host, self.tenancy.assignment)

    async def leave(self) -> None:
        """A host that keeps what it has leaves its rows as they are: they last for the lease."""
        self.appeals.close()
        self._watching.cancel()
        if self._is_done():
            await self.committed()
        for lodging in self.book.lodgings.values():
            lodging.close()
        if self.tenancy.keeps:
            await self._write_all()
            self._engine.abandon()
        await self._engine.stop()

    async def _cut_off(self) -> None:
        self.appeals.close()
        self._watching.cancel()
        self._engine.abandon()
        await self._engine.stop()

    async def _write_all(self) -> None:
        """Until what was handled is written, or the store does not take it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.tenancy.lease_s / 3):
                while any(lodging.unwritten for lodging in self.book.lodgings.values()):
                    await self.clock.sleep(TICK_S)

    async def _stay(self, client: PartitionClient) -> None:
        """What the engine calls for every partition that becomes ours."""
        checkpoints, one = self.tenancy.checkpoints, client.id
        lodging = Lodging(client, checkpoints=checkpoints)
        told = self.book.journal.pop(one, None)
        lodging.position = goes_on_at(client.start_checkpoint, told, checkpoints=checkpoints)
        self.book.lodgings[one] = lodging
        self.book.losses.pop(one, None)
        log.info("lodge partition=%s epoch=%d at=%s", one, client.epoch, lodging.position)
        try:
            await lodging.stay()
        finally:
            if self.book.lodgings.get(one) is lodging:
                del self.book.lodgings[one]
            log.info("leave partition=%s epoch=%d (%s)", one, client.epoch, client.reason)

    def _told(self, word: str, partition: str) -> None:
        self._time_renewal(word, partition)
        lodging = self.book.lodgings.get(partition)
        if lodging is not None:
            lodging.wake()
        if word == "lost":
            self.book.losses.setdefault(partition, Loss(partition, UNNAMED))

    def _time_renewal(self, word: str, partition: str) -> None:
        now_s = self.clock.monotonic()
        if word in ("lost", "released"):
            self._renewed_s.pop(partition, None)
        elif word == "renewed":
            self._gap_s = max(self._gap_s, now_s - self._renewed_s.get(partition, now_s))
        if word in ("claimed", "renewed"):
            self._renewed_s[partition] = now_s

    # -- planning ---------------------------------------------------------------------------------

    async def settle(self, limit_s: float, *, fully: bool) -> None:
        """Until it is known what is ours at first: our share (`fully`), or anything at all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self._is_settled(fully):
                    self._check()
                    await self.clock.sleep(TICK_S)

    def _is_settled(self, fully: bool) -> bool:
        """What is ours may be planned once its stay has begun, a moment after its claim."""
        owned = self._engine.owned
        enough = self._engine.settled or (bool(owned) and not fully)
        return enough and all(one in self.book.lodgings for one in owned)

    def _check(self) -> None:
        """Raise why the engine has ended, if it has."""
        if self._running.done():
            self._running.result()

    async def rooms(self) -> list[Room]:
        """What may be planned now. None of it is handed over before `planned` is called."""
        self._check()
        free = [lodging for lodging in self.book.lodgings.values() if not lodging.leaving]
        for lodging in free:
            lodging.plan()
        return [
            Room(one.partition, one.epoch, one.position, one.client.start_checkpoint)
            for one in sorted(free, key=lambda one: order(one.partition))
        ]

    async def starts_at(self, partition: str, position: int, before: KnownPosition | None) -> None:
        """A partition without a checkpoint starts there; `before` is written so that it stays."""
        lodging = self.book.lodgings.get(partition)
        if lodging is None:
            return
        lodging.position = position
        if before is not None and lodging.checkpoints:
            lodging.note(before)

    async def planned(self, end: Mapping[str, Any], journal: Journal) -> None:
        """A batch reads these stretches; everything else of ours is not under way."""
        reads = {}
        for one, stretch in journal.stretches.items():
            lodging = self.book.lodgings.get(one)
            if stretch.count and lodging is not None and lodging.epoch == stretch.epoch:
                lodging.position = stretch.last
                reads[one] = (lodging, stretch)
        self.book.flight = Flight(end, reads)
        self._drop_idle()

    async def unplanned(self) -> None:
        """Nothing is to be read."""
        self._drop_idle()

    def _drop_idle(self) -> None:
        under_way = {} if self.book.flight is None else self.book.flight.reads
        for one, lodging in self.book.lodgings.items():
            if one not in under_way:
                lodging.drop()

    # -- what Spark has done ----------------------------------------------------------------------

    async def heard(self, start: Mapping[str, Any]) -> None:
        """Spark plans the batch after `start`: so it has committed the one that ends there."""
        if self.book.flight is None:
            return
        if self.book.flight.end == start:
            await self.committed()
        else:  # the batch that we planned was never run
            flight, self.book.flight = self.book.flight, None
            for lodging, stretch in flight.reads.values():
                lodging.position = stretch.first
            self._drop_idle()

    async def committed(self) -> None:
        """The batch under way is done: its checkpoints are written, and who must go, goes."""
        async with self._one:
            flight, self.book.flight = self.book.flight, None
            if flight is None:
                return
            marks = await self._marks_of(flight)
            for one, (lodging, stretch) in flight.reads.items():
                lodging.handled(marks.get(one), stretch.count)

    async def _marks_of(self, flight: Flight) -> dict[str, KnownPosition]:
        """The last event of each stretch: as tasks told, or else as the hub tells."""
        if not self.tenancy.checkpoints:
            return {}
        wanted = {one: stretch.last - 1 for one, (_, stretch) in flight.reads.items()}
        with suppress(TimeoutError):
            async with asyncio.timeout(MARKS_S if self.options.feedback else TICK_S):
                while len(known := self._known(wanted)) < len(wanted):
                    await self.clock.sleep(MARKS_TICK_S)
        known = self._known(wanted)
        missing = [one for one in wanted if one not in known]
        found = await asyncio.gather(*(self.look(one, wanted[one]) for one in missing))
        return known | {one: mark for one, mark in zip(missing, found, strict=True) if mark}

    def _known(self, wanted: Mapping[str, int]) -> dict[str, KnownPosition]:
        return {
            one: mark
            for one, mark in self._marks().items()
            if wanted.get(one) == mark.sequence and mark.offset is not None
        }

    async def look(self, partition: str, sequence: int) -> KnownPosition | None:
        """One event, looked at. No task reads while Spark plans, so nobody is evicted by it."""
        lodging = self.book.lodgings.get(partition)
        if lodging is None or not lodging.live:
            return None
        at = Position("sequence", str(sequence), inclusive=True)
        options = ReaderOptions(
            partition, self.options.group, at, epoch=lodging.epoch, prefetch=1, name=self.host
        )
        try:
            reader = await self._client.reader(options)
            try:
                events = await reader.receive(1, LOOK_S)
            finally:
                await reader.close()
        except PumphouseError as failed:
            log.warning("checkpoint partition=%s at=%d unknown: %s", partition, sequence, failed)
            return None
        if not events or events[0].sequence != sequence:
            return None
        return KnownPosition(sequence, events[0].offset, events[0].enqueued_ms)

    def _is_done(self) -> bool:
        """Whether Spark's own files say that the batch under way is done."""
        flight, folder = self.book.flight, self._folder
        return flight is not None and folder is not None and is_committed(folder, flight.end)

    async def _watch_commits(self) -> None:
        """While somebody waits for a partition, do not wait for Spark's next trigger to go."""
        while self._folder is not None:
            await self.clock.sleep(COMMITS_S)
            reads = self.book.flight.reads.values() if self.book.flight is not None else ()
            if any(lodging.leaving for lodging, _ in reads) and self._is_done():
                await self.committed()

    # -- telling ----------------------------------------------------------------------------------

    async def report(self) -> dict[str, Any]:
        """How it stands, for the progress of the query."""
        await self._name_losses()
        lodgings = [self.book.lodgings[one] for one in sorted(self.book.lodgings, key=order)]
        losses = [self.book.losses[one] for one in sorted(self.book.losses, key=order)]
        return {
            "host": self.host,
            "assignment": self.tenancy.assignment,
            "owns": {one.partition: one.epoch for one in lodgings if one.live},
            "leaving": [one.partition for one in lodgings if one.leaving],
            "lost": [loss.to_json() for loss in losses],
            "renewalGapSeconds": round(self._gap_s, 3),
        }

    async def _name_losses(self) -> None:
        """Say who has what we lost, once that can be found out."""
        unnamed = [loss.partition for loss in self.book.losses.values() if loss.why == UNNAMED]
        now_s = self.clock.monotonic()
        if not unnamed or now_s < self._names_asked_s + NAMES_S:
            return
        self._names_asked_s = now_s
        with suppress(PumphouseError):
            rows = (await self.book.store.list_ownership(self.book.group)).ownerships
            for row in rows:
                if row.partition in unnamed and self.book.is_anothers(row):
                    self.book.losses[row.partition] = loss = Loss(row.partition, owned_by(row))
                    log.warning("lose %s", loss)
