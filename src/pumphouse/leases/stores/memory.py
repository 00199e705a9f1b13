"""A store in memory, for tests and for programs that share nothing: strict where others trust.

It keeps the contract of store.py, and besides raises StoreMisused where a careless caller would
have got away with it: at a row that breaks the rules of model.py, at two claims of one partition in
one call, at claims that are changed while they are being written. What only lost a race is refused,
as by every store.

    processor.cycle -> MemoryStore -> rules.row_fault -> dictionaries
                       ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import CheckpointRefused, StoreMisused
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Member,
    Ownership,
    Refused,
    aged,
)
from pumphouse.leases.rules import PUT_OFF_S_MAX, checkpoint_fault, row_fault
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome

# A host that has not beaten for so long is gone, and will not be asked about any more.
MEMBER_KEPT_S = 24 * 3600.0


@dataclass(slots=True)
class GroupRows:
    """Everything of one group. Times are the store's monotonic ones."""

    rows: dict[str, tuple[Ownership, float]] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    beats: dict[str, tuple[Member, float]] = field(default_factory=dict)


class MemoryStore:
    """Keeps rows as long as it lives. Hosts share them by sharing the object.

    `put_off_s_max` is how far a renewal may put off the deadline of a waiting successor, and
    `member_kept_s` after how long a host that does not beat any more is forgotten.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        put_off_s_max: float = PUT_OFF_S_MAX,
        member_kept_s: float = MEMBER_KEPT_S,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._put_off_s_max, self._member_kept_s = put_off_s_max, member_kept_s
        self._groups: dict[Group, GroupRows] = {}
        self._writes = 0

    def __repr__(self) -> str:
        rows = sum(len(rows_of_group.rows) for rows_of_group in self._groups.values())
        return f"<MemoryStore | {rows} rows | {self._writes} writes>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close: another host may still use it."""

    # -- reading ----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        await _turn()
        rows_of_group, now = self._rows_of(group), self._clock.monotonic()
        rows = [aged(row, now - written) for row, written in rows_of_group.rows.values()]
        members = [
            Member(member.name, now - beat, member.max_partitions)
            for member, beat in rows_of_group.beats.values()
        ]
        return Listing(tuple(sorted(rows, key=lambda row: row.partition)), tuple(members))

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        await _turn()
        found = sorted(self._rows_of(group).checkpoints.values(), key=lambda mark: mark.partition)
        return [replace(mark, group=group) for mark in found]

    # -- writing ----------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        taken = tuple(replace(row) for row in claims)
        if len({row.partition for row in taken}) < len(taken):
            raise StoreMisused("two claims of one call are for the same partition")
        await _turn()
        if tuple(claims) != taken:
            raise StoreMisused("the claims were changed while they were being written")
        rows_of_group = self._rows_of(group)
        for row in taken:
            self._check(rows_of_group, row)
        return [self._claim(rows_of_group, row) for row in taken]

    def _check(self, rows_of_group: GroupRows, wanted: Ownership) -> None:
        stored = self._stored(rows_of_group, wanted.partition)
        if wanted.etag != _etag(stored):
            return  # it will be refused: whatever it says, it does no harm
        if fault := row_fault(stored, wanted, self._put_off_s_max):
            raise StoreMisused(f"a row of partition {wanted.partition or '?'}: {fault}")

    def _claim(self, rows_of_group: GroupRows, wanted: Ownership) -> ClaimOutcome:
        stored = self._stored(rows_of_group, wanted.partition)
        if wanted.etag != _etag(stored):
            return Refused(wanted, stored)
        row = replace(wanted, etag=self._new_etag(), age_s=0.0)
        # A copy each: what one caller does to its row by force is nobody else's.
        rows_of_group.rows[wanted.partition] = (replace(row), self._clock.monotonic())
        return Granted(row)

    def _stored(self, rows_of_group: GroupRows, partition: str) -> Ownership | None:
        if (kept := rows_of_group.rows.get(partition)) is None:
            return None
        row, written = kept
        return aged(row, self._clock.monotonic() - written)

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        await _turn()
        rows_of_group = self._rows_of(checkpoint.group)
        stored = rows_of_group.checkpoints.get(checkpoint.partition)
        if checkpoint.etag != _etag(stored):
            current = None if stored is None else replace(stored, group=checkpoint.group)
            return Refused(checkpoint, current)
        if not rewind and (fault := checkpoint_fault(stored, checkpoint)):
            raise CheckpointRefused(fault)
        written = replace(checkpoint, etag=self._new_etag())
        rows_of_group.checkpoints[checkpoint.partition] = replace(written)
        return Granted(written)

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await _turn()
        beats, now = self._rows_of(group).beats, self._clock.monotonic()
        for gone in [who for who, (_, beat) in beats.items() if now - beat > self._member_kept_s]:
            del beats[gone]
        beats[name] = (Member(name, max_partitions=max_partitions), now)

    async def leave(self, group: Group, name: str) -> None:
        await _turn()
        self._rows_of(group).beats.pop(name, None)

    # -- what an official SDK does to the rows ----------------------------------------------------

    async def claim_as_sdk(self, group: Group, wanted: Ownership) -> ClaimOutcome:
        """Compare and set as the official clients do: everything but the owner is forgotten."""
        await _turn()
        rows_of_group = self._rows_of(group)
        stored = self._stored(rows_of_group, wanted.partition)
        if wanted.etag != _etag(stored):
            return Refused(wanted, stored)
        row = Ownership(wanted.partition, wanted.owner, etag=self._new_etag())
        rows_of_group.rows[wanted.partition] = (replace(row), self._clock.monotonic())
        return Granted(row)

    async def update_checkpoint_as_sdk(self, checkpoint: Checkpoint) -> None:
        """Write over whatever is there, without an epoch, as the official clients do."""
        await _turn()
        written = replace(checkpoint, epoch=0, etag=self._new_etag())
        self._rows_of(checkpoint.group).checkpoints[checkpoint.partition] = written

    def _rows_of(self, group: Group) -> GroupRows:
        folded = Group(group.namespace.lower(), group.hub.lower(), group.name.lower())
        return self._groups.setdefault(folded, GroupRows())

    def _new_etag(self) -> str:
        self._writes += 1
        return f"memory-{self._writes}"


def _etag(stored: Ownership | Checkpoint | None) -> str:
    return "" if stored is None else stored.etag


async def _turn() -> None:
    """Let others go first, as every store elsewhere does: who relies on atomicity shall notice."""
    await asyncio.sleep(0)
