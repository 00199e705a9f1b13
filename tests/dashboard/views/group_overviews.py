"""Overviews of a small consumer group, for the tests of the views."""

from __future__ import annotations

from pumphouse.client.base import PartitionProperties
from pumphouse.leases.model import Checkpoint, Group, Listing, Member, Ownership
from pumphouse.processor.admin.overview import Overview, overview

GROUP = Group("hub.example", "sensors", "counters")


def properties(partition: str, last: int) -> PartitionProperties:
    return PartitionProperties("sensors", partition, 0, last, str(last), 10_000, last < 0)


def group_overview(
    *, checkpoints_at: tuple[int | None, ...] = (90, 40), ends: tuple[int, ...] = (99, 99)
) -> Overview:
    """a owns 0; the lease of b on 1 has expired; c owns nothing."""
    listing = Listing(
        (Ownership("0", "a", 3, "x", 4.0), Ownership("1", "b", 7, "y", 31.0)),
        (Member("a", 1.0), Member("c", 2.0)),
    )
    checkpoints = [
        Checkpoint(GROUP, str(index), sequence, None, 1, enqueued_ms=8_500)
        for index, sequence in enumerate(checkpoints_at)
        if sequence is not None
    ]
    partitions = [properties(str(index), end) for index, end in enumerate(ends)]
    return overview("counters", "sensors", partitions, listing, checkpoints, 30.0)
