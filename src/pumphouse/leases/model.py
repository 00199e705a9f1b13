"""Ownership, checkpoint and member: the rows that hosts share, and how each may follow another.

A row is never edited, only followed: the functions below say what the next row is, and a store
writes it only if the row it follows is still there (same etag). All rules about epochs stand here;
the memory store enforces them, the others rely on them.

    store.list_ownership -> Ownership -> renew, claim, nominate, ... -> store.claim_ownership
                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

* The epoch rises by one or more at every change of owner and never falls, so a released row stays,
  with an empty owner.
* Ages and deadlines are durations by the store's own clock: the clocks of hosts never meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Group:
    """The consumer group of a hub: what its rows are filed under."""

    namespace: str  # fully qualified, such as "name.servicebus.windows.net"
    hub: str
    name: str = "$Default"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.name}"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The row of one partition, as it was listed, or as it is to be written."""

    partition: str
    owner: str  # "" once released: the row stays, so that the epoch only ever rises
    epoch: int = 0  # 0 if no epoch is known: an official SDK wrote the row
    etag: str = ""  # changes at every write; "" means that there is no row yet
    age_s: float = 0.0  # since the last write, by the store's clock; ignored in a write
    successor: str = ""  # who has asked for the partition, if anybody has
    # Until the successor may take it; without one, until its new owner must have confirmed that it
    # was handed over. Below 0 once it has passed.
    deadline_s: float | None = None
    rate: float | None = None  # events per second as the owner saw them, if it said so
    pinned: bool = False  # its owner gives it to nobody while it lives: do not ask

    def expired(self, lease_s: float) -> bool:
        return self.age_s >= lease_s

    @property
    def overdue(self) -> bool:
        """Whether the successor need wait no longer, or its new owner has not come for it."""
        return self.deadline_s is not None and self.deadline_s <= 0

    @property
    def handed(self) -> bool:
        """Whether it was handed over, and its new owner has not written it yet."""
        return self.deadline_s is not None and not self.successor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last event of a partition that was handled, and the epoch of the owner who said so.

    A checkpoint without a position (neither sequence nor offset) is a bare stamp: it fences earlier
    owners off before anything was handled, and tells nobody where to start.
    """

    group: Group
    partition: str
    sequence: int | None = None
    offset: str | None = None  # a string: geo-replicated hubs have offsets that are no numbers
    epoch: int = 0  # 0 if an official SDK wrote it
    etag: str = ""  # "" means that there is no checkpoint yet
    enqueued_ms: int | None = None  # of that event, so that lag can be told in seconds

    @property
    def has_position(self) -> bool:
        return self.sequence is not None or self.offset is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A host that takes part. One that owns nothing is visible by this record alone."""

    name: str
    age_s: float = 0.0  # since its last beat, by the store's clock; ignored in a write
    max_partitions: int | None = None  # the most it will own; None if it did not say


@dataclass(frozen=True, slots=True)
class Listing:
    """All rows and members of a group, as one call found them."""

    ownerships: tuple[Ownership, ...] = ()
    members: tuple[Member, ...] = ()
    # By partition, the epoch of its checkpoint; None from a store that does not list both at once.
    epochs: Mapping[str, int] | None = None


# -- the three outcomes of a write ----------------------------------------------------------------

Row = TypeVar("Row", Ownership, Checkpoint)


@dataclass(frozen=True, slots=True)
class Granted(Generic[Row]):
    """It is written; `row` carries the new etag."""

    row: Row


@dataclass(frozen=True, slots=True)
class Refused(Generic[Row]):
    """Somebody else wrote first. `current` is their row where the store could tell it."""

    wanted: Row
    current: Row | None = None


@dataclass(frozen=True, slots=True)
class Unknown(Generic[Row]):
    """No answer, or one that says nothing: it may be written or not. Unknown is not owned."""

    wanted: Row
    why: str = ""


# -- what may follow a row ------------------------------------------------------------------------


def claim(
    row: Ownership | None, partition: str, host: str, epoch_known: int = 0, *, pinned: bool = False
) -> Ownership:
    """Take a partition that is free, expired, or whose hand-off is overdue.

    `epoch_known` is the highest epoch known from elsewhere, such as the checkpoint: an official SDK
    rewrites a row without our epoch.
    """
    epoch = max(row.epoch if row is not None else 0, epoch_known) + 1
    etag, age_s = (row.etag, row.age_s) if row is not None else ("", 0.0)
    return Ownership(partition, host, epoch, etag, age_s, pinned=pinned)


def aged(row: Ownership, elapsed_s: float) -> Ownership:
    """A row as it will be so long after it was read or granted, if nobody writes it meanwhile.

    A deadline counts from the moment of the write, so a row that is kept for a while and written
    again without this would put its successor off each time.
    """
    deadline_s = None if row.deadline_s is None else row.deadline_s - elapsed_s
    return Ownership(  # not replace(), which costs three times as much: every row of every listing
        row.partition,
        row.owner,
        row.epoch,
        row.etag,
        row.age_s + elapsed_s,
        row.successor,
        deadline_s,
        row.rate,
        row.pinned,
    )


def aged_listing(listing: Listing, elapsed_s: float) -> Listing:
    """The listing as it is `elapsed_s` later if nothing is written in between."""
    rows = tuple(aged(row, elapsed_s) for row in listing.ownerships)
    members = tuple(replace(member, age_s=member.age_s + elapsed_s) for member in listing.members)
    return replace(listing, ownerships=rows, members=members)


def renew(row: Ownership, rate: float | None = None) -> Ownership:
    """Go on owning it. A successor that waits is kept, with its deadline (see `aged`)."""
    return replace(row, rate=rate)


def release(row: Ownership) -> Ownership:
    return Ownership(row.partition, "", row.epoch, row.etag, row.age_s)


def nominate(row: Ownership, host: str, deadline_s: float) -> Ownership:
    """Ask the owner for its partition; it has so long to finish what it has in hand."""
    return replace(row, successor=host, deadline_s=deadline_s)


def hand_over(row: Ownership, confirm_s: float | None = None) -> Ownership:
    """Give the partition to the successor that asked for it.

    It may have died since. Unless it confirms within so long, the partition is free again.
    """
    return Ownership(
        row.partition, row.successor, row.epoch + 1, row.etag, row.age_s, deadline_s=confirm_s
    )


def confirm(row: Ownership) -> Ownership:
    """Take up what a row says is ours: what was handed over, or claimed without an answer."""
    return replace(row, deadline_s=row.deadline_s if row.successor else None)


def raise_epoch(row: Ownership, above: int) -> Ownership:
    """Our own row with an epoch above one that a refusal named."""
    return replace(row, epoch=max(row.epoch, above) + 1)


# -- what may follow a checkpoint -----------------------------------------------------------------


def stamp(current: Checkpoint | None, group: Group, partition: str, epoch: int) -> Checkpoint:
    """The checkpoint as it is, under our epoch: from then on earlier owners are refused."""
    if current is None:
        return Checkpoint(group, partition, epoch=epoch)
    return replace(current, epoch=epoch)


def advance(
    current: Checkpoint, sequence: int, offset: str | None, enqueued_ms: int | None = None
) -> Checkpoint:
    return replace(current, sequence=sequence, offset=offset, enqueued_ms=enqueued_ms)


def goes_back(current: Checkpoint, wanted: Checkpoint) -> bool:
    """Whether `wanted` lies before `current`; only an administrator may write such a checkpoint."""
    if current.sequence is None:
        return False
    return wanted.sequence is None or wanted.sequence < current.sequence
