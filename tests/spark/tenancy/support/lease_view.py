"""The store that all hosts of a group share, as a test sees it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.leases.store_url import open_store


@dataclass(frozen=True)
class LeaseView:
    """The ownerships and checkpoints of a group, read at each call."""

    store: str
    group: Group

    def listing(self) -> Listing:
        async def read() -> Listing:
            async with open_store(self.store) as store:
                return await store.list_ownership(self.group)

        return asyncio.run(read())

    def rows(self) -> dict[str, Ownership]:
        return {row.partition: row for row in self.listing().ownerships}

    def owners(self) -> dict[str, str]:
        return {name: row.owner for name, row in sorted(self.rows().items())}

    def epochs(self) -> dict[str, int]:
        return {name: row.epoch for name, row in sorted(self.rows().items())}

    def shares(self, lease_s: float) -> Counter[str]:
        """How many partitions each host owns with a lease that has not expired."""
        rows = self.rows().values()
        return Counter(row.owner for row in rows if row.owner and not row.expired(lease_s))

    def owned(self, host: str) -> set[str]:
        return {name for name, owner in self.owners().items() if owner == host}

    def members(self) -> dict[str, float]:
        """The seconds since each host last renewed its membership."""
        return {member.name: member.age_s for member in self.listing().members}

    def checkpoints(self) -> dict[str, Checkpoint]:
        async def read() -> dict[str, Checkpoint]:
            async with open_store(self.store) as store:
                rows = await store.list_checkpoints(self.group)
            return {row.partition: row for row in rows}

        return asyncio.run(read())

    def sequences(self) -> dict[str, int | None]:
        return {name: row.sequence for name, row in sorted(self.checkpoints().items())}
