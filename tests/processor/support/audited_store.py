"""AuditedStore: a memory store that checks every granted write against the invariants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Self

from pumphouse.clock import Clock
from pumphouse.leases.model import Checkpoint, Granted, Group, Listing, Ownership
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore


class AuditedStore:
    """A memory store that collects violations; raising them would look like a store failure."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.store = MemoryStore(clock)
        self.faults: list[str] = []
        self.handled_up_to: Callable[[str], int] = lambda partition: -1
        self.owners: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self.written_s: dict[tuple[str, str], float] = {}  # by owner and partition
        self.checkpoints: dict[str, Checkpoint] = {}
        self.handed_over = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def list_ownership(self, group: Group) -> Listing:
        return await self.store.list_ownership(group)

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        return await self.store.list_checkpoints(group)

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        outcomes = await self.store.claim_ownership(group, claims)
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self.audit_row(outcome.row)
        return outcomes

    def audit_row(self, row: Ownership) -> None:
        """I1: every owner has an epoch of its own, above the one before."""
        self.written_s[row.owner, row.partition] = self.clock.monotonic()
        history = self.owners[row.partition]
        epoch, owner = history[-1] if history else (0, "")
        if row.owner and row.owner != owner and row.epoch <= epoch:
            self.faults.append(f"{row.partition}: {owner} {epoch} -> {row.owner} {row.epoch}")
        if row.epoch < epoch:
            self.faults.append(f"{row.partition}: the epoch fell from {epoch} to {row.epoch}")
        if row.owner and (row.epoch, row.owner) != (epoch, owner):
            history.append((row.epoch, row.owner))

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        outcome = await self.store.update_checkpoint(checkpoint, rewind=rewind)
        if isinstance(outcome, Granted) and not rewind:
            self.audit_checkpoint(outcome.row)
        return outcome

    def audit_checkpoint(self, checkpoint: Checkpoint) -> None:
        """I5: it never goes back, has no earlier owner, and passes no unhandled event."""
        before = self.checkpoints.get(checkpoint.partition)
        self.checkpoints[checkpoint.partition] = checkpoint
        if before is not None and checkpoint.epoch < before.epoch:
            self.faults.append(
                f"{checkpoint.partition}: written by {checkpoint.epoch} after {before.epoch}"
            )
        if before is not None and (checkpoint.sequence or -1) < (before.sequence or -1):
            self.faults.append(
                f"{checkpoint.partition}: back from {before.sequence} to {checkpoint.sequence}"
            )
        if checkpoint.sequence is not None and checkpoint.sequence > self.handled_up_to(
            checkpoint.partition
        ):
            self.faults.append(f"{checkpoint.partition}: {checkpoint.sequence} was not handled yet")

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self.store.beat(group, name, max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self.store.leave(group, name)
