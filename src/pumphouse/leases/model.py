"""Ownership, checkpoint and member: the rows that hosts share, and the rows that may follow them.

A row is never edited. The functions below compute the next row, and a store writes it only if the
row it follows is still stored (same etag). All rules about epochs are in this module. The memory
store enforces them; the other stores rely on them.

    store.list_ownership -> Ownership -> renew, claim, nominate, ... -> store.claim_ownership
                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

* The epoch rises at every change of owner and never falls. A released row therefore stays, with an
  empty owner.
* Ages and deadlines are durations by the store's own clock. Clocks of hosts are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

# What the owner of a partition reports in its row besides its rate. "" means that it is served.
STOPPED = "stopped"  # an event that cannot be handled has stopped it, until it is resumed
STUCK = "stuck"  # its handler does not return, or cannot be started
BEHIND = "behind"  # its events are handled more slowly than they arrive
PAUSED = "paused"  # paused by the program of its host
RESUME = "resume"  # written by an operator: the owner starts the partition again
STATES = (STOPPED, STUCK, BEHIND, PAUSED, RESUME)


@dataclass(frozen=True, slots=True)
class Group:
    """The consumer group of a hub. Rows are stored under its three names."""

    namespace: str  # fully qualified, such as "name.servicebus.windows.net"
    hub: str
    name: str = "$Default"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.name}"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The row of one partition, as listed or as it is to be written."""

    partition: str
    owner: str  # "" after a release: the row stays, so that the epoch never falls
    epoch: int = 0  # 0 if unknown: an official SDK wrote the row
    etag: str = ""  # changes at every write; "" means that there is no row yet
    age_s: float = 0.0  # since the last write, by the store's clock; ignored in a write
    successor: str = ""  # the host that requested the partition, or ""
    # With a successor: the time until the successor may claim the row. Without one: the time in
    # which the new owner must confirm a hand-over. Negative after the deadline.
    deadline_s: float | None = None
    rate: float | None = None  # events per second as measured by the owner; None: unknown
    pinned: bool = False  # the owner never hands it over: do not request it
    state: str = ""  # one of STATES, or "" while the partition is served
    legacy: bool = False  # an Event Processor Host wrote it, which knows no hand-over; when listed

    def expired(self, lease_s: float) -> bool:
        return self.age_s >= lease_s

    @property
    def overdue(self) -> bool:
        """Whether the deadline of the successor, or of the confirmation, has passed."""
        return self.deadline_s is not None and self.deadline_s <= 0

    @property
    def unconfirmed(self) -> bool:
        """Whether the row was handed over and its new owner has not confirmed it yet."""
        return self.deadline_s is not None and not self.successor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last event of a partition that was handled, and the epoch of the owner that wrote it.

    A checkpoint without a position (neither sequence nor offset) is a bare stamp: it fences off
    earlier owners before the first event is handled, and has no start position.
    """

    group: Group
    partition: str
    sequence: int | None = None
    offset: str | None = None  # a string: offsets of geo-replicated hubs are not numbers
    epoch: int = 0  # 0 if an official SDK wrote it
    etag: str = ""  # "" means that there is no checkpoint yet
    enqueued_ms: int | None = None  # of that event, for the lag in seconds

    @property
    def has_position(self) -> bool:
        return self.sequence is not None or self.offset is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A host of the group. A host that owns nothing is visible by this record alone."""

    name: str
    age_s: float = 0.0  # since its last beat, by the store's clock; ignored in a write
    max_partitions: int | None = None  # the most it will own; None: no limit


@dataclass(frozen=True, slots=True)
class Listing:
    """All rows and members of a group, from one call."""

    ownerships: tuple[Ownership, ...] = ()
    members: tuple[Member, ...] = ()
    # The epoch of each partition's checkpoint; None from a store that does not list both at once.
    epochs: Mapping[str, int] | None = None


# -- the three outcomes of a write ----------------------------------------------------------------

Row = TypeVar("Row", Ownership, Checkpoint)


@dataclass(frozen=True, slots=True)
class Granted(Generic[Row]):
    """The write took effect. `row` has the new etag."""

    row: Row


@dataclass(frozen=True, slots=True)
class Refused(Generic[Row]):
    """Another write came first. `current` is the stored row, if the store returned it."""

    requested: Row
    current: Row | None = None


