"""The census: all partitions and hosts of a group at one instant, and each host's share.

A census is computed from one listing of rows and members. It does no IO, reads no clock (ages are
in the rows, by the store's clock) and keeps no state. It holds everything that a strategy needs.

    store.list_ownership -> take_census -> strategy -> store.claim_ownership
                            ^^^^^^^^^^^ this module

* A partition is *free* if it never had an owner, was released, or its owner's lease has expired,
  even if a successor waits for it.
* A row with a live successor counts as the successor's. So a host that lacks one partition, and has
  requested it, does not request a second one from another host.
* A row that was handed over counts as its new owner's, and cannot be requested before that owner
  has confirmed it. If the owner does not confirm in time, it is dead and the partition free.
* A requested row cannot be requested by another host until its deadline has passed, even if the
  requesting host is dead. Until then it counts as its owner's.
* Partitions pinned by another host are left out. A host that owns only pinned partitions is left
  out too, because it shares none.
* Every live host is a member: one with a live row, and one with a live member record, even if it
  owns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pumphouse.leases.model import Listing, Ownership

UNLIMITED = 1 << 62


class Level(NamedTuple):
    """Every host gets `floor`, or its own limit if that is lower; `extra` hosts get one more."""

    floor: int
    extra: int


@dataclass(frozen=True, slots=True)
class Census:
    """All partitions of a hub and all hosts of a group at one instant, listed by one host.

    Partitions are ordered by number and hosts by name, so that the same listing gives the same
    census whatever the order of its rows.
    """

    me: str
    members: tuple[str, ...]
    free: tuple[str, ...]
    mine: tuple[str, ...]  # owned by me, and not requested by a live host
    incoming: tuple[str, ...]  # requested by me: they count as mine
    outgoing: tuple[str, ...]  # owned by me, but they count as another host's
    due: tuple[str, ...]  # incoming ones whose deadline has passed: I may claim them now
    held: Mapping[str, tuple[str, ...]]  # by host (me too): the partitions that can be requested
    assigned: Mapping[str, str]  # partition -> the host that it counts as belonging to
    counts: Mapping[str, int]  # by member: how many partitions count as its own
    limits: Mapping[str, int] = field(default_factory=dict)  # of the members that have one
    rates: Mapping[str, float | None] = field(default_factory=dict)  # events/s; None: unknown
    joined: bool = True  # my member record is written, and others have had time to read it
    unclaimed: tuple[str, ...] = ()  # free now, and at my last census too

    @property
    def total(self) -> int:
        return len(self.free) + len(self.assigned)

    @property
    def own_count(self) -> int:
        """How many partitions are mine or incoming."""
        return self.counts[self.me]

    @property
    def room(self) -> int:
        """How many more I may own by my own limit."""
        return max(0, self.limits.get(self.me, UNLIMITED) - self.own_count)

    @property
    def level(self) -> Level:
        limits = [self.limits[host] for host in self.members if host in self.limits]
        return water_level(self.total, len(self.members), limits)

    @property
    def shares(self) -> dict[str, int]:
        """How many partitions each host owns in the balanced fleet.

        The hosts with the most partitions get the extra ones, because then the fewest have to
        move. Among hosts at or below the floor the name decides: claims made meanwhile, and how
        busy a host is, do not change the result.
        """
        floor, extra = self.level

        def rank(host: str) -> tuple[int, str]:
            return (-max(0, self.counts[host] - floor), host)

        below_limit = [host for host in self.members if self.limits.get(host, UNLIMITED) > floor]
        shares = {host: min(floor, self.limits.get(host, UNLIMITED)) for host in self.members}
        return shares | {host: floor + 1 for host in sorted(below_limit, key=rank)[:extra]}

    def limited(self, max_partitions: int | None) -> Census:
        """The same census with a limit to what I own."""
        if max_partitions is None:
            return self
        return replace(self, limits={**self.limits, self.me: max_partitions})


def without_free(census: Census, partitions: Set[str]) -> Census:
    """The same census as if these partitions were not free: another host has claimed them."""
    free = tuple(partition for partition in census.free if partition not in partitions)
    return replace(census, free=free, unclaimed=())


def water_level(total: int, hosts: int, limits: Iterable[int]) -> Level:
    """Spread `total` over hosts as evenly as their limits allow (water filling)."""
    remaining = total
    for limit in sorted(limits):
        if limit > remaining // hosts:
            break
        # The limit of this host is below the level: the other hosts share the rest.
        remaining, hosts = remaining - limit, hosts - 1
        if hosts == 0:
            return Level(limit, 0)
    return Level(*divmod(remaining, hosts))


def take_census(
    me: str,
    partitions: Iterable[str],
    listing: Listing,
    lease_s: float,
    *,
    before: Census | None = None,
) -> Census:
    """The census of a listing. Rows of partitions that the hub does not have are ignored.

    `before` is my census of the previous cycle. It shows which partitions stay free although every
    host has had time to claim them, and the rates of those that have changed owners since.

    A cycle lists first and writes its member record afterwards. So a new host's first listing does
    not contain its record, and `joined` is False in its first census: the others cannot have read
    the record yet.
    """
    pinned = {row.partition for row in listing.ownerships if is_pinned_by_other(row, me, lease_s)}
    shared = (partition for partition in partitions if partition not in pinned)
    order = {partition: None for partition in sorted(shared, key=partition_order)}
    rows = {row.partition: row for row in listing.ownerships if row.partition in order}
    live = {partition: row for partition, row in rows.items() if is_live(row, lease_s)}
    listed = {row.owner for row in live.values()}
    listed |= {member.name for member in listing.members if member.age_s < lease_s}
    members = {*listed, me}
    assigned = {p: future_owner(live[p], members) for p in order if p in live}
    free = tuple(p for p in order if p not in live)
    tally = Counter(assigned.values())
    return Census(
        me=me,
        members=tuple(sorted(members)),
        free=free,
        mine=tuple(p for p, host in assigned.items() if host == me == live[p].owner),
        incoming=tuple(p for p, host in assigned.items() if host == me != live[p].owner),
        outgoing=tuple(p for p, host in assigned.items() if host != me == live[p].owner),
        due=tuple(
            p for p, host in assigned.items() if host == me != live[p].owner and live[p].overdue
        ),
        held=requestable(live, assigned),
        assigned=assigned,
        counts={host: tally[host] for host in sorted(members)},
        limits={
            member.name: member.max_partitions
            for member in listing.members
            if member.name in members and member.max_partitions is not None
        },
        # For a free partition, only the rate in its row is used: it is the same for all hosts,
        # while the rates of their previous censuses may differ.
        rates={p: rate_of(rows.get(p), before if p in live else None) for p in order},
        joined=me in listed or before is not None,
        unclaimed=still_free(free, before),
    )


def partition_order(partition: str) -> tuple[int, str]:
    """Sort key of partitions: 10 comes after 9."""
    return (int(partition) if partition.isdecimal() else UNLIMITED, partition)


def is_live(row: Ownership, lease_s: float) -> bool:
    """Whether the row has a live owner. One that did not confirm a hand-over in time is dead."""
    return row.owner != "" and not row.expired(lease_s) and not (row.unconfirmed and row.overdue)


def is_pinned_by_other(row: Ownership, me: str, lease_s: float) -> bool:
    return row.pinned and row.owner != me and is_live(row, lease_s)


def future_owner(row: Ownership, members: set[str]) -> str:
    """The host that a row counts for. A successor that died while it waited does not get it."""
    return row.successor if row.successor in members else row.owner


def requestable(
    live: Mapping[str, Ownership], assigned: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """By owner, the partitions that others may request.

    These are the ones without a request, and those whose requesting host is dead and overdue.
    """
    held: dict[str, list[str]] = {}
    for partition, host in assigned.items():
        row = live[partition]
        if host == row.owner and (row.deadline_s is None or row.overdue):
            held.setdefault(host, []).append(partition)
    return {host: tuple(held[host]) for host in sorted(held)}


def rate_of(row: Ownership | None, before: Census | None) -> float | None:
    """The rate in the row, or the one known before: a new owner has not measured it yet."""
    if row is None or row.rate is not None or before is None:
        return row.rate if row is not None else None
    return before.rates.get(row.partition)


def still_free(free: tuple[str, ...], before: Census | None) -> tuple[str, ...]:
    # Before I joined, hosts that started with me had not claimed yet. A partition that was free
    # then may still be claimed by the host that it is meant for.
    if before is None or not before.joined:
        return ()
    earlier = set(before.free)
    return tuple(partition for partition in free if partition in earlier)
