"""A text notation for the ownership rows of a fleet, and a fleet that runs rounds without IO.

The text has one letter per partition, its owner. A capital letter is an owner whose lease has
expired, `.` a partition that never had an owner, `_` a released partition. `a>b` is owned by a
and requested by b (`a>b!`: the deadline has passed; `a>B`: b has died since), `a!` is pinned. The
letters after `|` are members that own nothing: `aab.|cd`.
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


# -- text notation --------------------------------------------------------------------------------


def listing_of(text: str, rates: Iterable[float | None] = ()) -> Listing:
    cells, _, idle = text.partition("|")
    rows = [row_of(str(n), match) for n, match in enumerate(CELL.finditer(cells))]
    by_number = dict(enumerate(rates))
    live = sorted(set(re.findall(r"[a-z]", text)) | set(idle))
    return Listing(
        tuple(
            replace(row, rate=by_number.get(int(row.partition))) for row in rows if row is not None
        ),
        tuple(Member(name) for name in live),
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


def partitions_of(text: str) -> list[str]:
    cells = text.partition("|")[0]
    return [str(n) for n in range(len(CELL.findall(cells)))]


def census_of(
    text: str,
    me: str,
    *,
    rates: Iterable[float | None] = (),
    before: str | None = None,
) -> Census:
    """The census of a fleet for `me`, after the census of an optional earlier fleet."""
    earlier = None if before is None else census_of(before, me)
    listing = listing_of(text, rates)
    return take_census(me, partitions_of(text), listing, LEASE_S, before=earlier)


# -- a fleet --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fleet:
    """Hosts that run rounds on shared rows: each renews, hands over, lists, decides and claims.

    By default each host lists after the previous one has written. With `at_once` all hosts decide
    by the same listing, and the first write wins. An owner hands over in the first round after a
    request.
    """

    partitions: list[str]
    hosts: dict[str, Strategy]
    rng: Random
    rows: dict[str, Ownership] = field(default_factory=dict)
    limits: Mapping[str, int | None] = field(default_factory=dict)  # as in member records
    rate: Callable[[str], float | None] = lambda partition: None
    moves: int = 0  # of a partition between two live owners
    refused: int = 0
    heartbeat_ages: dict[str, float] = field(default_factory=dict)
    censuses: dict[str, Census] = field(default_factory=dict)
    _writes: int = 0

    @classmethod
    def from_text(cls, text: str, strategy: Strategy = STEADY, rng: Random | None = None) -> Fleet:
        """A fleet with the rows and the live hosts of a text."""
        listing = listing_of(text)
        fleet = cls(partitions_of(text), {}, rng or Random(1))
        fleet.rows = {row.partition: row for row in listing.ownerships}
        for member in listing.members:
            fleet.join(member.name, strategy)
            fleet.heartbeat_ages[member.name] = 0.0
        return fleet

    def join(self, host: str, strategy: Strategy = STEADY) -> None:
        self.hosts[host] = strategy

    def crash(self, host: str) -> None:
        """The host stops without a release."""
        del self.hosts[host]

    # -- state ------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        members = [
            Member(host, age, self.limits.get(host)) for host, age in self.heartbeat_ages.items()
        ]
        self.rng.shuffle(members)
        rows = list(self.rows.values())
        self.rng.shuffle(rows)  # stores guarantee no order
        return Listing(tuple(rows), tuple(members))

    def counts(self) -> dict[str, int]:
        owners = Counter(row.owner for row in self.rows.values() if not row.expired(LEASE_S))
        return {host: owners[host] for host in self.hosts}

    def text(self) -> str:
        return "".join(self._cell(self.rows.get(p)) for p in self.partitions)

    def _cell(self, row: Ownership | None) -> str:
        if row is None or not row.owner:
            return "." if row is None else "_"
        cell = row.owner.upper() if row.expired(LEASE_S) else row.owner
        return f"{cell}>{row.successor}" if row.successor else cell

    @property
    def is_even(self) -> bool:
        """Whether live hosts own all partitions, and their counts differ by at most one."""
        counts = self.counts()
        spread = max(counts.values()) - min(counts.values())
        return sum(counts.values()) == len(self.partitions) and spread <= 1

    # -- rounds -----------------------------------------------------------------------------------

    def run_round(self, *, at_once: bool = False) -> int:
        """Run one round; returns how many rows were claimed, requested or handed over."""
        before = self._writes
        self.rows = {p: aged(row, INTERVAL_S) for p, row in self.rows.items()}
        self.heartbeat_ages = {host: age + INTERVAL_S for host, age in self.heartbeat_ages.items()}
        order = sorted(self.hosts)
        self.rng.shuffle(order)
        if at_once:
            for host in order:
                self._renew(host)
            listing = self.listing()
            decisions = [(host, self._decide(host, listing)) for host in order]
            for host, requested in decisions:
                self._write(host, requested, listing)
        else:
            for host in order:
                self._renew(host)
                listing = self.listing()
                self._write(host, self._decide(host, listing), listing)
        return self._writes - before

    def settle(self, rounds: int, *, at_once: bool = False) -> int:
        """Run until two rounds write nothing; returns the number of rounds before them."""
        idle_rounds = 0
        for number in range(rounds):
            idle_rounds = 0 if self.run_round(at_once=at_once) else idle_rounds + 1
            if idle_rounds == 2:
                return number - 1
        raise AssertionError(f"not stable after {rounds} rounds: {self.text()}")

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
        self.heartbeat_ages[host] = 0.0
        census = take_census(
            host, self.partitions, listing, LEASE_S, before=self.censuses.get(host)
        )
        self.censuses[host] = census
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
    """The fewest moves after which counts differ by at most one: the surplus of all owners.

    Computed without the tested code. The largest owners may keep one more than the others.
    """
    floor, extra = divmod(partitions, len(counts))
    ranked = sorted(counts.values(), reverse=True)
    return sum(max(0, count - floor - (n < extra)) for n, count in enumerate(ranked))
