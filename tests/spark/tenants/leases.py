"""The store that all hosts of a group share, looked at from outside."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.leases.store_url import open_store


@dataclass(frozen=True)
class Leases:
    """What the store says of a group now."""

    store: str
    group: Group

    def listing(self) -> Listing:
        async def look() -> Listing:
            async with open_store(self.store) as store:
                return await store.list_ownership(self.group)

        return asyncio.run(look())

    def rows(self) -> dict[str, Ownership]:
        return {row.partition: row for row in self.listing().ownerships}

    def owners(self) -> dict[str, str]:
        return {one: row.owner for one, row in sorted(self.rows().items())}

    def epochs(self) -> dict[str, int]:
        return {one: row.epoch for one, row in sorted(self.rows().items())}

    def shares(self, lease_s: float) -> Counter[str]:
        """How many partitions each host has, by rows whose lease has not run out."""
        rows = self.rows().values()
        return Counter(row.owner for row in rows if row.owner and not row.expired(lease_s))

    def owned(self, host: str) -> set[str]:
        return {one for one, owner in self.owners().items() if owner == host}

    def members(self) -> dict[str, float]:
        """How long ago each host said that it lives."""
        return {member.name: member.age_s for member in self.listing().members}

    def checkpoints(self) -> dict[str, Checkpoint]:
        async def look() -> dict[str, Checkpoint]:
            async with open_store(self.store) as store:
                found = await store.list_checkpoints(self.group)
            return {mark.partition: mark for mark in found}

        return asyncio.run(look())

    def sequences(self) -> dict[str, int | None]:
        return {one: mark.sequence for one, mark in sorted(self.checkpoints().items())}
