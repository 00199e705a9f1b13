"""The ownership table: who reads which partition, how far they are, and whether that is well.

One line per partition, from the rows and checkpoints of a store and the partitions of a hub, with a
verdict in a word. The command line prints it, the page shows it.

    store.list_ownership, list_checkpoints, client.partition_properties -> overview -> table
                                                                           ^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pumphouse.client.base import PartitionProperties
from pumphouse.leases.model import Checkpoint, Listing, Ownership

# Verdicts, from good to bad. Only the last five ask for somebody's attention.
IDLE, OK, MOVING, UNREAD = "idle", "ok", "moving", "unread"
BEHIND, STUCK, NO_OWNER, LOST, AHEAD = "behind", "stuck", "no owner", "data lost", "ahead"
BAD = (BEHIND, STUCK, NO_OWNER, LOST, AHEAD)

MEANING = {
    IDLE: "has an owner and never had an event",
    OK: "has an owner that keeps up",
    MOVING: "is being handed over to another host",
    UNREAD: "has an owner and no checkpoint yet",
    BEHIND: "has an owner whose lag grows",
    STUCK: "has events waiting and a checkpoint that does not move",
    NO_OWNER: "has no live owner: nobody reads it",
    LOST: "lost events that nobody handled: retention removed them",
    AHEAD: "has a checkpoint beyond its newest event: was the hub re-created?",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One partition of the table. None means that it is not known."""

    partition: str
    owner: str  # "" if nobody has a live lease
    epoch: int
    lease_left_s: float | None  # below 0: it ran out so long ago
    successor: str
    checkpoint: int | None  # the last sequence number that was handled
    first: int
    end: int  # the newest sequence number; -1 if there has never been one
    lag: int | None  # events that wait to be handled
    lag_s: float | None  # from the last event handled to the newest one
    verdict: str

    @property
    def bad(self) -> bool:
        return self.verdict in BAD


@dataclass(frozen=True, slots=True)
class Overview:
    """A group at one instant."""

    group: str
    hub: str
    lines: tuple[Line, ...]
    hosts: tuple[str, ...]  # live owners, and members that own nothing

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
        """One word for all: nobody, moving, uneven, or stable."""
        owners = [line.owner for line in self.lines if line.owner]
        if not owners:
            return "nobody"
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
    """The table as of now; with the one `before`, growing lag and stuck partitions show too."""
    rows = {row.partition: row for row in listing.ownerships}
    marks = {mark.partition: mark for mark in checkpoints}
    earlier = {line.partition: line for line in before.lines} if before is not None else {}
    lines = tuple(
        line_for(one, rows.get(one.partition), marks.get(one.partition), lease_s, earlier)
        for one in sorted(partitions, key=lambda one: order(one.partition))
    )
    return Overview(group, hub, lines, hosts(lines, listing, lease_s))


def hosts(lines: Iterable[Line], listing: Listing, lease_s: float) -> tuple[str, ...]:
    live = {line.owner for line in lines if line.owner}
    waiting = {member.name for member in listing.members if member.age_s < lease_s}
    return tuple(sorted(live | waiting))


def order(partition: str) -> tuple[int, str]:
    """Partitions are named by numbers, and 10 comes after 9."""
    return (int(partition) if partition.isdecimal() else 1 << 62, partition)


def line_for(
    found: PartitionProperties,
    row: Ownership | None,
    mark: Checkpoint | None,
    lease_s: float,
    earlier: Mapping[str, Line],
) -> Line:
    live = row is not None and row.owner != "" and not row.expired(lease_s)
    owned = row if row is not None and live else None
    checkpoint = mark.sequence if mark is not None else None
    lag = waiting(found, mark)
    return Line(
        partition=found.partition,
        owner=owned.owner if owned else "",
        epoch=row.epoch if row is not None else 0,
        lease_left_s=lease_s - row.age_s if row is not None and row.owner else None,
        successor=owned.successor if owned else "",
        checkpoint=checkpoint,
        first=found.first_sequence,
        end=found.last_sequence,
        lag=lag,
        lag_s=delay(found, mark, lag),
        verdict=judge(found, owned, mark, lag, earlier.get(found.partition)),
    )


def waiting(found: PartitionProperties, mark: Checkpoint | None) -> int | None:
    """How many events wait. With an offset alone nobody can count them."""
    if mark is None or not mark.has_position:
        return 0 if found.empty else found.last_sequence - found.first_sequence + 1
    if mark.sequence is None:
        return 0 if mark.offset == found.last_offset else None
    return max(0, found.last_sequence - mark.sequence)


def delay(found: PartitionProperties, mark: Checkpoint | None, lag: int | None) -> float | None:
    if lag == 0:
        return 0.0
    if mark is None or mark.enqueued_ms is None:
        return None
    return max(0.0, (found.last_enqueued_ms - mark.enqueued_ms) / 1000)


def judge(
    found: PartitionProperties,
    owned: Ownership | None,
    mark: Checkpoint | None,
    lag: int | None,
    before: Line | None,
) -> str:
    sequence = mark.sequence if mark is not None else None
    if sequence is not None and sequence > found.last_sequence:
        return AHEAD
    if sequence is not None and sequence + 1 < found.first_sequence:
        return LOST
    if owned is None:
        return NO_OWNER
    if owned.successor:
        return MOVING
    if found.last_sequence < 0:
        return IDLE
    if mark is None or not mark.has_position:
        return UNREAD
    return progress(lag, sequence, before)


def progress(lag: int | None, sequence: int | None, before: Line | None) -> str:
    """Whether an owner keeps up, as far as two looks can tell."""
    if not lag or before is None or not before.lag:
        return OK
    if sequence == before.checkpoint:
        return STUCK
    return BEHIND if lag > before.lag else OK
