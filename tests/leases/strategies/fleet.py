"""Fleets as pictures, and a fleet that runs rounds: no IO, and a count of rounds as its clock.

A picture has one letter per partition: its owner. The lease of a capital has expired, a dot never
had an owner, an underscore was released. `a>b` is owned by a and requested by b (`a>b!`: the
deadline has passed; `a>B`: b died while it waited), `a!` is pinned. After a bar come members that
own nothing: `aab.|cd`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from pumphouse.leases.census import Census, take_census
from pumphouse.leases.model import (
    Listing,
    Member,
    Ownership,
    aged,
    claim,
    hand_over,
    nominate,
    renew,
)
from pumphouse.leases.strategies import STEADY, Strategy

LEASE_S, INTERVAL_S = 30.0, 10.0
CELL = re.compile(
    r"(?P<owner>[a-zA-Z._])(?:>(?P<successor>[a-zA-Z])(?P<overdue>!?)|(?P<pinned>!?))"
)


# -- pictures -------------------------------------------------------------------------------------


def listing_of(picture: str, rates: Iterable[float | None] = ()) -> Listing:
    cells, _, idle = picture.partition("|")
    rows = [row_of(str(n), match) for n, match in enumerate(CELL.finditer(cells))]
    by_number = dict(enumerate(rates))
    living = sorted(set(re.findall(r"[a-z]", picture)) | set(idle))
    return Listing(
        tuple(
            replace(row, rate=by_number.get(int(row.partition))) for row in rows if row is not None
        ),
        tuple(Member(name) for name in living),
    )


def row_of(partition: str, match: re.Match[str]) -> Ownership | None:
    owner, successor = match["owner"], match["successor"]
    if owner == ".":
        return None
    row = Ownership(
        partition,
        "" if owner == "_" else owner.lower(),
        epoch=3,
        etag="1",
        age_s=LEASE_S if owner.isupper() else 0.0,
        pinned=bool(match["pinned"]),
    )
    if successor is None:
        return row
    return nominate(row, successor.lower(), -1.0 if match["overdue"] else 20.0)


def partitions_of(picture: str) -> list[str]:
    cells = picture.partition("|")[0]
    return [str(n) for n in range(len(CELL.findall(cells)))]


def census_of(
    picture: str,
    me: str,
    *,
    rates: Iterable[float | None] = (),
    before: str | None = None,
) -> Census:
    """The census of a picture for `me`, after an optional earlier picture."""
    earlier = None if before is None else census_of(before, me)
    listing = listing_of(picture, rates)
    return take_census(me, partitions_of(picture), listing, LEASE_S, before=earlier)


# -- a fleet --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fleet:
    """Hosts that run rounds on shared rows: each renews, hands over, lists, decides and claims.

    In turn, each host lists after the previous one has written. At once, all decide by the same
    listing, and the first write wins. An owner hands over in the first cycle after a request.
    """

    partitions: list[str]
    hosts: dict[str, Strategy]
    rng: Random
    rows: dict[str, Ownership] = field(default_factory=dict)
    limits: Mapping[str, int | None] = field(default_factory=dict)  # as in member records
    rate: Callable[[str], float | None] = lambda partition: None
    moves: int = 0  # of a partition between two live owners
    refused: int = 0
    beats: dict[str, float] = field(default_factory=dict)
    seen: dict[str, Census] = field(default_factory=dict)
    _writes: int = 0

    @classmethod
    def drawn(cls, picture: str, strategy: Strategy = STEADY, rng: Random | None = None) -> Fleet:
        """A fleet of the live hosts of a picture; all have joined."""
        listing = listing_of(picture)
        fleet = cls(partitions_of(picture), {}, rng or Random(1))
        fleet.rows = {row.partition: row for row in listing.ownerships}
        for member in listing.members:
            fleet.join(member.name, strategy)
            fleet.beats[member.name] = 0.0
        return fleet

    def join(self, host: str, strategy: Strategy = STEADY) -> None:
        self.hosts[host] = strategy

    def crash(self, host: str) -> None:
        """The host stops without a release."""
        del self.hosts[host]

    # -- what is there ----------------------------------------------------------------------------

    def listing(self) -> Listing:
        members = [Member(host, age, self.limits.get(host)) for host, age in self.beats.items()]
        self.rng.shuffle(members)
        rows = list(self.rows.values())
        self.rng.shuffle(rows)  # stores guarantee no order
        return Listing(tuple(rows), tuple(members))

    def counts(self) -> dict[str, int]:
        owners = Counter(row.owner for row in self.rows.values() if not row.expired(LEASE_S))
        return {host: owners[host] for host in self.hosts}

    def picture(self) -> str:
        return "".join(self._cell(self.rows.get(p)) for p in self.partitions)

    def _cell(self, row: Ownership | None) -> str:
        if row is None or not row.owner:
            return "." if row is None else "_"
        cell = row.owner.upper() if row.expired(LEASE_S) else row.owner
        return f"{cell}>{row.successor}" if row.successor else cell

    @property
    def even(self) -> bool:
        """Whether live hosts own everything, within one of even."""
        counts = self.counts()
        spread = max(counts.values()) - min(counts.values())
        return sum(counts.values()) == len(self.partitions) and spread <= 1

    # -- playing ----------------------------------------------------------------------------------

    def play(self, *, at_once: bool = False) -> int:
        """Run one round; returns how many rows were claimed, requested or handed over."""
        before = self._writes
        self.rows = {p: aged(row, INTERVAL_S) for p, row in self.rows.items()}
        self.beats = {host: age + INTERVAL_S for host, age in self.beats.items()}
        order = sorted(self.hosts)
        self.rng.shuffle(order)
        if at_once:
            for host in order:
                self._renew(host)
            listing = self.listing()
            decided = [(host, self._decide(host, listing)) for host in order]
            for host, requested in decided:
                self._write(host, requested, listing)
        else:
            for host in order:
                self._renew(host)
                listing = self.listing()
                self._write(host, self._decide(host, listing), listing)
        return self._writes - before

    def settle(self, rounds: int, *, at_once: bool = False) -> int:
        """Run until nothing happens in two rounds; returns the number of rounds before them."""
        quiet = 0
        for played in range(rounds):
            quiet = 0 if self.play(at_once=at_once) else quiet + 1
            if quiet == 2:
                return played - 1
        raise AssertionError(f"no rest after {rounds} rounds: {self.picture()}")

    def _renew(self, host: str) -> None:
        for partition, row in self.rows.items():
            if row.owner != host or row.expired(LEASE_S):
                continue
            if row.successor and self.hosts[host].yields:
                self._put(hand_over(row))
                self.moves += 1
            else:
                self.rows[partition] = replace(renew(row, self.rate(partition)), age_s=0.0)

    def _decide(self, host: str, listing: Listing) -> list[str]:
        self.beats[host] = 0.0
        census = take_census(host, self.partitions, listing, LEASE_S, before=self.seen.get(host))
        self.seen[host] = census
        requested = self.hosts[host](census, self.rng)
        assert len(set(requested)) == len(requested)
        assert not set(requested) & {*census.mine, *census.incoming, *census.outgoing}
        return [*census.due, *requested]

    def _write(self, host: str, requested: list[str], listing: Listing) -> None:
        listed = {row.partition: row for row in listing.ownerships}
        for partition in requested:
            row = listed.get(partition)
            if row is not self.rows.get(partition):
                self.refused += 1
            elif row is None or not row.owner or row.expired(LEASE_S):
                self._put(claim(row, partition, host))
            elif self.hosts[host].grabs or (row.successor == host and row.overdue):
                self._put(claim(row, partition, host))
                self.moves += 1
            else:
                self._put(nominate(row, host, LEASE_S))

    def _put(self, row: Ownership) -> None:
        self._writes += 1
        self.rows[row.partition] = replace(row, age_s=0.0, etag=str(self._writes))


def lower_bound(counts: Mapping[str, int], partitions: int) -> int:
    """The fewest moves to within one of even: the surplus of all owners.

    Independent of the tested code: the biggest owners may keep one more than the others.
    """
    floor, extra = divmod(partitions, len(counts))
    ranked = sorted(counts.values(), reverse=True)
    return sum(max(0, count - floor - (n < extra)) for n, count in enumerate(ranked))
