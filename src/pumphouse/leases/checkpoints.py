"""Writes the checkpoint of one partition for as long as we own it, and not a moment longer.

    pump -> CheckpointWriter -> store.update_checkpoint -> granted
            ^^^^^^^^^^^^^^^^                            -> refused, unknown -> fencing.next_step

The new owner of a partition stamps the checkpoint with its epoch before it reads an event. From
then on every write of the owner before it is refused, however late it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pumphouse.errors import CheckpointRefused, OwnershipLost, StoreError, StoreMisused
from pumphouse.leases import model
from pumphouse.leases.fencing import AlreadyStored, FencedOff, RetryWrite, is_erased, next_step
from pumphouse.leases.model import Checkpoint, Granted, Group, Refused, Unknown
from pumphouse.leases.store import CheckpointStore

# An official SDK that writes between each of our attempts is improbable; five times, a fight.
ATTEMPTS = 5


class CheckpointWriter:
    """The checkpoint of a partition that we own with an epoch: stamp it, then advance it.

    Each call returns the checkpoint as it is stored then. OwnershipLost means that a later owner
    has fenced us off, or that somebody has moved the checkpoint by hand: start again from what is
    stored, if the partition is still ours. StoreError means that the store gave no answer; nothing
    is lost by trying again. `binds` says whether we may still write: it is asked before every try.
    """

    def __init__(
        self,
        store: CheckpointStore,
        group: Group,
        partition: str,
        epoch: int,
        binds: Callable[[], bool] = lambda: True,
    ) -> None:
        self.partition, self.epoch = partition, epoch
        self._store, self._group, self._binds = store, group, binds
        self._known: Checkpoint | None = None  # the last that was certainly ours
        self._in_doubt = False  # whether a later one of ours may have arrived
        self._reached: int | None = None  # where our own caller has come to
        self._lost_to: int | None = None  # the epoch that has fenced us off
        self._one = asyncio.Lock()

    def __repr__(self) -> str:
        at = "not stamped" if self._known is None else f"at {self._known.sequence}"
        return f"<CheckpointWriter {self.partition} epoch {self.epoch} | {at}>"

    @property
    def stamped_with(self) -> int | None:
        """The epoch of the last checkpoint that was certainly ours."""
        return None if self._known is None else self._known.epoch

    async def stamp(self, current: Checkpoint | None = None) -> Checkpoint:
        """Fence earlier owners off; where to go on from is what the answer says.

        `current` is the checkpoint as it was listed, if it was; otherwise it is read first.
        """
        async with self._one:
            current = current or await self._find()
            if current is not None and current.epoch > self.epoch:
                raise self._lose(current.epoch)
            if current is not None and current.epoch == self.epoch:
                # By a pump of ours before this one. It may have written more than was listed, for a
                # listing may be old: only a write that is granted proves what is stored.
                self._in_doubt = True
            stamped = await self._write(
                model.stamp(current, self._group, self.partition, self.epoch)
            )
            self._reached = stamped.sequence
            return stamped

    async def restamp(self, epoch: int) -> Checkpoint:
        """Go on with a higher epoch, which our row has already."""
        async with self._one:
            known = self._stamped()
            # With the same epoch again only if it was not answered the last time.
            if epoch < self.epoch or epoch <= known.epoch:
                raise StoreMisused(f"the epoch must rise from {self.epoch} (got {epoch})")
            self.epoch = epoch
            return await self._write(model.stamp(known, self._group, self.partition, epoch))

    async def advance(
        self, sequence: int, offset: str | None, enqueued_ms: int | None = None
    ) -> Checkpoint:
        """Everything up to this event was handled."""
        async with self._one:
            known = self._stamped()
            if self._reached is not None and sequence < self._reached:
                raise CheckpointRefused(
                    f"the checkpoint of partition {self.partition} would go back from "
                    f"{self._reached} to {sequence}; if the hub was created anew, reset it"
                )
            self._reached = sequence
            # It may say so already, or somebody else has got further: that is not taken back.
            covered = known.sequence is not None and known.sequence >= sequence
            if covered and known.epoch == self.epoch:
                return known
            wanted = known if covered else model.advance(known, sequence, offset, enqueued_ms)
            return await self._write(model.stamp(wanted, self._group, self.partition, self.epoch))

    # -- writing until we know --------------------------------------------------------------------

    async def _write(self, wanted: Checkpoint) -> Checkpoint:
        why = "somebody else kept writing it"
        for _ in range(ATTEMPTS):
            self._demand_lease()  # last of all: nothing is sent once it has run out
            try:
                outcome = await self._store.update_checkpoint(wanted)
            except CheckpointRefused:
                raise
            except BaseException:
                self._in_doubt = True  # whoever stopped waiting does not know what was written
                raise
            if isinstance(outcome, Granted):
                return self._keep(outcome.row)
            if isinstance(outcome, Unknown):
                self._in_doubt, why = True, outcome.why
            found = await self._found(outcome)
            refused = isinstance(outcome, Refused)
            match next_step(self._known, wanted, found, in_doubt=self._in_doubt, refused=refused):
                case AlreadyStored(ours):
                    return self._keep(ours)
                case FencedOff(epoch):
                    raise self._lose(epoch)
                case RetryWrite(after):
                    if is_erased(self._known, wanted, found):
                        await self._ask_the_row()
                    wanted = after
        raise StoreError(
            f"the checkpoint of partition {self.partition} could not be written in {ATTEMPTS} "
            f"attempts: {why}"
        )

    async def _found(self, outcome: Refused[Checkpoint] | Unknown[Checkpoint]) -> Checkpoint | None:
        if isinstance(outcome, Refused) and outcome.current is not None:
            return outcome.current
        return await self._find()

    async def _find(self) -> Checkpoint | None:
        marks = await self._store.list_checkpoints(self._group)
        return next((mark for mark in marks if mark.partition == self.partition), None)

    async def _ask_the_row(self) -> None:
        """Whether a later owner has claimed the partition: its epoch is in the row, if anywhere."""
        rows = (await self._store.list_ownership(self._group)).ownerships
        row = next((row for row in rows if row.partition == self.partition), None)
        if row is not None and row.epoch > self.epoch:
            raise self._lose(row.epoch, row.owner)

    # -- what we know -----------------------------------------------------------------------------

    def _demand_lease(self) -> None:
        if not self._binds():
            raise OwnershipLost(self.partition, self.epoch)

    def _stamped(self) -> Checkpoint:
        self._demand_lease()
        if self._lost_to is not None:
            raise self._lose(self._lost_to)
        if self._known is None:
            raise StoreMisused(f"the checkpoint of partition {self.partition} was not stamped yet")
        return self._known

    def _keep(self, checkpoint: Checkpoint) -> Checkpoint:
        self._known, self._in_doubt = checkpoint, False
        return checkpoint

    def _lose(self, epoch: int, owner: str = "") -> OwnershipLost:
        self._lost_to = epoch
        return OwnershipLost(self.partition, self.epoch, owner, epoch)
