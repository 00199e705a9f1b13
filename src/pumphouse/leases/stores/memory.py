"""A store in memory, for tests and for hosts of a single process; it checks every write.

It keeps the contract of store.py. In addition it raises StoreMisused for mistakes that other stores
do not detect: a row that breaks the rules of rules.py, two claims of one partition in one call, and
claims that are changed while they are being written. A write that lost a race is refused, as by
every store.

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

# A host without a beat for this long is gone.
MEMBER_KEPT_S = 24 * 3600.0


@dataclass(slots=True)
class GroupRows:
    """The rows, checkpoints and members of one group, with monotonic times of the store."""

    rows: dict[str, tuple[Ownership, float]] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    beats: dict[str, tuple[Member, float]] = field(default_factory=dict)


class MemoryStore:
    """Keeps rows as long as the object lives. Hosts share them by sharing the object.

    `put_off_s_max` is how far a renewal may postpone the deadline of a waiting successor: at least
    the time that a write takes to reach this store, if calls are delayed on the way.
    `member_kept_s` is how long the record of a host without heartbeats is kept.
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
        rows = sum(len(group.rows) for group in self._groups.values())
        return f"<MemoryStore | {rows} rows | {self._writes} writes>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close: another host may still use the object."""

    # -- reading ----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        await _yield_to_others()
        stored, now = self._rows_of(group), self._clock.monotonic()
        rows = [aged(row, now - written) for row, written in stored.rows.values()]
        members = [
            Member(member.name, now - beat, member.max_partitions)
            for member, beat in stored.beats.values()
        ]
        return Listing(tuple(sorted(rows, key=lambda row: row.partition)), tuple(members))

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        await _yield_to_others()
        checkpoints = self._rows_of(group).checkpoints
        return [replace(checkpoints[partition], group=group) for partition in sorted(checkpoints)]

    # -- writing ----------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        copies = tuple(replace(row) for row in claims)
        if len({row.partition for row in copies}) < len(copies):
            raise StoreMisused("two claims of one call are for the same partition")
        called_s = self._clock.monotonic()
        await _yield_to_others()
        if tuple(claims) != copies:
            raise StoreMisused("the claims were changed while they were being written")
        stored = self._rows_of(group)
        for row in copies:
            self._check(stored, row, called_s)
        return [self._claim(stored, row) for row in copies]

    def _check(self, group: GroupRows, requested: Ownership, called_s: float) -> None:
        """Compare with the row as it was at the call: other tasks may have run for long since."""
        stored = self._stored(group, requested.partition, called_s)
        if requested.etag != _etag(stored):
            return  # it will be refused, so its content does not matter
        if fault := row_fault(stored, requested, self._put_off_s_max):
            raise StoreMisused(f"a row of partition {requested.partition or '?'}: {fault}")

    def _claim(self, group: GroupRows, requested: Ownership) -> ClaimOutcome:
        stored = self._stored(group, requested.partition)
        if requested.etag != _etag(stored):
            return Refused(requested, stored)
        row = replace(requested, etag=self._new_etag(), age_s=0.0)
        # Two copies: a caller that changes its row by force must not change the stored one.
        group.rows[requested.partition] = (replace(row), self._clock.monotonic())
        return Granted(row)

    def _stored(
        self, group: GroupRows, partition: str, at_s: float | None = None
    ) -> Ownership | None:
        """The row as it is now, or as it was at another time after its last write."""
        if (kept := group.rows.get(partition)) is None:
            return None
        row, written = kept
        return aged(row, (self._clock.monotonic() if at_s is None else at_s) - written)

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        await _yield_to_others()
        checkpoints = self._rows_of(checkpoint.group).checkpoints
        stored = checkpoints.get(checkpoint.partition)
        if checkpoint.etag != _etag(stored):
            current = None if stored is None else replace(stored, group=checkpoint.group)
            return Refused(checkpoint, current)
        if not rewind and (fault := checkpoint_fault(stored, checkpoint)):
            raise CheckpointRefused(fault)
        written = replace(checkpoint, etag=self._new_etag())
        checkpoints[checkpoint.partition] = replace(written)
        return Granted(written)

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await _yield_to_others()
        beats, now = self._rows_of(group).beats, self._clock.monotonic()
        for gone in [host for host, (_, beat) in beats.items() if now - beat > self._member_kept_s]:
            del beats[gone]
        beats[name] = (Member(name, max_partitions=max_partitions), now)

    async def leave(self, group: Group, name: str) -> None:
        await _yield_to_others()
        self._rows_of(group).beats.pop(name, None)

    def _rows_of(self, group: Group) -> GroupRows:
        folded = Group(group.namespace.lower(), group.hub.lower(), group.name.lower())
        return self._groups.setdefault(folded, GroupRows())

    def _new_etag(self) -> str:
        self._writes += 1
        return f"memory-{self._writes}"


def _etag(stored: Ownership | Checkpoint | None) -> str:
    return "" if stored is None else stored.etag


async def _yield_to_others() -> None:
    """Let other tasks run, as every remote store does: code that relies on atomicity must fail."""
    await asyncio.sleep(0)