@dataclass(frozen=True, slots=True)
class Unknown(Generic[Row]):
    """No usable response: the write may have taken effect or not. It grants nothing."""

    requested: Row
    why: str = ""


# -- the next row ---------------------------------------------------------------------------------


def claim(
    row: Ownership | None, partition: str, host: str, epoch_known: int = 0, *, pinned: bool = False
) -> Ownership:
    """Claim a partition that is free, expired, or whose hand-over is overdue.

    `epoch_known` is the highest epoch known from elsewhere, such as the checkpoint: an official SDK
    writes rows without an epoch.
    """
    epoch = max(row.epoch if row is not None else 0, epoch_known) + 1
    etag, age_s = (row.etag, row.age_s) if row is not None else ("", 0.0)
    return Ownership(partition, host, epoch, etag, age_s, pinned=pinned)


def aged(row: Ownership, elapsed_s: float) -> Ownership:
    """The row as it is `elapsed_s` after it was read or granted, if nothing is written meanwhile.

    A deadline counts from the moment of the write. A row that is kept for a while and written
    again without this correction would postpone the deadline of its successor each time.
    """
    deadline_s = None if row.deadline_s is None else row.deadline_s - elapsed_s
    return Ownership(  # not replace(), which is three times slower: this runs for each listed row
        row.partition,
        row.owner,
        row.epoch,
        row.etag,
        row.age_s + elapsed_s,
        row.successor,
        deadline_s,
        row.rate,
        row.pinned,
        row.state,
        row.legacy,
    )


def aged_listing(listing: Listing, elapsed_s: float) -> Listing:
    """The listing as it is `elapsed_s` later, if nothing is written meanwhile."""
    rows = tuple(aged(row, elapsed_s) for row in listing.ownerships)
    members = tuple(replace(member, age_s=member.age_s + elapsed_s) for member in listing.members)
    return replace(listing, ownerships=rows, members=members)


def renew(row: Ownership, rate: float | None = None, state: str = "") -> Ownership:
    """Extend the lease of the owner. A successor and its deadline are kept (see `aged`)."""
    return replace(row, rate=rate, state=state)


def request_resume(row: Ownership) -> Ownership:
    """Ask the owner to start a stopped partition again. It reads this when it next renews.

    Owner and epoch stay the same, so that no other host may write a checkpoint meanwhile.
    """
    return replace(row, state=RESUME)


def release(row: Ownership) -> Ownership:
    """Give the partition up. The row keeps its epoch, so that the next owner gets a higher one."""
    return Ownership(row.partition, "", row.epoch, row.etag, row.age_s)


def nominate(row: Ownership, host: str, deadline_s: float) -> Ownership:
    """Request the partition from its owner, which has `deadline_s` to finish its batch."""
    return replace(row, successor=host, deadline_s=deadline_s)


def hand_over(row: Ownership, confirm_s: float | None = None) -> Ownership:
    """Hand the partition over to the successor that requested it.

    The successor may have died since. If it does not confirm within `confirm_s`, the partition is
    free again.
    """
    return Ownership(
        row.partition, row.successor, row.epoch + 1, row.etag, row.age_s, deadline_s=confirm_s
    )


def confirm(row: Ownership) -> Ownership:
    """Confirm the ownership of a row that was handed over, or whose claim had no response."""
    return replace(row, deadline_s=row.deadline_s if row.successor else None)


def raise_epoch(row: Ownership, above: int) -> Ownership:
    """The row with an epoch above `above`, the epoch of a reader or a checkpoint."""
    return replace(row, epoch=max(row.epoch, above) + 1)


# -- the next checkpoint --------------------------------------------------------------------------


def stamp(current: Checkpoint | None, group: Group, partition: str, epoch: int) -> Checkpoint:
    """The same position with a new epoch. After this write, earlier owners are refused."""
    if current is None:
        return Checkpoint(group, partition, epoch=epoch)
    return replace(current, epoch=epoch)


def advance(
    current: Checkpoint, sequence: int, offset: str | None, enqueued_ms: int | None = None
) -> Checkpoint:
    """The checkpoint after the event with this sequence number."""
    return replace(current, sequence=sequence, offset=offset, enqueued_ms=enqueued_ms)


def goes_back(current: Checkpoint, requested: Checkpoint) -> bool:
    """Whether `requested` lies before `current`. Only an administrator may write that."""
    if current.sequence is None:
        return False
    return requested.sequence is None or requested.sequence < current.sequence
