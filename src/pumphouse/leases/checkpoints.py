"""Writes the checkpoint of one partition while this host owns it.

    pump -> CheckpointWriter -> store.update_checkpoint -> granted
            ^^^^^^^^^^^^^^^^                            -> refused, unknown -> fencing.next_step

A new owner stamps the checkpoint with its epoch before it reads an event. Every write of an
earlier owner is refused from then on, however late it arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pumphouse.errors import (
    CheckpointRefused,
    OwnershipLost,
    StoreError,
    StoreMisused,
    StoreUnavailable,
)
from pumphouse.leases import model
from pumphouse.leases.fencing import AlreadyStored, FencedOff, RetryWrite, is_erased, next_step
from pumphouse.leases.model import Checkpoint, Granted, Group, Refused, Unknown
from pumphouse.leases.store import CheckpointStore, SupportsTransactions

# An official SDK may write between two attempts. That it does so five times in a row is unlikely.
ATTEMPTS = 5
SETTLE_S = 0.2  # between two reads that check whether a transaction has committed
FORMER_MAX = 32  # a stale listing is seconds old, with fewer checkpoints since then


@dataclass(slots=True)
class _SentCommit:
    """How far the end of a transaction has progressed."""

    is_writing: bool = False
    row: Checkpoint | None = None  # written in the transaction, and perhaps committed


class CheckpointWriter:
    """Writes the checkpoint of a partition that this host owns: `stamp` first, then `advance`.

    Each call returns the stored checkpoint. It raises OwnershipLost if a later owner has stamped
    the checkpoint or an administrator has moved it; in the second case, start again with `stamp`.
    It raises StoreError if the store did not respond; the call can be repeated. `has_lease` is
    called before every attempt; False stops the write.
    """

    def __init__(
        self,
        store: CheckpointStore,
        group: Group,
        partition: str,
        epoch: int,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self.partition, self.epoch = partition, epoch
        self._store, self._group, self._has_lease = store, group, has_lease
        self._known: Checkpoint | None = None  # the last checkpoint that we certainly wrote
        self._former: deque[str] = deque(maxlen=FORMER_MAX)  # ETags of what was stored before
        self._in_doubt = False  # whether a later write of ours may have taken effect
        self._reached: int | None = None  # the position that our caller has requested last
        self._lost_to: int | None = None  # the epoch that has fenced us off
        self._writing = asyncio.Lock()

    def __repr__(self) -> str:
        state = "not stamped" if self._known is None else f"at {self._known.sequence}"
        return f"<CheckpointWriter {self.partition} epoch {self.epoch} | {state}>"

    @property
    def stamped_with(self) -> int | None:
        """The epoch of the last checkpoint that this writer has certainly written."""
        return None if self._known is None else self._known.epoch

    @property
    def sequence(self) -> int | None:
        """The sequence number of the last checkpoint that this writer has certainly written."""
        return None if self._known is None else self._known.sequence

    async def stamp(self, current: Checkpoint | None = None) -> Checkpoint:
        """Fence off earlier owners; the returned checkpoint is the start position.

        `current` is the checkpoint as listed; without it the checkpoint is read first.
        """
        async with self._writing:
            current = current or await self._read()
            if current is not None and current.epoch > self.epoch:
                raise self._lose(current.epoch)
            if current is not None and current.epoch == self.epoch:
                # Written by an earlier pump of ours, which may have written more since: the
                # listing may be stale. Only a granted write proves what is stored.
                self._in_doubt = True
            stamped = await self._write(
                model.stamp(current, self._group, self.partition, self.epoch)
            )
            self._reached = stamped.sequence
            return stamped

    async def restamp(self, epoch: int) -> Checkpoint:
        """Continue with a higher epoch; the ownership row must already have it."""
        async with self._writing:
            known = self._stamped()
            # The same epoch is allowed only if the last attempt with it had no response.
            if epoch < self.epoch or epoch <= known.epoch:
                raise StoreMisused(f"the epoch must rise from {self.epoch} (got {epoch})")
            self.epoch = epoch
            return await self._write(model.stamp(known, self._group, self.partition, epoch))

    async def advance(
        self, sequence: int, offset: str | None, enqueued_ms: int | None = None
    ) -> Checkpoint:
        """Record that everything up to this event was handled."""
        async with self._writing:
            known = self._stamped()
            if self._reached is not None and sequence < self._reached:
                raise CheckpointRefused(
                    f"the checkpoint of partition {self.partition} would go back from "
                    f"{self._reached} to {sequence}; reset it if the hub was re-created"
                )
            self._reached = sequence
            # The stored checkpoint may be at this event already, or beyond it. It never goes back.
            covered = known.sequence is not None and known.sequence >= sequence
            if covered and known.epoch == self.epoch:
                return known
            advanced = known if covered else model.advance(known, sequence, offset, enqueued_ms)
            return await self._write(model.stamp(advanced, self._group, self.partition, self.epoch))

    @property
    def is_fenced_off(self) -> bool:
        """Whether a later owner has stamped the checkpoint, or it was moved: writes are refused."""
        return self._lost_to is not None

    async def confirm(self) -> Checkpoint:
        """Write the checkpoint as it is. OwnershipLost if it was moved by hand.

        A read is not sufficient, because a listing may be stale.
        """
        async with self._writing:
            return await self._write(self._stamped())

    async def restart(self, sequence: int, offset: str) -> Checkpoint:
        """Move the checkpoint to before the first event of a hub that was re-created."""
        async with self._writing:
            known = self._stamped()
            moved = replace(known, sequence=sequence, offset=offset, enqueued_ms=None)
            outcome = await self._store.update_checkpoint(moved, rewind=True)
            if not isinstance(outcome, Granted):
                self._in_doubt = True
                raise StoreUnavailable(
                    f"the checkpoint of partition {self.partition} could not be moved to the "
                    "beginning of the re-created hub"
                )
            self._reached = sequence
            return self._keep(outcome.row)

    # -- with rows of the user --------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(
        self,
        store: SupportsTransactions,
        sequence: int,
        offset: str | None,
        enqueued_ms: int | None = None,
    ) -> AsyncGenerator[Any, None]:
        """A transaction of the store that ends with the checkpoint after this event.

        Either both commit, or neither. It yields the connection of the store's database.
        OwnershipLost, and nothing is committed, if a later owner has stamped the checkpoint.
        """
        self._stamped()
        async with self._settling(store) as sent, store.transaction() as transaction:
            yield transaction.connection
            await self._writing.acquire()
            sent.is_writing = True
            known = self._stamped()
            if known.sequence is not None and known.sequence >= sequence:
                raise CheckpointRefused(
                    f"the checkpoint of partition {self.partition} is at {known.sequence}: events "
                    f"up to {sequence} are recorded as handled, so their transaction is rolled back"
                )
            advanced = model.advance(known, sequence, offset, enqueued_ms)
            outcome = await transaction.update_checkpoint(advanced)
            if not isinstance(outcome, Granted):
                raise self._refused(outcome)
            sent.row = outcome.row  # the commit follows: its response may be lost

    @asynccontextmanager
    async def _settling(self, store: SupportsTransactions) -> AsyncGenerator[_SentCommit, None]:
        """Find out whether the transaction in the block has committed, even without a response."""
        sent = _SentCommit()
        try:
            try:
                yield sent
            except StoreUnavailable:
                if sent.row is None or not await self._has_committed(store, sent.row):
                    raise
            if sent.row is not None:
                self._reached = max(self._reached or 0, sent.row.sequence or 0)
                self._keep(sent.row)
        except asyncio.CancelledError:
            self._in_doubt = self._in_doubt or sent.row is not None
            raise
        finally:
            if sent.is_writing:
                self._writing.release()

    async def _has_committed(self, store: SupportsTransactions, row: Checkpoint) -> bool:
        """Read until the store responds. OwnershipLost if our lease ends first."""
        while True:
            self._require_lease()
            with suppress(StoreUnavailable):
                stored = await store.settled_checkpoint(self._group, self.partition)
                return stored is not None and stored.etag == row.etag
            await asyncio.sleep(SETTLE_S)

    def _refused(self, outcome: Refused[Checkpoint] | Unknown[Checkpoint]) -> OwnershipLost:
        """A later owner or an administrator has written the checkpoint."""
        current = outcome.current if isinstance(outcome, Refused) else None
        return self._lose(self.epoch if current is None else current.epoch)

    # -- writing until the outcome is known -------------------------------------------------------

    async def _write(self, requested: Checkpoint) -> Checkpoint:
        why = "another writer changed it each time"
        for _ in range(ATTEMPTS):
            self._require_lease()  # just before sending: nothing is sent after the lease expired
            try:
                outcome = await self._store.update_checkpoint(requested)
            except CheckpointRefused:
                raise
            except BaseException:
                self._in_doubt = True  # the write may have taken effect before the failure
                raise
            if isinstance(outcome, Granted):
                return self._keep(outcome.row)
            if isinstance(outcome, Unknown):
                self._in_doubt, why = True, outcome.why
            stored = await self._read_after(outcome)
            refused = isinstance(outcome, Refused)
            step = next_step(
                self._known,
                requested,
                stored,
                in_doubt=self._in_doubt,
                refused=refused,
                former=self._former,
            )
            match step:
                case AlreadyStored(ours):
                    return self._keep(ours)
                case FencedOff(epoch):
                    raise self._lose(epoch)
                case RetryWrite(following):
                    if is_erased(self._known, requested, stored):
                        await self._check_row()
                    requested = following
        raise StoreError(
            f"the checkpoint of partition {self.partition} could not be written in {ATTEMPTS} "
            f"attempts: {why}"
        )

    async def _read_after(
        self, outcome: Refused[Checkpoint] | Unknown[Checkpoint]
    ) -> Checkpoint | None:
        if isinstance(outcome, Refused) and outcome.current is not None:
            return outcome.current
        return await self._read()

    async def _read(self) -> Checkpoint | None:
        checkpoints = await self._store.list_checkpoints(self._group)
        return next((stored for stored in checkpoints if stored.partition == self.partition), None)

    async def _check_row(self) -> None:
        """Raise OwnershipLost if the row has a later epoch: a later owner has claimed it."""
        rows = (await self._store.list_ownership(self._group)).ownerships
        row = next((row for row in rows if row.partition == self.partition), None)
        if row is not None and row.epoch > self.epoch:
            raise self._lose(row.epoch, row.owner)

    # -- state ------------------------------------------------------------------------------------

    def _require_lease(self) -> None:
        if not self._has_lease():
            raise OwnershipLost(self.partition, self.epoch)

    def _stamped(self) -> Checkpoint:
        self._require_lease()
        if self._lost_to is not None:
            raise self._lose(self._lost_to)
        if self._known is None:
            raise StoreMisused(
                f"the checkpoint of partition {self.partition} is not stamped: call stamp() first"
            )
        return self._known

    def _keep(self, checkpoint: Checkpoint) -> Checkpoint:
        if self._known is not None and self._known.etag != checkpoint.etag:
            self._former.append(self._known.etag)
        self._known, self._in_doubt = checkpoint, False
        return checkpoint

    def _lose(self, epoch: int, owner: str = "") -> OwnershipLost:
        self._lost_to = epoch
        return OwnershipLost(self.partition, self.epoch, owner, epoch)
