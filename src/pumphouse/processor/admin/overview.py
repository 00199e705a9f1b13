"""The overview of a consumer group: owner, lag and health of every partition. Pure.

It has one row per partition, made from the rows and checkpoints of a store and the partitions of a
hub, with a status such as "ok" or "stuck". The command line prints it, the dashboard
shows it.

    store.list_ownership, list_checkpoints, client.partition_properties -> overview -> table
                                                                           ^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pumphouse.client.base import PartitionProperties
from pumphouse.leases import model
from pumphouse.leases.model import Checkpoint, Listing, Ownership

# Statuses, from good to bad. Only those in BAD need attention. STOPPED, STUCK, BEHIND and PAUSED
# are also the states that an owner reports in its row.
IDLE, OK, MOVING, UNREAD = "idle", "ok", "moving", "unread"
BEHIND, STUCK, STOPPED, PAUSED = model.BEHIND, model.STUCK, model.STOPPED, model.PAUSED
NO_OWNER, LOST, AHEAD = "no owner", "data lost", "ahead"
BAD = (BEHIND, STUCK, STOPPED, NO_OWNER, LOST, AHEAD)
UNOWNED = "unowned"  # the state of a group in which no partition has an owner

MEANING = {
    IDLE: "has an owner and never had an event",
    OK: "has an owner that keeps up",
    MOVING: "is being handed over to another host",
    UNREAD: "has an owner and no checkpoint yet",
    PAUSED: "is paused by the program of its host",
    BEHIND: "has an owner whose lag grows",
    STUCK: "has waiting events, and its handler does not return or its checkpoint does not advance",
    STOPPED: "was stopped by an event that its handler cannot process, until it is resumed",
    NO_OWNER: "has no live owner: it is not read",
    LOST: "lost events that were not handled: retention removed them",
    AHEAD: "has a checkpoint beyond its newest event: the hub was probably re-created",
}


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of the overview. None means unknown."""

    partition: str
    owner: str  # "" without a live lease
    epoch: int
    lease_left_s: float | None  # negative after it has expired
    successor: str
    checkpoint: int | None  # the last sequence number that was handled
    first: int
    end: int  # the newest sequence number; -1 if the partition never had an event
    lag: int | None  # events that are not handled yet
    lag_s: float | None  # from the last event handled to the newest one
    status: str
    offset: str | None = None  # of the checkpoint
    lease_age_s: float | None = None  # since the owner acquired or renewed its lease

    @property
    def bad(self) -> bool:
        return self.status in BAD


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a group at one instant."""

    group: str
    hub: str
    lines: tuple[PartitionRow, ...]
    hosts: tuple[str, ...]  # live owners, and members without a partition

    @property
    def lag(self) -> int:
        return sum(line.lag or 0 for line in self.lines)

    @property
    def lag_max(self) -> int:
        return max((line.lag or 0 for line in self.lines), default=0)

    @property
    def lag_s_max(self) -> float | None:
        return max((line.lag_s for line in self.lines if line.lag_s is not None), default=None)

    @property
    def state(self) -> str:
        """The state of the group: "unowned" (no owner), "moving", "uneven" or "stable".

        It is "stopped" or "stuck" if any partition is, because the group makes no full progress.
        """
        owners = [line.owner for line in self.lines if line.owner]
        if not owners:
            return UNOWNED
        statuses = {line.status for line in self.lines}
        if hindered := [status for status in (STOPPED, STUCK) if status in statuses]:
            return hindered[0]
        if len(owners) < len(self.lines) or any(line.successor for line in self.lines):
            return "moving"
        counts = [owners.count(host) for host in self.hosts]
        return "stable" if max(counts) - min(counts) <= 1 else "uneven"

    def shares(self) -> tuple[int, int]:
        """The fewest and the most partitions that a live host owns."""
        owners = [line.owner for line in self.lines]
        counts = [owners.count(host) for host in self.hosts] or [0]
        return min(counts), max(counts)


def overview(
    group: str,
    hub: str,
    partitions: Iterable[PartitionProperties],
    listing: Listing,
    checkpoints: Iterable[Checkpoint],
    lease_s: float,
    before: Overview | None = None,
) -> Overview:
    """The current overview. `before` is the previous one: it shows growing lag and stuck owners."""
    rows = {row.partition: row for row in listing.ownerships}
    stored = {checkpoint.partition: checkpoint for checkpoint in checkpoints}
    rows_before = {line.partition: line for line in before.lines} if before is not None else {}
    lines = tuple(
        partition_row(
            properties,
            rows.get(properties.partition),
            stored.get(properties.partition),
            lease_s,
            rows_before,
        )
        for properties in sorted(partitions, key=lambda item: partition_order(item.partition))
    )
    return Overview(group, hub, lines, hosts(lines, listing, lease_s))


def hosts(lines: Iterable[PartitionRow], listing: Listing, lease_s: float) -> tuple[str, ...]:
    owners = {line.owner for line in lines if line.owner}
    members = {member.name for member in listing.members if member.age_s < lease_s}
    return tuple(sorted(owners | members))


def partition_order(partition: str) -> tuple[int, str]:
    """Sorts partitions by number: 10 comes after 9."""
    return (int(partition) if partition.isdecimal() else 1 << 62, partition)


def partition_row(
    properties: PartitionProperties,
    row: Ownership | None,
    checkpoint: Checkpoint | None,
    lease_s: float,
    rows_before: Mapping[str, PartitionRow],
) -> PartitionRow:
    is_live = row is not None and row.owner != "" and not row.expired(lease_s)
    live_row = row if is_live else None
    lag = lag_of(properties, checkpoint)
    before = rows_before.get(properties.partition)
    return PartitionRow(
        partition=properties.partition,
        owner=live_row.owner if live_row else "",
        epoch=row.epoch if row is not None else 0,
        lease_left_s=lease_s - row.age_s if row is not None and row.owner else None,
        successor=live_row.successor if live_row else "",
        checkpoint=checkpoint.sequence if checkpoint is not None else None,
        first=properties.first_sequence,
        end=properties.last_sequence,
        lag=lag,
        lag_s=lag_s_of(properties, checkpoint, lag),
        status=status_of(properties, live_row, checkpoint, lag, before),
        offset=checkpoint.offset if checkpoint is not None else None,
        lease_age_s=live_row.age_s if live_row else None,
    )


def lag_of(properties: PartitionProperties, checkpoint: Checkpoint | None) -> int | None:
    """How many events are not handled yet; None if the checkpoint has only an offset."""
    if checkpoint is None or not checkpoint.has_position:
        return 0 if properties.empty else properties.last_sequence - properties.first_sequence + 1
    if checkpoint.sequence is None:
        return 0 if checkpoint.offset == properties.last_offset else None
    return max(0, properties.last_sequence - checkpoint.sequence)


def lag_s_of(
    properties: PartitionProperties, checkpoint: Checkpoint | None, lag: int | None
) -> float | None:
    if lag == 0:
        return 0.0
    if checkpoint is None or checkpoint.enqueued_ms is None:
        return None
    return max(0.0, (properties.last_enqueued_ms - checkpoint.enqueued_ms) / 1000)


def status_of(
    properties: PartitionProperties,
    live_row: Ownership | None,
    checkpoint: Checkpoint | None,
    lag: int | None,
    before: PartitionRow | None,
) -> str:
    sequence = checkpoint.sequence if checkpoint is not None else None
    if sequence is not None and sequence > properties.last_sequence:
        return AHEAD
    if sequence is not None and sequence + 1 < properties.first_sequence:
        return LOST
    if live_row is None:
        return NO_OWNER
    if live_row.state in (STOPPED, STUCK):
        return live_row.state
    if live_row.state == model.RESUME:  # until the owner has read it
        return STOPPED
    if live_row.successor:
        return MOVING
    if properties.last_sequence < 0:
        return IDLE
    if checkpoint is None or not checkpoint.has_position:
        return UNREAD
    if live_row.state == PAUSED or (live_row.state == BEHIND and lag):
        return live_row.state
    return progress(lag, sequence, before)


def progress(lag: int | None, sequence: int | None, before: PartitionRow | None) -> str:
    """The status of a partition with an owner, by comparison with the previous overview."""
    if not lag or before is None or not before.lag:
        return OK
    if sequence == before.checkpoint:
        return STUCK
    return BEHIND if lag > before.lag else OK
