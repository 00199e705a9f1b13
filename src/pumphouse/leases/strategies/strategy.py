"""A rule for claiming partitions, and what an engine has to know to use it.

    take_census -> Strategy -> partitions -> claim the free ones, ask for or take the others
                   ^^^^^^^^ this module

A cycle of an engine: list and beat, `take_census`, then claim what is `due` and what the strategy
answers. The next cycle follows at once if the strategy is `eager` and has claimed something, after
about a second if it was the first one and the strategy `joins_first`, soon if it `looks_again` and
has stolen something, else after the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from pumphouse.errors import OptionError
from pumphouse.leases.census import UNLIMITED, Census
from pumphouse.leases.strategies import classic
from pumphouse.leases.strategies.steady import steady, steady_by_rate

Rule = Callable[[Census, Random], list[str]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """Answers a census with the partitions to claim (free ones) or to ask for (held ones)."""

    name: str
    rule: Rule
    eager: bool = False  # while it is not settled and has claims, cycles follow at once
    steals: bool = True  # it may answer with partitions that somebody holds
    yields: bool = True  # it hands over what others ask for
    grabs: bool = False  # it takes a held partition at once, where others ask for a hand-off
    # Hosts that start together would otherwise not see each other before the first of them has
    # taken everything, which would then have to move.
    joins_first: bool = False  # it claims nothing in its first cycle
    looks_again: bool = False  # once it has stolen, it soon looks for more
    tries_on: bool = False  # a race that it lost is made up for at once: it tries another
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
    """One of those that nobody wants: some host that should have taken it does not.

    A host may be at a limit that others do not know, or unable to write. Being read counts for more
    than being even.
    """
    return classic.some(census.neglected, 1, rng)


def settled(census: Census, claims: Sequence[str]) -> bool:
    """Whether nothing is left to do for us: nothing to claim, nothing on its way to or from us.

    A host that only waits for a hand-off is not settled, but has no claims either: there is nothing
    that a cycle at once could do for it.
    """
    return census.joined and not (claims or census.coming or census.going)


# -- by name --------------------------------------------------------------------------------------

BALANCED = Strategy("balanced", classic.balanced)
GREEDY = Strategy("greedy", classic.greedy, eager=True)
EPH = Strategy("eph", classic.eph, grabs=True)
EPH_JS = Strategy("eph_js", classic.eph_js, grabs=True, looks_again=True)
STEADY = Strategy("steady", steady, joins_first=True)
STEADY_BY_RATE = Strategy("steady:rates", steady_by_rate, joins_first=True)

NAMED = {each.name: each for each in (STEADY, STEADY_BY_RATE, GREEDY, BALANCED, EPH, EPH_JS)}
FORMS = ", ".join([*NAMED, "fixed:N"])


def fixed(count: int) -> Strategy:
    """So many partitions and no more; never steals, and gives nothing away while it lives."""
    if count < 1:
        raise OptionError(f"a fixed number of partitions must be at least 1 (got {count})")
    return Strategy(
        f"fixed:{count}",
        classic.fixed,
        steals=False,
        yields=False,
        tries_on=True,
        max_partitions=count,
    )


def limited(strategy: Strategy, max_partitions: int | None) -> Strategy:
    """The same strategy, with a limit to what this host will own."""
    if max_partitions is None:
        return strategy
    most = min(max_partitions, strategy.max_partitions or UNLIMITED)
    return replace(strategy, max_partitions=most)


def parse_strategy(text: str, max_partitions: int | None = None) -> Strategy:
    """The strategy that a word of the options means: steady, greedy, fixed:4 and so on."""
    word, _, value = text.strip().lower().partition(":")
    if word == "fixed" and value.isdecimal():
        return limited(fixed(int(value)), max_partitions)
    if (named := NAMED.get(text.strip().lower())) is not None:
        return limited(named, max_partitions)
    raise OptionError(f"{text!r} is no strategy; use one of {FORMS}")
