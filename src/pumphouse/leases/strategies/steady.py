"""Which partitions should this host claim next, if every host computes the same answer?

Each host works out from its census where every partition should be, with as few moves as can be,
and then acts on its own part only. There is no leader: hosts that saw the same listing agree, and
their claims never meet; where listings differ, compare and set decides.

    take_census -> steady -> partitions to claim or ask for
                   ^^^^^^ this module

* Shares: everybody gets the floor, those that have the most get the extra ones. What an owner has
  beyond its share has to move under any even distribution, and nothing else moves: the number of
  moves is the lower bound. At rest nobody is beyond its share, so nothing moves.
* Free partitions fill the gaps first; only what is still missing is asked for.
* With `by_rate` the same numbers of partitions go to everybody, but which ones is decided by their
  events per second; see `rates`.
"""

from __future__ import annotations

from random import Random

from pumphouse.leases.census import Census
from pumphouse.leases.strategies.rates import even_out, exchange
from pumphouse.leases.strategies.ring import deal, hashed


def steady(census: Census, rng: Random) -> list[str]:
    """My part of the plan that needs the fewest moves. Chance is not asked."""
    return my_part(census, plan(census))


def steady_by_rate(census: Census, rng: Random) -> list[str]:
    """The same, choosing partitions by their events per second, and exchanging some at rest."""
    shares = census.shares
    targets = even_out(census, room(census, shares), beyond(census, shares))
    return my_part(census, targets or exchange(census))


def plan(census: Census) -> dict[str, str]:
    """Every partition that should go elsewhere, and where to."""
    shares = census.shares
    gaps = room(census, shares)
    targets = deal(census.free, gaps)
    for host in targets.values():
        gaps[host] -= 1
    surplus = [
        p for host, count in beyond(census, shares).items() for p in spare(census, host, count)
    ]
    return targets | deal(surplus, gaps)


def room(census: Census, shares: dict[str, int]) -> dict[str, int]:
    """How many partitions each host lacks."""
    return {host: max(0, shares[host] - census.counts[host]) for host in census.members}


def beyond(census: Census, shares: dict[str, int]) -> dict[str, int]:
    """How many partitions each owner has beyond its share."""
    counts = census.counts
    return {
        host: counts[host] - shares[host] for host in census.held if counts[host] > shares[host]
    }


def spare(census: Census, host: str, count: int) -> list[str]:
    """What an owner gives up, always in the same order: plans that differ a little still agree."""
    return sorted(census.held[host], key=hashed)[:count]


def my_part(census: Census, targets: dict[str, str]) -> list[str]:
    return [partition for partition, host in targets.items() if host == census.me]
