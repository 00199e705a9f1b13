"""Who owns what at one instant, and how much should be whose?

A census judges the rows and members that one listing found. It does no IO, reads no clock (ages are
in the rows, by the store's clock) and keeps no state. Whatever a strategy needs to know is in it.

    store.list_ownership -> take_census -> strategy -> store.claim_ownership
                            ^^^^^^^^^^^ this module

* A partition is *free* if it never had an owner, was released, or its owner's lease ran out, even
  if a successor waits for it.
* A row with a live successor counts as the successor's: it is on its way. So two hosts never make
  room twice for the same host, and a fleet is judged by where it will be.
* A row that was handed over is its new owner's, who cannot be asked for it before it has confirmed
  that it is there. If it does not in time, it is dead, and the partition free.
* A row that somebody has asked for cannot be asked for by another until that deadline has passed,
  even if who asked is dead by now; until then it counts as its owner's and is left alone.
* What somebody else has pinned is left out, and so is a host that has nothing else: there is
  nothing to share with it.
* Everybody alive counts as a member: who has a live row, and who has a live member record, even if
  it owns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pumphouse.leases.model import Listing, Ownership

UNLIMITED = 1 << 62


class Level(NamedTuple):
    """Everybody gets `floor`, or its own limit if that is lower; `extra` hosts get one more."""

    floor: int
    extra: int


@dataclass(frozen=True, slots=True)
class Census:
    """All partitions of a hub and all hosts of a group, judged at one instant for one of them.

    Partitions are in the order of their numbers and hosts in that of their names, so that the same
    listing gives the same census, in whatever order the store told it.
    """

    me: str
    members: tuple[str, ...]
    free: tuple[str, ...]
    mine: tuple[str, ...]  # I own them, and nobody alive has asked for them
    coming: tuple[str, ...]  # I have asked for them: they count as mine
    going: tuple[str, ...]  # I own them, and they count as somebody else's
    due: tuple[str, ...]  # of those coming: the deadline has passed, I may take them now
    held: Mapping[str, tuple[str, ...]]  # by every host (me too): what it could be asked for
    whose: Mapping[str, str]  # partition -> the host that it counts as belonging to
    counts: Mapping[str, int]  # by every member: how many partitions count as its own
    limits: Mapping[str, int] = field(default_factory=dict)  # of those that said they have one
    rates: Mapping[str, float | None] = field(default_factory=dict)  # events/s; None: not known
    joined: bool = True  # I have said that I am here, and others have had time to see it
    neglected: tuple[str, ...] = ()  # free now, and at my last census too

    @property
    def total(self) -> int:
        return len(self.free) + len(self.whose)

    @property
    def have(self) -> int:
        """What is mine, or on its way to me."""
        return self.counts[self.me]

    @property
    def room(self) -> int:
        """How many more I may have at all, by my own limit."""
        return max(0, self.limits.get(self.me, UNLIMITED) - self.have)

    @property
    def level(self) -> Level:
        limits = [self.limits[host] for host in self.members if host in self.limits]
        return water_level(self.total, len(self.members), limits)

    @property
    def shares(self) -> dict[str, int]:
        """How many partitions are whose once balanced.

        Those that have the most get the extra ones, for then the fewest have to move. Among those
        with no more than the floor names decide: what is claimed meanwhile, and how busy they are
        just now, does not change who is meant.
        """
        floor, extra = self.level

        def rank(host: str) -> tuple[int, str]:
            return (-max(0, self.counts[host] - floor), host)

        roomy = [host for host in self.members if self.limits.get(host, UNLIMITED) > floor]
        shares = {host: min(floor, self.limits.get(host, UNLIMITED)) for host in self.members}
        return shares | {host: floor + 1 for host in sorted(roomy, key=rank)[:extra]}

    def limited(self, most: int | None) -> Census:
        """The same, knowing that I take at most so many."""
        if most is None:
            return self
        return replace(self, limits={**self.limits, self.me: most})


def without(census: Census, partitions: Set[str]) -> Census:
    """The same, as if these were not free: somebody else was quicker."""
    free = tuple(partition for partition in census.free if partition not in partitions)
    return replace(census, free=free, neglected=())


def water_level(total: int, hosts: int, limits: Iterable[int]) -> Level:
    """Spread `total` over hosts as evenly as their limits allow."""
    left = total
    for limit in sorted(limits):
        if limit > left // hosts:
            break
        # It is full below the level of the others, who share what it leaves.
        left, hosts = left - limit, hosts - 1
        if hosts == 0:
            return Level(limit, 0)
    return Level(*divmod(left, hosts))


def take_census(
    me: str,
    partitions: Iterable[str],
    listing: Listing,
    lease_s: float,
    *,
    before: Census | None = None,
) -> Census:
    """Judge what a listing found. Rows of partitions that the hub does not have are ignored.

    `before` is my census of the cycle before. It tells which partitions stay free though everybody
    has had time to claim them, and the rates of those that have changed hands since.

    A cycle lists first and says that it is there afterwards. So a newcomer's first listing does not
    show it, and its first census has not `joined`: others have had no time to see it.
    """
    others = {row.partition for row in listing.ownerships if is_pinned(row, me, lease_s)}
    shared = (partition for partition in partitions if partition not in others)
    order = {partition: None for partition in sorted(shared, key=by_number)}
    rows = {row.partition: row for row in listing.ownerships if row.partition in order}
    live = {partition: row for partition, row in rows.items() if lives(row, lease_s)}
    seen = {row.owner for row in live.values()}
    seen |= {member.name for member in listing.members if member.age_s < lease_s}
    members = {*seen, me}
    whose = {p: heir(live[p], members) for p in order if p in live}
    free = tuple(p for p in order if p not in live)
    tally = Counter(whose.values())
    return Census(
        me=me,
        members=tuple(sorted(members)),
        free=free,
        mine=tuple(p for p, host in whose.items() if host == me == live[p].owner),
        coming=tuple(p for p, host in whose.items() if host == me != live[p].owner),
        going=tuple(p for p, host in whose.items() if host != me == live[p].owner),
        due=tuple(
            p for p, host in whose.items() if host == me != live[p].owner and live[p].overdue
        ),
        held=what_is_held(live, whose),
        whose=whose,
        counts={host: tally[host] for host in sorted(members)},
        limits={
            member.name: member.max_partitions
            for member in listing.members
            if member.name in members and member.max_partitions is not None
        },
        # What nobody owns has the rate that its row tells: what hosts remember of it differs.
        rates={p: rate_of(rows.get(p), before if p in live else None) for p in order},
        joined=me in seen or before is not None,
        neglected=still_free(free, before),
    )


def by_number(partition: str) -> tuple[int, str]:
    """The order of partitions: 10 comes after 9."""
    return (int(partition) if partition.isdecimal() else UNLIMITED, partition)


def lives(row: Ownership, lease_s: float) -> bool:
    """Whether somebody has it: who did not come for what it was handed has not."""
    return row.owner != "" and not row.expired(lease_s) and not (row.handed and row.overdue)


def is_pinned(row: Ownership, me: str, lease_s: float) -> bool:
    """Whether somebody else has it for good, so that there is nothing to share."""
    return row.pinned and row.owner != me and lives(row, lease_s)


def heir(row: Ownership, members: set[str]) -> str:
    """Whom a row counts for: a successor who died while it waited will not get it."""
    return row.successor if row.successor in members else row.owner


def what_is_held(
    live: Mapping[str, Ownership], whose: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """By each owner, what others may ask it for: nobody has, or who has is dead and overdue."""
    held: dict[str, list[str]] = {}
    for partition, host in whose.items():
        row = live[partition]
        if host == row.owner and (row.deadline_s is None or row.overdue):
            held.setdefault(host, []).append(partition)
    return {host: tuple(held[host]) for host in sorted(held)}


def rate_of(row: Ownership | None, before: Census | None) -> float | None:
    """What the owner says, or what was known before: a new owner cannot say yet."""
    if row is None or row.rate is not None or before is None:
        return row.rate if row is not None else None
    return before.rates.get(row.partition)


def still_free(free: tuple[str, ...], before: Census | None) -> tuple[str, ...]:
    # Before I joined, everybody was still waiting for everybody: nothing was neglected then.
    if before is None or not before.joined:
        return ()
    earlier = set(before.free)
    return tuple(partition for partition in free if partition in earlier)
