"""The partitions of a tenant host, the batch in flight, and which of its ranges may be read.

Spark plans a batch, journals it, runs its tasks and commits it. Until the commit is known the batch
is in flight, and none of its partitions is handed over. A partition may be lost between planning
and reading, and after a crash only the journal is left. In both cases the ownership rows and the
checkpoint decide whether a range is still ours to read. Other ranges are left to their owners.

    TenantDriver -> plannable, begin, commit -> TenantPartition
    TenantDriver.tasks -> authorise -> epochs for the tasks
    evicted task -> decide -> resume, leave, fail
                    ^^^^^^ this module

All methods run in the event loop of the tenant host.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost, ReaderEvicted
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.store import CheckpointStore
from pumphouse.logs import line
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.offsets import Span, order
from pumphouse.spark.tenancy.evictions import (
    FAIL,
    LEAVE,
    RESUME,
    EvictionDecision,
    EvictionReport,
    compare_epochs,
)
from pumphouse.spark.tenancy.journal import (
    Journal,
    JournalRange,
    Loss,
    describe_owner,
    may_replay,
    resume_position,
)
from pumphouse.spark.tenancy.options import TenancyOptions
from pumphouse.spark.tenancy.partition import PlannedRange, TenantPartition
from pumphouse.spark.tenancy.skipped_ranges import read_skipped, skipped_key, write_skipped

log = logging.getLogger("pumphouse.spark")

POLL_S = 0.2  # between two reads of the ownership rows, until they show an owner
UNKNOWN_OWNER = "our lease expired, or another host took it"

# Takes the sequence number of one event of each partition; returns the positions that are known.
FindPositions = Callable[[Mapping[str, int]], Awaitable[dict[str, KnownPosition]]]


@dataclass(frozen=True, slots=True)
class PlannablePartition:
    """A partition that the next batch may read."""

    name: str
    epoch: int
    position: int | None  # None: the options decide
    checkpoint: Checkpoint


class TenantBatches:
    """One run of a query: its partitions, and the batch whose commit is not known yet."""

    def __init__(
        self,
        host: str,
        tenancy: TenancyOptions,
        store: CheckpointStore,
        group: Group,
        clock: Clock,
        *,
        journal: Journal,
        find_positions: FindPositions,
        check_running: Callable[[], None],
    ) -> None:
        self.host, self.tenancy, self.store, self.group = host, tenancy, store, group
        self._clock, self._journal = clock, journal
        self._find_positions, self._check_running = find_positions, check_running
        self._partitions: dict[str, TenantPartition] = {}
        self._end: Mapping[str, Any] | None = None  # of the batch in flight
        self._committing = asyncio.Lock()

    # -- partitions -------------------------------------------------------------------------------

    async def load_journal(self, store: CheckpointStore) -> None:
        """Take over what was committed before this run, without ranges that were skipped."""
        hosts = (self.host, self._journal.host)
        skipped = await read_skipped(store, self.group, hosts)
        for name, planned in self._journal.ranges.items():
            was_skipped = skipped_key(name, planned) in skipped
            self.partition(name).committed = planned.unread if was_skipped else planned

    def partition(self, name: str) -> TenantPartition:
        if name not in self._partitions:
            self._partitions[name] = TenantPartition(name, checkpoints=self.tenancy.checkpoints)
        return self._partitions[name]

    def __iter__(self) -> Iterator[TenantPartition]:
        return iter([self._partitions[name] for name in sorted(self._partitions, key=order)])

    def owned(self) -> list[TenantPartition]:
        return [partition for partition in self if partition.is_owned]

    # -- planning ---------------------------------------------------------------------------------

    def plannable(self) -> list[PlannablePartition]:
        """The partitions that the next batch may read. None is handed over before `begin`."""
        plannable = [partition for partition in self.owned() if not partition.is_leaving]
        for partition in plannable:
            partition.plan()
        return [
            PlannablePartition(
                partition.name,
                partition.term.epoch,
                partition.position,
                partition.term.start_checkpoint,
            )
            for partition in plannable
        ]

    def begin(self, end: Mapping[str, Any], journal: Journal) -> None:
        """Put the ranges of this journal in flight, for the batch that ends at `end`."""
        self._end = end
        self._take_in_flight()
        for name, planned in journal.ranges.items():
            partition = self.partition(name)
            owned = partition.is_owned and partition.term.epoch == planned.epoch
            if planned.count and owned:
                partition.put_in_flight(planned)
        self.end_idle()

    def end_idle(self) -> None:
        """Allow the hand-over of partitions that the batch in flight does not read."""
        for partition in self:
            if partition.in_flight is None:
                partition.end_batch()

    def _take_in_flight(self) -> list[tuple[TenantPartition, PlannedRange]]:
        """The ranges in flight, taken out of their partitions."""
        reads = [(each, each.in_flight) for each in self if each.in_flight is not None]
        for partition, _ in reads:
            partition.in_flight = None
        return reads

    # -- commits ----------------------------------------------------------------------------------

    @property
    def delays_hand_over(self) -> bool:
        """Whether the batch in flight reads a partition that is to be handed over."""
        return any(each.in_flight is not None and each.is_leaving for each in self)

    async def planned_after(self, start: Mapping[str, Any]) -> None:
        """Spark plans the batch after `start`: it has committed the one that ends there."""
        async with self._committing:  # `commit_if` may not have finished
            if self._end == start:
                await self._commit()
            elif self._end is not None:  # the batch in flight was never run
                self._end = None
                for partition, planned in self._take_in_flight():
                    partition.rewind(planned)
                self.end_idle()

    async def commit_if(self, is_committed: Callable[[Mapping[str, Any]], bool]) -> None:
        """Finish the batch in flight if it is committed. `is_committed` receives its end."""
        async with self._committing:
            if self._end is not None and is_committed(self._end):
                await self._commit()

    async def _commit(self) -> None:
        """End the batch in flight: write its checkpoints, then allow hand-overs."""
        self._end = None
        reads = self._take_in_flight()
        known = await self._last_positions(reads)
        for partition, planned in reads:
            partition.commit(planned, known.get(partition.name))

    async def _last_positions(
        self, reads: list[tuple[TenantPartition, PlannedRange]]
    ) -> dict[str, KnownPosition]:
        if not self.tenancy.checkpoints:
            return {}
        return await self._find_positions(
            {partition.name: planned.range.last - 1 for partition, planned in reads}
        )

    # -- the right to read a range ----------------------------------------------------------------

    async def authorise(self, end: Mapping[str, Any], journal: Journal) -> dict[str, int]:
        """The epochs with which a batch is read now; other ranges are left to their owners."""
        if self._end != end:  # a batch of an earlier run, which Spark replays
            self._end = end
            self._take_in_flight()
        ranges = {span.partition: journal.ranges[span.partition] for span in journal.spans()}
        epochs = await asyncio.gather(*(self._authorise(*each) for each in ranges.items()))
        return {
            name: epoch for name, epoch in zip(ranges, epochs, strict=True) if epoch is not None
        }

    async def _authorise(self, name: str, planned: JournalRange) -> int | None:
        partition = self.partition(name)
        if partition.is_planned_by_this_term:
            return partition.term.epoch
        if not await self._wait_until_owned(partition):
            await self._skip(partition, describe_owner(await self.read_row(name)), planned)
            return None
        if partition.is_planned_by_this_term:
            return partition.term.epoch
        return await self._adopt(partition, planned)

    async def _adopt(self, partition: TenantPartition, planned: JournalRange) -> int | None:
        """Read a range of an earlier term, unless another host has handled events of it."""
        checkpoint = partition.term.start_checkpoint
        if not may_replay(planned, checkpoint, checkpoints=self.tenancy.checkpoints):
            partition.position = resume_position(checkpoint)
            why = f"another host has handled events up to {checkpoint.sequence}"
            await self._skip(partition, why, planned)
            return None
        partition.plan()
        partition.put_in_flight(planned)
        return partition.term.epoch

    async def _wait_until_owned(self, partition: TenantPartition) -> bool:
        """Wait until the partition is ours, or the store shows another owner."""
        limit_s = self.tenancy.lease_s + 2 * self.tenancy.interval_s
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while True:
                    self._check_running()
                    if partition.is_live:
                        return True
                    row = await self.read_row(partition.name)
                    if row is not None and self.is_owned_by_another(row):
                        return False
                    await self._clock.sleep(POLL_S)
        return False

    async def _skip(self, partition: TenantPartition, why: str, planned: JournalRange) -> None:
        """Leave a range to the partition's owner, though our journal shows it as read.

        Spark commits the batch without this range. So the range is written to the store first; if
        this write fails, the batch fails.
        """
        await write_skipped(self.store, self.group, self.host, partition.name, planned)
        partition.committed = planned.unread
        partition.in_flight = None
        partition.loss = Loss(
            partition.name, why, Span(partition.name, planned.first, planned.last)
        )
        log_loss(partition.loss)

    def is_owned_by_another(self, row: Ownership) -> bool:
        return row.owner not in ("", self.host) and not row.expired(self.tenancy.lease_s)

    async def read_row(self, name: str) -> Ownership | None:
        rows = (await self.store.list_ownership(self.group)).ownerships
        return next((row for row in rows if row.partition == name), None)

    # -- evicted tasks ----------------------------------------------------------------------------

    async def decide(self, report: EvictionReport) -> EvictionDecision:
        """What an evicted task does. The ownership row shows who owns the partition."""
        partition = self.partition(report.partition)
        if partition.in_flight is None:
            return EvictionDecision(LEAVE, "the batch in flight no longer reads this partition")
        planned = partition.in_flight.range
        if partition.is_live and await partition.term.confirm():
            return await self._decide_as_owner(partition, planned, report)
        row = await self.read_row(partition.name)
        if row is None or not self.is_owned_by_another(row):
            return EvictionDecision(FAIL, f"partition {partition.name} has no known owner yet")
        await self._skip(partition, describe_owner(row), planned)
        return EvictionDecision(LEAVE, describe_owner(row))

    async def _decide_as_owner(
        self, partition: TenantPartition, planned: JournalRange, report: EvictionReport
    ) -> EvictionDecision:
        """The partition is ours: the other reader has no right to it, or is a task of ours."""
        if not partition.is_planned_by_this_term:
            epoch = await self._adopt(partition, planned)
            if epoch is None:
                return EvictionDecision(LEAVE, "another host has handled events of this range")
            return EvictionDecision(RESUME, epoch=epoch)
        match compare_epochs(partition.term.epoch, report):
            case "resume":
                return EvictionDecision(RESUME, epoch=partition.term.epoch)
            case "fail":
                return EvictionDecision(FAIL, "another task of this query reads this partition")
        refused = ReaderEvicted("amqp:link:stolen", report.description, report.evicting_epoch)
        try:
            epoch = await partition.term.raise_epoch_above(refused)
        except OwnershipLost as lost:
            return EvictionDecision(FAIL, str(lost))
        return EvictionDecision(RESUME, epoch=epoch)

    # -- lost partitions --------------------------------------------------------------------------

    def record_loss(self, name: str) -> None:
        """Record that the lease is lost. The new owner is looked up for the next report."""
        partition = self.partition(name)
        partition.loss = partition.loss or Loss(name, UNKNOWN_OWNER)

    def losses_without_owner(self) -> set[str]:
        return {each.name for each in self if each.loss and each.loss.why == UNKNOWN_OWNER}

    async def name_new_owners(self) -> None:
        """Look up in the store the owners of the partitions that we lost, and log them."""
        unnamed = self.losses_without_owner()
        for row in (await self.store.list_ownership(self.group)).ownerships:
            if row.partition in unnamed and self.is_owned_by_another(row):
                loss = Loss(row.partition, describe_owner(row))
                self.partition(row.partition).loss = loss
                log_loss(loss)


def log_loss(loss: Loss) -> None:
    skipped = None
    if loss.skipped is not None:
        skipped = f"{loss.skipped.first}-{loss.skipped.last - 1}"
    log.warning(
        "%s",
        line(
            "partition_taken", partition=loss.partition, why=loss.why, skipped=skipped,
            todo="nothing if another host should own it; else check for a paused or starved driver",
        ),
    )  # fmt: skip
