"""Mutants of fencing, rows and moves."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pumphouse.errors import OwnershipLost, StoreError
from pumphouse.events import LATEST, Event
from pumphouse.leases import census, model
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint, Granted, Listing, Ownership, Unknown
from pumphouse.leases.store import ClaimOutcome
from pumphouse.processor import lease_table, plan
from pumphouse.processor.cycle import Cycle
from pumphouse.processor.engine import Engine
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import Lease
from pumphouse.processor.pump import Pump, Serve
from pumphouse.processor.term import Stopped, StopReason
from pumphouse.simulation.loop import WALL_S
from tests.simulation.mutants.mutant import Patch, mutant

# -- fencing --------------------------------------------------------------------------------------


@mutant("I1 I15")
def no_stamp(patch: Patch) -> None:
    """A new owner reads the checkpoint and does not fence off earlier owners."""

    async def stamp(self: CheckpointWriter, current: Checkpoint | None = None) -> Checkpoint:
        stored = await self._read()
        return self._keep(stored or Checkpoint(self._group, self.partition, epoch=self.epoch))

    patch.setattr(CheckpointWriter, "stamp", stamp)


@mutant("I1 I5 I6")
def unconditional_checkpoint(patch: Patch) -> None:
    """Checkpoints overwrite the stored one, as the official clients do."""

    async def write(self: CheckpointWriter, requested: Checkpoint) -> Checkpoint:
        for _ in range(5):
            self._require_lease()
            stored = await self._read()
            etag = "" if stored is None else stored.etag
            outcome = await self._store.update_checkpoint(
                replace(requested, etag=etag), rewind=True
            )
            if isinstance(outcome, Granted):
                return self._keep(outcome.row)
        raise StoreError("not written")

    patch.setattr(CheckpointWriter, "_write", write)


@mutant("I1")
def checkpoints_without_a_lease(patch: Patch) -> None:
    """Checkpoints are sent after the lease has expired."""
    patch.setattr(CheckpointWriter, "_require_lease", lambda self: None)


@mutant("I1")
def readers_with_the_same_epoch(patch: Patch) -> None:
    """The hub cannot tell a later owner from an earlier one: every reader has epoch 0.

    The official processors open their readers like that.
    """

    async def open_reader(self: Pump) -> Any:
        self._reader = await self.host.client.reader(replace(self._reader_options, epoch=0))
        return self._reader

    patch.setattr(Pump, "_open_reader", open_reader)


@mutant("I1", hosts=1)
def readers_without_an_epoch(patch: Patch) -> None:
    """A later owner cannot evict the reader of an earlier one."""

    async def open_reader(self: Pump) -> Any:
        self._reader = await self.host.client.reader(replace(self._reader_options, epoch=None))
        return self._reader

    patch.setattr(Pump, "_open_reader", open_reader)


@mutant("I15", hosts=1)
def a_reader_without_an_epoch_ignores_the_checkpoint(patch: Patch) -> None:
    """It starts at the newest event."""

    async def open_reader(self: Pump) -> Any:
        options = replace(self._reader_options, epoch=None, position=LATEST)
        self._reader = await self.host.client.reader(options)
        return self._reader

    patch.setattr(Pump, "_open_reader", open_reader)


@mutant("I1")
def self_fencing_off(patch: Patch) -> None:
    """An owner that could not renew continues."""
    patch.setattr(Lease, "valid_until", lambda self, lease_s: math.inf)


@mutant("I1")
def lease_counts_from_the_response(patch: Patch) -> None:
    """A lease counts from the response, which may come long after the write."""
    original = plan.granted_lease

    def granted_lease(row: Ownership, sent_s: float, now_s: float) -> Lease:
        return original(row, now_s + 20, now_s)

    patch.setattr(lease_table, "granted_lease", granted_lease)


@mutant("I1", face="functions")
def retries_without_a_lease(patch: Patch) -> None:
    """A handler is retried without a check of the lease."""
    patch.setattr(PartitionClient, "live", property(lambda self: True))


# -- rows -----------------------------------------------------------------------------------------


@mutant("I1")
def unknown_counts_as_owned(patch: Patch) -> None:
    original = LeaseTable._write

    async def write(self: LeaseTable, operation: str, rows: Any, *more: Any) -> list[ClaimOutcome]:
        return [
            Granted(outcome.requested) if isinstance(outcome, Unknown) else outcome
            for outcome in await original(self, operation, rows, *more)
        ]

    patch.setattr(LeaseTable, "_write", write)


@mutant("I1")
def release_loses_the_epoch(patch: Patch) -> None:
    def release(row: Ownership) -> Ownership:
        return replace(model.release(row), epoch=0)

    patch.setattr(plan, "release", release)


@mutant("I1")
def epoch_not_raised(patch: Patch) -> None:
    original = model.claim

    def claim(row: Ownership | None, *args: Any, **more: Any) -> Ownership:
        claimed = original(row, *args, **more)
        return claimed if row is None else replace(claimed, epoch=max(1, row.epoch))

    patch.setattr(plan, "claim", claim)


@mutant("I1")
def hand_over_keeps_the_epoch(patch: Patch) -> None:
    def hand_over(row: Ownership, confirm_s: float | None = None) -> Ownership:
        return replace(model.hand_over(row, confirm_s), epoch=row.epoch)

    patch.setattr(plan, "hand_over", hand_over)


@mutant("I1", store="bloblease")
def a_listed_row_counts_as_a_lease(patch: Patch) -> None:
    """A listed row in our name counts as a lease without a write."""

    async def confirm(self: LeaseTable, rows: Any) -> list[str]:
        for row in rows:
            self._gain(replace(row, deadline_s=None), self.clock.monotonic(), row)
        return [row.partition for row in rows]

    patch.setattr(LeaseTable, "confirm", confirm)


@mutant("I1", store="blob")
def a_row_extends_a_lease(patch: Patch) -> None:
    """The age of a row, in whole seconds, counts as the age of our lease."""
    original = plan.updated_lease

    def updated_lease(lease: Lease, row: Ownership, sent_s: float, now_s: float) -> Lease:
        after = original(lease, row, sent_s, now_s)
        return replace(after, since_s=max(lease.since_s, sent_s - row.age_s), renewal_due=False)

    patch.setattr(plan, "updated_lease", updated_lease)
    patch.setattr(lease_table, "updated_lease", updated_lease)


@mutant("I6", face="functions")
def a_handled_part_of_a_batch_is_forgotten(patch: Patch) -> None:
    """The handled part of an unfinished batch is handled again by the next owner."""
    original = PartitionClient.mark_handled

    def mark_handled(self: PartitionClient, batch: list[Event]) -> None:
        if len(batch) != 1 or not self._timer.runs:
            original(self, batch)

    patch.setattr(PartitionClient, "mark_handled", mark_handled)


@mutant("I1")
def expiry_by_the_local_clock(patch: Patch) -> None:
    """Ages count by the wall clock of the host, as in all official clients."""
    original = Cycle._list

    async def listed(self: Cycle) -> tuple[Listing, float]:
        listing, sent_s = await original(self)
        loop_s = asyncio.get_running_loop().time()
        ahead_s = self.host.clock.now() - WALL_S - loop_s
        rows = [replace(row, age_s=max(0, row.age_s + ahead_s)) for row in listing.ownerships]
        return replace(listing, ownerships=tuple(rows)), sent_s

    patch.setattr(Cycle, "_list", listed)


@mutant("I1 I2 I7 I8", strategy="eph")
def renewal_after_loss(patch: Patch) -> None:
    """A row that another host has grabbed still counts as ours."""
    original = plan.next_lease

    def next_lease(lease: Lease, row: Any, sent_s: float, now_s: float) -> Lease | None:
        return original(lease, row, sent_s, now_s) or replace(lease, since_s=now_s)

    patch.setattr(lease_table, "next_lease", next_lease)


@mutant("I1 I6 I12")
def a_successor_is_dropped(patch: Patch) -> None:
    """A row in our name that we do not hold is claimed again, although a successor waits."""

    def strays(now: plan.Situation, most: int | None) -> tuple[list[str], list[Ownership]]:
        stored = [row for row in now.listing.ownerships if plan._is_stray(row, now)]
        return [row.partition for row in stored], []

    patch.setattr(plan, "_strays", strays)


# Foreign readers make owners raise their epochs, and many writes get no response. Nothing else
# fails that would explain a missing checkpoint, and partitions move often. The store returns no row
# with a refusal: a listing shows the owner that its raise took effect.
EVICTED: dict[str, Any] = {
    "hosts": 2,
    "partitions": 5,
    "face": "push",
    "store": "blob",
    "burst_s": 10.0,
    "faults": "none,evicted=400,after=0.3,leave=60,join=60,restart=60",
}


@mutant("I6", **EVICTED)
def a_raised_epoch_ends_the_term(patch: Patch) -> None:
    """An owner whose own raise took effect treats the partition as lost."""
    patch.setattr(Engine, "epoch_raised", lambda self, lease: None)


@mutant("I6", **{**EVICTED, "face": "functions", "store": "bloblease"})
def an_epoch_in_doubt_is_not_settled(patch: Patch) -> None:
    """A raise without a response is not verified: the pump reads on with its old epoch.

    When the raised row arrives, the pump can checkpoint nothing. A second rule prevents that, and
    is broken here too: the term follows the epoch of its row.
    """

    async def settle(self: LeaseTable, partition: str) -> int:
        if partition not in self.held:
            raise OwnershipLost(partition, 0)
        return self.held[partition].row.epoch

    patch.setattr(LeaseTable, "settle_epoch", settle)
    patch.setattr(Engine, "epoch_raised", lambda self, lease: None)


@mutant("I1")
def grabbed_without_a_request(patch: Patch) -> None:
    """Held partitions are grabbed, although the strategy requests them."""
    patch.setattr(plan, "_is_takable", lambda partition, now: True)


@mutant("I8")
def a_request_extends_a_dead_owners_lease(patch: Patch) -> None:
    """A request grants the owner a whole lease, whatever is left of the last one."""
    patch.setattr(plan, "_grace_s", lambda row, options: options.granted_s)


@mutant("I8")
def expired_leases_count_as_live(patch: Patch) -> None:
    patch.setattr(census, "is_live", lambda row, lease_s: row.owner != "")


# -- moves ----------------------------------------------------------------------------------------


@mutant("I2")
def no_drain(patch: Patch) -> None:
    """A partition is handed over at once, with a batch still running."""

    def requested(self: Engine, lease: Lease) -> None:
        giving_up = asyncio.ensure_future(self.leases.give_up(lease.partition))
        self.reporter.track("give_up", giving_up)

    patch.setattr(Engine, "requested", requested)


@mutant("I2")
def a_hand_over_does_not_wait_for_the_handler(patch: Patch) -> None:
    """A pump ends when its term stops, though the code that serves the partition still runs."""
    original = Pump._serve

    async def serve_until_stopped(self: Pump, serve: Serve, client: PartitionClient) -> None:
        async def served(client: PartitionClient) -> None:
            running = asyncio.ensure_future(serve(client))
            running.add_done_callback(lambda task: task.cancelled() or task.exception())
            with suppress(Stopped):
                await self.term.unless_stopped(asyncio.wait([running]))
            if running.done():
                running.result()

        await original(self, served, client)

    patch.setattr(Pump, "_serve", serve_until_stopped)


@mutant("I2", face="partitions")
def a_hand_over_does_not_wait_for_the_users_task(patch: Patch) -> None:
    """The user's own task still handles a batch when its partition is given up."""

    async def wait_until_left(self: PartitionClient) -> None:
        with suppress(Stopped):
            await self._term.unless_stopped(self._left.wait())

    patch.setattr(PartitionClient, "wait_until_left", wait_until_left)


