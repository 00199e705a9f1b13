"""The steady strategy: every host computes the same plan and acts on its own part of it.

Each host computes from its census where every partition should be, with the fewest moves. There is
no leader: hosts with the same listing agree, and their claims never collide. Where listings differ,
compare and set decides.

    take_census -> steady -> partitions to claim or request
                   ^^^^^^ this module

* Shares: every host gets the number of partitions divided by the number of hosts, rounded down.
  The remaining partitions go to the hosts with the most partitions, one to each. Only partitions
  beyond the share of their owner move. They have to move in every even distribution, so the number
  of moves is minimal. In a balanced fleet nothing moves.
* A host below its share claims free partitions first. It requests only what it still lacks.
* `steady_by_rate` has the same shares, and chooses the partitions that move by their events per
  second; see `rates`.
"""

from __future__ import annotations

from random import Random

from pumphouse.leases.census import Census
from pumphouse.leases.strategies.rates import even_out, exchange
from pumphouse.leases.strategies.ring import assign, hashed


def steady(census: Census, rng: Random) -> list[str]:
    """My part of the plan with the fewest moves. It uses no randomness."""
    return my_part(census, plan(census))


def steady_by_rate(census: Census, rng: Random) -> list[str]:
    """My part of a plan that chooses partitions by rate, and exchanges them in a balanced fleet."""
    return my_part(census, even_plan(census) or exchange(census, even_plan))


def even_plan(census: Census) -> dict[str, str]:
    """The moves that give every host its share, chosen by rate."""
    shares = census.shares
    return even_out(census, gaps_of(census, shares), surpluses(census, shares))


def plan(census: Census) -> dict[str, str]:
    """Every partition that should move, and its new host."""
    shares = census.shares
    gaps = gaps_of(census, shares)
    targets = assign(census.free, gaps)
    for host in targets.values():
        gaps[host] -= 1
    surplus = [
        partition
        for host, count in surpluses(census, shares).items()
        for partition in surplus_partitions(census, host, count)
    ]
    return targets | assign(surplus, gaps)


def gaps_of(census: Census, shares: dict[str, int]) -> dict[str, int]:
    """How many partitions each host lacks."""
    return {host: max(0, shares[host] - census.counts[host]) for host in census.members}


def surpluses(census: Census, shares: dict[str, int]) -> dict[str, int]:
    """How many partitions each owner has beyond its share."""
    counts = census.counts
    return {
        host: counts[host] - shares[host] for host in census.held if counts[host] > shares[host]
    }


def surplus_partitions(census: Census, host: str, count: int) -> list[str]:
    """The partitions that an owner gives up: those with the lowest hashes, on every host."""
    return sorted(census.held[host], key=hashed)[:count]


def my_part(census: Census, targets: dict[str, str]) -> list[str]:
    return [partition for partition, host in targets.items() if host == census.me]
