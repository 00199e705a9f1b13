"""Whose a stretch of a batch is: asked before a batch is read, and when a task was evicted.

Between planning and reading a partition may have been lost; after a crash nothing is known but the
journal. The rows tell whose a partition is, and the checkpoint whether somebody has read on. What
is not ours to read is left to its owner, and said.

    TenantDriver.parts -> Rights.entitle -> epochs for the tasks
    evicted task -> Appeals -> Rights.judge -> go on, leave, fail
                               ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost, ReaderEvicted
from pumphouse.leases.model import Group, Ownership
from pumphouse.leases.store import CheckpointStore
from pumphouse.spark.offsets import Span
from pumphouse.spark.tenancy.appeals import FAIL, GO, LEAVE, Appeal, Ruling
from pumphouse.spark.tenancy.journal import (
    Journal,
    Loss,
    Stretch,
    Tenancy,
    goes_on_at,
    may_read,
    owned_by,
)
from pumphouse.spark.tenancy.leftovers import Leftovers
from pumphouse.spark.tenancy.lodging import Lodging

log = logging.getLogger("pumphouse.spark")

LOOK_AGAIN_S = 0.2  # at a row of which nobody has told yet whose it is


@dataclass(slots=True)
class Flight:
    """The batch of which Spark has not said yet that it is done."""

    end: Mapping[str, Any]
    reads: dict[str, tuple[Lodging, Stretch]] = field(default_factory=dict)


@dataclass(slots=True)
class Book:
    """What a tenant knows: of the loop's thread only."""

    host: str
    tenancy: Tenancy
    clock: Clock
    store: CheckpointStore
    group: Group
    journal: dict[str, Stretch]  # what was committed before this run
    leftovers: Leftovers
    lodgings: dict[str, Lodging] = field(default_factory=dict)
    losses: dict[str, Loss] = field(default_factory=dict)
    flight: Flight | None = None

    def forget_what_was_left(self) -> None:
        """Of what was committed, trust only what was read."""
        for one, stretch in self.journal.items():
            if self.leftovers.has(one, stretch):
                self.journal[one] = stretch.unread

    def is_anothers(self, row: Ownership) -> bool:
        return row.owner not in ("", self.host) and not row.expired(self.tenancy.lease_s)

    async def row(self, partition: str) -> Ownership | None:
        rows = (await self.store.list_ownership(self.group)).ownerships
        return next((row for row in rows if row.partition == partition), None)


class Rights:
    """Judges stretches by the rows. `check` raises why the engine has ended, if it has."""

    def __init__(self, book: Book, check: Callable[[], None]) -> None:
        self.book, self._check = book, check

    async def entitle(self, end: Mapping[str, Any], journal: Journal) -> dict[str, int]:
        """The epochs with which a batch may be read now; what it may not is left to its owners."""
        if self.book.flight is None or self.book.flight.end != end:
            self.book.flight = Flight(end)  # a batch of an earlier run, to be replayed
        wanted = {span.partition: journal.stretches[span.partition] for span in journal.spans()}
        found = await asyncio.gather(*(self._entitled(*each) for each in wanted.items()))
        return {one: epoch for one, epoch in zip(wanted, found, strict=True) if epoch is not None}

    async def _entitled(self, partition: str, stretch: Stretch) -> int | None:
        lodging = self.book.lodgings.get(partition)
        if not self._planned_by(lodging, partition):
            lodging = await self._resolve(partition)
        if lodging is None:
            await self._forfeit(partition, owned_by(await self.book.row(partition)), stretch)
            return None
        if self._planned_by(lodging, partition):
            return lodging.epoch
        return await self._taken_up(lodging, stretch)

    def _planned_by(self, lodging: Lodging | None, partition: str) -> bool:
        """Whether the stay that planned the stretch goes on."""
        assert self.book.flight is not None
        held, _ = self.book.flight.reads.get(partition, (None, None))
        return lodging is not None and lodging is held and lodging.live

    async def _taken_up(self, lodging: Lodging, stretch: Stretch) -> int | None:
        """Read by a later stay of ours what an earlier one has journalled, if nobody else has."""
        one, checkpoints = lodging.partition, self.book.tenancy.checkpoints
        start = lodging.client.start_checkpoint
        if not may_read(stretch, start, checkpoints=checkpoints):
            why = f"others have handled events up to {start.sequence} meanwhile"
            lodging.position = goes_on_at(start)
            await self._forfeit(one, why, stretch)
            return None
        lodging.plan()
        lodging.position = stretch.last
        assert self.book.flight is not None
        self.book.flight.reads[one] = (lodging, stretch)
        return lodging.epoch

    async def _resolve(self, partition: str) -> Lodging | None:
        """The stay of ours at a partition, once it is known whose it is; None if not ours."""
        limit_s = self.book.tenancy.lease_s + 2 * self.book.tenancy.interval_s
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while True:
                    self._check()
                    lodging = self.book.lodgings.get(partition)
                    if lodging is not None and lodging.live:
                        return lodging
                    row = await self.book.row(partition)
                    if row is not None and self.book.is_anothers(row):
                        return None
                    await self.book.clock.sleep(LOOK_AGAIN_S)
        return None

    async def _forfeit(self, partition: str, why: str, stretch: Stretch) -> None:
        """Leave a stretch to the partition's owner, though our journal says that we read it.

        Spark commits the batch without it, so it is noted first. If that fails, so does the batch.
        """
        await self.book.leftovers.note(self.book.store, partition, stretch)
        self.book.journal[partition] = stretch.unread
        loss = Loss(partition, why, Span(partition, stretch.first, stretch.last))
        self.book.losses[partition] = loss
        if self.book.flight is not None:
            self.book.flight.reads.pop(partition, None)
        log.warning("lose %s", loss)

    # -- tasks that were evicted ------------------------------------------------------------------

    async def judge(self, appeal: Appeal) -> Ruling:
        """What an evicted task does: whose the partition is, the row tells."""
        one, flight = appeal.partition, self.book.flight
        _, stretch = flight.reads.get(one, (None, None)) if flight is not None else (None, None)
        if stretch is None:
            return Ruling(LEAVE, "the batch does not read it any more")
        lodging = self.book.lodgings.get(one)
        if lodging is not None and lodging.live and await lodging.client.confirm():
            return await self._outbid(lodging, stretch, appeal)
        row = await self.book.row(one)
        if row is None or not self.book.is_anothers(row):
            return Ruling(FAIL, f"it is not known yet who owns partition {one}")
        await self._forfeit(one, owned_by(row), stretch)
        return Ruling(LEAVE, owned_by(row))

    async def _outbid(self, lodging: Lodging, stretch: Stretch, appeal: Appeal) -> Ruling:
        """It is ours: a stranger has no right to it, and one of our own tasks has followed us."""
        if not self._planned_by(lodging, lodging.partition):
            epoch = await self._taken_up(lodging, stretch)
            return Ruling(LEAVE, "others have it") if epoch is None else Ruling(GO, epoch=epoch)
        if lodging.epoch > appeal.epoch:
            return Ruling(GO, epoch=lodging.epoch)
        if appeal.above is not None and appeal.above <= lodging.epoch:
            return Ruling(FAIL, "another task of this query reads it now")
        try:
            refused = ReaderEvicted("amqp:link:stolen", appeal.said, appeal.above)
            return Ruling(GO, epoch=await lodging.client.raise_epoch_above(refused))
        except OwnershipLost as lost:
            return Ruling(FAIL, str(lost))
