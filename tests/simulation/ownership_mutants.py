"""Sabotages of the real code, each with a name: a simulation that is worth anything notices them.

A mutant is applied by monkeypatching, and says in which weather it shows and which promises it may
break. `tests/simulation/test_mutants.py` runs them all.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pumphouse.errors import OwnershipLost, StoreError
from pumphouse.events import Event
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
from pumphouse.processor.pump import Pump
from pumphouse.processor.term import Stopped, StopReason
from pumphouse.simulation.loop import WALL_S
from tests.simulation.mutant import Patch, mutant

# -- fencing --------------------------------------------------------------------------------------


@mutant("I1 I15")
def no_stamp(patch: Patch) -> None:
    """A new owner reads the checkpoint and does not fence the one before it off."""

    async def stamp(self: CheckpointWriter, current: Checkpoint | None = None) -> Checkpoint:
        found = await self._read()
        return self._keep(found or Checkpoint(self._group, self.partition, epoch=self.epoch))

    patch.setattr(CheckpointWriter, "stamp", stamp)


@mutant("I1 I5 I6")
def unconditional_checkpoint(patch: Patch) -> None:
    """Checkpoints are written over whatever is there, as the official clients do."""

    async def write(self: CheckpointWriter, wanted: Checkpoint) -> Checkpoint:
        for _ in range(5):
            self._require_lease()
            found = await self._read()
            etag = "" if found is None else found.etag
            outcome = await self._store.update_checkpoint(replace(wanted, etag=etag), rewind=True)
            if isinstance(outcome, Granted):
                return self._keep(outcome.row)
        raise StoreError("not written")

    patch.setattr(CheckpointWriter, "_write", write)


@mutant("I1")
def checkpoints_without_a_lease(patch: Patch) -> None:
    """Nobody asks whether the lease has run out; only the store would refuse."""
    patch.setattr(CheckpointWriter, "_require_lease", lambda self: None)


@mutant("I1")
def readers_without_an_epoch(patch: Patch) -> None:
    """The hub cannot tell a later owner from an earlier one."""

    async def opened(self: Pump) -> Any:
        await self._settled_epoch()
        options = replace(self._reader_options, epoch=None)
        self._reader = await self.host.client.reader(options)
        return self._reader

    patch.setattr(Pump, "_open", opened)


@mutant("I1")
def self_fencing_off(patch: Patch) -> None:
    """An owner that could not renew goes on as if nothing were."""
    patch.setattr(Lease, "valid_until", lambda self, lease_s: math.inf)


@mutant("I1")
def lease_counts_from_the_answer(patch: Patch) -> None:
    """A lease is counted from when the answer came, which may be long after the write."""
    original = plan.granted_lease

    def granted_lease(row: Ownership, sent_s: float, now_s: float) -> Lease:
        return original(row, now_s + 20, now_s)

    patch.setattr(lease_table, "granted_lease", granted_lease)


@mutant("I1", face="functions")
def live_whatever_happens(patch: Patch) -> None:
    """A handler that is tried again is not asked whether the partition is still ours."""
    patch.setattr(PartitionClient, "live", property(lambda self: True))


# -- rows -----------------------------------------------------------------------------------------


@mutant("I1")
def unknown_taken_as_owned(patch: Patch) -> None:
    original = LeaseTable._write

    async def write(self: LeaseTable, rows: Any) -> list[ClaimOutcome]:
        return [
            Granted(outcome.requested) if isinstance(outcome, Unknown) else outcome
            for outcome in await original(self, rows)
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
def hearsay_is_believed(patch: Patch) -> None:
    """What a listing says is ours counts from when it was told, without a write."""

    async def confirm(self: LeaseTable, rows: Any) -> list[str]:
        for row in rows:
            self._gain(replace(row, deadline_s=None), self.clock.monotonic(), row)
        return [row.partition for row in rows]

    patch.setattr(LeaseTable, "confirm", confirm)


@mutant("I1", store="blob")
def a_row_makes_a_lease_longer(patch: Patch) -> None:
    """The age of a row, in whole seconds, is taken for that of our lease."""
    original = plan.updated_lease

    def updated_lease(lease: Lease, row: Ownership, sent_s: float, now_s: float) -> Lease:
        after = original(lease, row, sent_s, now_s)
        return replace(after, since_s=max(lease.since_s, sent_s - row.age_s), renewal_due=False)

    patch.setattr(plan, "updated_lease", updated_lease)
    patch.setattr(lease_table, "updated_lease", updated_lease)


@mutant("I6", face="functions")
def a_part_of_a_batch_counts_for_nothing(patch: Patch) -> None:
    """What was handled of a batch that is not finished is handled again by the next owner."""
    original = PartitionClient.mark_handled

    def mark_handled(self: PartitionClient, batch: list[Event]) -> None:
        if len(batch) != 1 or self._in_hand_s is None:
            original(self, batch)

    patch.setattr(PartitionClient, "mark_handled", mark_handled)


@mutant("I1")
def expiry_by_the_local_clock(patch: Patch) -> None:
    """Ages are counted by the wall clock of the host, as all official clients do."""
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
    """A row that somebody else has grabbed counts as ours still."""
    original = plan.next_lease

    def next_lease(lease: Lease, row: Any, sent_s: float, now_s: float) -> Lease | None:
        return original(lease, row, sent_s, now_s) or replace(lease, since_s=now_s)

    patch.setattr(lease_table, "next_lease", next_lease)


@mutant("I1 I6 I12")
def who_has_asked_is_forgotten(patch: Patch) -> None:
    """A row in our name that we do not hold is claimed anew, though somebody waits for it."""

    def strays(now: plan.Situation, most: int | None) -> tuple[list[str], list[Ownership]]:
        found = [row for row in now.listing.ownerships if plan._is_stray(row, now)]
        return [row.partition for row in found], []

    patch.setattr(plan, "_strays", strays)


EVICTED = {
    "hosts": 2,
    "partitions": 5,
    "face": "fixed",
    "store": "bloblease",
    "burst_s": 10.0,
    "faults": "harsh,evicted=200,after=0.3,crash=0,pause=0,store_away=0,hub_away=0",
}


@mutant("I6", **EVICTED)
def a_raise_that_took_effect_ends_the_stay(patch: Patch) -> None:
    """An owner that finds its row raised by itself takes it for lost, and what it handled too."""
    patch.setattr(Engine, "epoch_raised", lambda self, lease: None)


@mutant("I6 I15", **{**EVICTED, "face": "push"})
def an_epoch_in_doubt_is_not_settled(patch: Patch) -> None:
    """A raise without an answer may yet take effect, and nobody looks."""

    async def settle(self: LeaseTable, partition: str) -> int:
        if partition not in self.held:
            raise OwnershipLost(partition, 0)
        return self.held[partition].row.epoch

    patch.setattr(LeaseTable, "settle_epoch", settle)


@mutant("I1")
def taken_without_asking(patch: Patch) -> None:
    """What others hold is grabbed, though the strategy asks."""
    patch.setattr(plan, "_is_takable", lambda partition, now: True)


@mutant("I8")
def asking_gives_the_dead_another_lease(patch: Patch) -> None:
    """Who asks for a partition grants its owner a whole lease, whatever is left of the last."""
    patch.setattr(plan, "_grace_s", lambda row, options: options.granted_s)


@mutant("I8")
def the_dead_keep_their_partitions(patch: Patch) -> None:
    patch.setattr(census, "is_live", lambda row, lease_s: row.owner != "")


# -- moves ----------------------------------------------------------------------------------------


@mutant("I2")
def no_drain(patch: Patch) -> None:
    """A partition is handed over as soon as it is asked for, whatever is in hand."""

    def requested(self: Engine, lease: Lease) -> None:
        self.reporter.track(asyncio.ensure_future(self.leases.give_up(lease.partition)))

    patch.setattr(Engine, "requested", requested)


@mutant("I2")
def hand_off_does_not_wait_for_the_handler(patch: Patch) -> None:
    async def wait_until_left(self: PartitionClient) -> None:
        with suppress(Stopped):
            await self._term.unless_stopped(self._left.wait())

    patch.setattr(PartitionClient, "wait_until_left", wait_until_left)


@mutant("I2", seeds=60)
def a_pump_that_leaves_is_forgotten(patch: Patch) -> None:
    """The cycle takes up, or gives away, what an earlier pump has not left yet."""
    original = Cycle._act

    async def act(self: Cycle, found: Any, listing: Listing, busy: Any) -> Any:
        return await original(self, found, listing, frozenset())

    patch.setattr(Cycle, "_act", act)


@mutant("I6")
def no_checkpoint_when_leaving(patch: Patch) -> None:
    async def finish(self: Pump, client: PartitionClient) -> None: ...

    patch.setattr(Pump, "_finish", finish)


@mutant("I13", store="blob")
def a_refusal_without_a_word_ends_a_hand_over(patch: Patch) -> None:
    """Who leaves, and was asked a moment ago, does not look who has asked."""

    async def row_of(self: LeaseTable, partition: str) -> Ownership | None:
        return None

    patch.setattr(LeaseTable, "_row_of", row_of)


@mutant("I13")
def a_stop_that_never_ends(patch: Patch) -> None:
    async def stop(self: Engine) -> None:
        await asyncio.Event().wait()

    patch.setattr(Engine, "stop", stop)


@mutant("I13")
def stop_waits_for_ever(patch: Patch) -> None:
    async def drain(self: Engine) -> None:
        for supervisor in self._supervisors.values():
            supervisor.term.stop(StopReason.SHUTDOWN)
        if tasks := {supervisor.task for supervisor in self._supervisors.values()}:
            await asyncio.wait(tasks)

    async def stop(self: Engine) -> None:
        self._stopping.set()
        self.leases.listing_needed.set()
        assert self._running is not None
        await asyncio.wait([self._running])
        await self._close()

    patch.setattr(Engine, "_drain", drain)
    patch.setattr(Engine, "stop", stop)


@mutant("I12")
def a_hand_off_has_no_deadline(patch: Patch) -> None:
    """An owner that is asked does not answer, and who has asked waits for ever."""
    patch.setattr(Engine, "requested", lambda self, lease: None)
    patch.setattr(model.Ownership, "overdue", property(lambda self: False))
    patch.setattr(Lease, "valid_until", lambda self, lease_s: self.since_s + lease_s)


@mutant("I12")
def an_owner_goes_on_after_the_deadline(patch: Patch) -> None:
    """What it was granted has passed, its lease has not: it hands out another batch."""
    patch.setattr(Engine, "requested", lambda self, lease: None)
    patch.setattr(Lease, "valid_until", lambda self, lease_s: self.since_s + lease_s)


@mutant("I12")
def a_renewal_puts_the_deadline_off(patch: Patch) -> None:
    """The owner writes back what it was granted, counted from now: it never ends."""
    for module in (plan, lease_table):
        patch.setattr(module, "row_at", lambda lease, now_s: lease.row)
    patch.setattr(Engine, "requested", lambda self, lease: None)
    patch.setattr(Lease, "valid_until", lambda self, lease_s: self.since_s + lease_s)