@mutant("I2", seeds=60)
def a_stopping_pump_is_ignored(patch: Patch) -> None:
    """The cycle claims or hands over a partition whose pump is still stopping."""
    original = Cycle._act

    async def act(self: Cycle, stored: Any, listing: Listing, busy: Any) -> Any:
        return await original(self, stored, listing, frozenset())

    patch.setattr(Cycle, "_act", act)


@mutant("I6")
def no_checkpoint_when_leaving(patch: Patch) -> None:
    async def finish(self: Pump, client: PartitionClient) -> None: ...

    patch.setattr(Pump, "_finish", finish)


@mutant("I13", store="blob")
def a_refusal_without_the_row_ends_a_hand_over(patch: Patch) -> None:
    """A host that stops just after a request does not read the successor."""

    async def row_of(self: LeaseTable, partition: str) -> Ownership | None:
        return None

    patch.setattr(LeaseTable, "_row_of", row_of)


@mutant("I13")
def a_stop_that_never_ends(patch: Patch) -> None:
    async def stop(self: Engine) -> None:
        await asyncio.Event().wait()

    patch.setattr(Engine, "stop", stop)


@mutant("I13")
def stop_waits_for_every_handler(patch: Patch) -> None:
    async def drain(self: Engine) -> None:
        for supervisor in self._supervisors.values():
            supervisor.term.stop(StopReason.SHUTDOWN)
        if tasks := {supervisor.task for supervisor in self._supervisors.values()}:
            await asyncio.wait(tasks)

    async def stop(self: Engine) -> None:
        self.stopping.set()
        self.leases.listing_needed.set()
        assert self._running is not None
        await asyncio.wait([self._running])
        await self._close()

    patch.setattr(Engine, "_drain", drain)
    patch.setattr(Engine, "stop", stop)


@mutant("I12")
def a_hand_over_has_no_deadline(patch: Patch) -> None:
    """An owner ignores requests, and the successor waits for ever."""
    patch.setattr(Engine, "requested", lambda self, lease: None)
    patch.setattr(model.Ownership, "overdue", property(lambda self: False))
    patch.setattr(Lease, "valid_until", lambda self, lease_s: self.since_s + lease_s)


@mutant("I12")
def an_owner_continues_after_the_deadline(patch: Patch) -> None:
    """After the deadline, within its lease, an owner hands out another batch."""
    patch.setattr(Engine, "requested", lambda self, lease: None)
    patch.setattr(Lease, "valid_until", lambda self, lease_s: self.since_s + lease_s)


@mutant("I12")
def a_renewal_postpones_the_deadline(patch: Patch) -> None:
    """A renewal writes the deadline back unchanged, so it never passes."""
    for module in (plan, lease_table):
        patch.setattr(module, "row_at", lambda lease, now_s: lease.row)
    patch.setattr(Engine, "requested", lambda self, lease: None)
    patch.setattr(Lease, "valid_until", lambda self, lease_s: self.since_s + lease_s)
