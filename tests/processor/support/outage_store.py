"""OutageStore: a memory store with outages: an error at once, a late error, or no response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore

FAST, SLOW, SILENT = "fast", "slow", "silent"
FORMS = (FAST, SLOW, SILENT)
SLOW_S = 2.0


class OutageStore:
    """A store around another one. `away` is the form of the current outage, or empty."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.away = ""
        self.refused_checkpoints = 0

    async def _reach(self) -> None:
        if not self.away:
            return
        if self.away == SLOW:
            await asyncio.sleep(SLOW_S)
        elif self.away == SILENT:
            await asyncio.sleep(1e6)
        raise StoreUnavailable("the store is away")

    async def outage(self, form: str, seconds: float) -> None:
        self.away = form
        await asyncio.sleep(seconds)
        self.away = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def list_ownership(self, group: Group) -> Listing:
        await self._reach()
        return await self.inner.list_ownership(group)

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        await self._reach()
        return await self.inner.list_checkpoints(group)

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        await self._reach()
        return await self.inner.claim_ownership(group, claims)

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        self.refused_checkpoints += bool(self.away)
        await self._reach()
        return await self.inner.update_checkpoint(checkpoint, rewind=rewind)

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._reach()
        await self.inner.beat(group, name, max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._reach()
        await self.inner.leave(group, name)
