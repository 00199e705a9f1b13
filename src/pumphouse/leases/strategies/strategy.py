"""A strategy: a rule that chooses partitions, and how the engine applies it.

    take_census -> Strategy -> partitions -> claim the free ones, request or take the others
                   ^^^^^^^^ this module

A cycle of an engine lists the rows, writes its member record and takes a census. Then it claims the
`due` partitions and those that the strategy returns. The next cycle follows

* at once, if the strategy is `eager` and has claimed something,
* after about a second, if this was the first cycle and the strategy `joins_first`,
* soon, if the strategy `looks_again` and has stolen something,
* otherwise after the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from pumphouse.errors import OptionError
from pumphouse.leases.census import UNLIMITED, Census
from pumphouse.leases.strategies.classic import sample

Rule = Callable[[Census, Random], list[str]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """Returns the partitions to claim (free ones) or to request (held ones) for a census."""

    name: str
    rule: Rule
    eager: bool = False  # cycles follow at once while it has claims and is not settled
    steals: bool = True  # it may return partitions that other hosts hold
    yields: bool = True  # it hands over partitions that others request
    grabs: bool = False  # it takes a held partition at once; others request a hand-over
    # Without this, hosts that start together do not see each other before the first of them has
    # claimed everything, and most of it then has to move.
    joins_first: bool = False  # it claims nothing in its first cycle
    looks_again: bool = False  # after a steal the next cycle comes soon
    # Cycles come early while a host waits for a hand-over. With one claim in each of them, a new
    # host would take its whole share at once.
    paced: bool = False  # it claims and requests once per interval, however often cycles come
    retries_claims: bool = False  # after lost claims it claims other partitions at once
    max_partitions: int | None = None

    def __post_init__(self) -> None:
        if self.max_partitions is not None and self.max_partitions < 1:
            raise OptionError(f"max_partitions must be at least 1 (got {self.max_partitions})")

    def __call__(self, census: Census, rng: Random) -> list[str]:
        if self.joins_first and not census.joined:
            return []
        census = census.limited(self.max_partitions)
        return (self.rule(census, rng) or leftover(census, rng))[: census.room]

    def __str__(self) -> str:
        return self.name


def leftover(census: Census, rng: Random) -> list[str]:
    """One of the partitions that stay free because the host meant for them does not claim them.

    That host may be at a limit that others do not know, or unable to write. A partition without a
    reader is worse than an uneven fleet.
    """
    return sample(census.unclaimed, 1, rng)


def settled(census: Census, claims: Sequence[str]) -> bool:
    """Whether we have nothing to claim, nothing incoming and nothing outgoing.

    A host that only waits for a hand-over is not settled, and has no claims either: another cycle
    at once would not help it.
    """
    return census.joined and not (claims or census.incoming or census.outgoing)


def limited(strategy: Strategy, max_partitions: int | None) -> Strategy:
    """The same strategy, with a limit to what this host owns."""
    if max_partitions is None:
        return strategy
    limit = min(max_partitions, strategy.max_partitions or UNLIMITED)
    return replace(strategy, max_partitions=limit)
