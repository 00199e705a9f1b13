"""What a tenant has left unread of a batch that Spark commits all the same.

Spark commits a batch as a whole. If a stretch of it was left to another owner, nothing in Spark's
journal says so, and a later run would take it for read. So it is noted in the store before the
batch can be committed: beside the group, under the names of the query. It happens rarely; all
other stretches of a committed batch were read, by whatever stay of the query at the partition.

    Rights -> Leftovers.note -> store -> Leftovers.read, has -> where a later run goes on
              ^^^^^^^^^^^^^^ this module ^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import Checkpoint, Granted, Group
from pumphouse.leases.store import CheckpointStore, SupportsInitialise
from pumphouse.spark.tenancy.journal import Stretch

TRIES = 5


class Leftovers:
    """Notes of one query: by partition the last stretch that it left unread."""

    def __init__(self, group: Group, hosts: Iterable[str]) -> None:
        self._groups = [beside(group, host) for host in dict.fromkeys(hosts) if host]
        self._notes: set[tuple[str, int, int]] = set()

    async def read(self, store: CheckpointStore) -> None:
        """What earlier runs have noted."""
        for group in self._groups:
            for found in await store.list_checkpoints(group):
                if found.sequence is not None:
                    self._notes.add((found.partition, found.sequence, found.epoch))

    def has(self, partition: str, stretch: Stretch) -> bool:
        return (partition, stretch.first, stretch.epoch or 0) in self._notes

    async def note(self, store: CheckpointStore, partition: str, stretch: Stretch) -> None:
        """Write it down; StoreUnavailable if that cannot be done: the batch must not go on then."""
        group = self._groups[0]
        if isinstance(store, SupportsInitialise):
            await store.initialise(group, [partition])
        wanted = Checkpoint(group, partition, stretch.first, str(stretch.first), stretch.epoch or 0)
        for _ in range(TRIES):
            found = {each.partition: each.etag for each in await store.list_checkpoints(group)}
            outcome = await store.update_checkpoint(
                replace(wanted, etag=found.get(partition, "")), rewind=True
            )
            if isinstance(outcome, Granted):
                self._notes.add((partition, stretch.first, stretch.epoch or 0))
                return
        raise StoreUnavailable(
            f"that partition {partition} is left to its owner could not be written down"
        )


def beside(group: Group, host: str) -> Group:
    """Where a query keeps its notes: a group that has no readers. Names of groups have no slash."""
    return replace(group, name=f"{group.name}@{quote(host, safe='')}")
