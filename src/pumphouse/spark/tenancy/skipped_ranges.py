"""Ranges that a query left unread in a batch that Spark commits nevertheless.

Spark commits a batch as a whole. If a range of it was left to another owner, Spark's journal does
not show that, and a later run would treat the range as read. So the range is written to the store
before the batch can be committed, in a checkpoint group of its own beside the consumer group. This
is rare; every other range of a committed batch was read.

    TenantBatches -> write_skipped -> store -> read_skipped -> where a later run resumes
                     ^^^^^^^^^^^^^ this module ^^^^^^^^^^^^
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import Checkpoint, Granted, Group
from pumphouse.leases.store import CheckpointStore, SupportsInitialise
from pumphouse.spark.tenancy.journal import JournalRange

ATTEMPTS = 5

SkippedKey = tuple[str, int, int]  # partition, first event and epoch of a skipped range


def skipped_key(partition: str, skipped: JournalRange) -> SkippedKey:
    return partition, skipped.first, skipped.epoch or 0


async def read_skipped(
    store: CheckpointStore, group: Group, hosts: Iterable[str]
) -> set[SkippedKey]:
    """The last skipped range of each partition, as earlier runs of these hosts wrote it."""
    return {
        (row.partition, row.sequence, row.epoch)
        for host in dict.fromkeys(hosts)
        if host
        for row in await store.list_checkpoints(skipped_group(group, host))
        if row.sequence is not None
    }


async def write_skipped(
    store: CheckpointStore, group: Group, host: str, partition: str, skipped: JournalRange
) -> None:
    """Write a skipped range; raise StoreUnavailable, and so fail the batch, if that fails."""
    group = skipped_group(group, host)
    if isinstance(store, SupportsInitialise):
        await store.initialise(group, [partition])
    _, first, epoch = skipped_key(partition, skipped)
    row = Checkpoint(group, partition, first, str(first), epoch)
    for _ in range(ATTEMPTS):
        etags = {known.partition: known.etag for known in await store.list_checkpoints(group)}
        row = replace(row, etag=etags.get(partition, ""))
        if isinstance(await store.update_checkpoint(row, rewind=True), Granted):
            return
    raise StoreUnavailable(
        f"partition {partition}: the skipped range could not be written to the store after "
        f"{ATTEMPTS} attempts; the batch fails, and Spark runs it again"
    )


def skipped_group(group: Group, host: str) -> Group:
    """The group in which a query keeps its skipped ranges. It has no readers."""
    return replace(group, name=f"{group.name}@{quote(host, safe='')}")
