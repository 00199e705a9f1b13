"""The rules of five known processors: balanced, greedy, fixed, eph and eph_js.

Each is a function of a census and a random generator. It returns partitions: a free one is claimed,
one that another host holds is requested or taken. `Strategy` defines how a rule is applied.

    take_census -> balanced | greedy | fixed | eph | eph_js -> partitions to claim or request
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Incoming partitions count as a host's own, and cannot be requested twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from pumphouse.leases.census import Census


def greedy(census: Census, rng: Random) -> list[str]:
    """Claim the whole missing share at once: free partitions first, then steals."""
    share, floor = fair_share(census), census.level.floor
    claims = sample(census.free, share - census.own_count, rng)
    mine, counts, left = census.own_count + len(claims), dict(census.counts), others(census)
    while mine < share and (victim := one_of_the_biggest(left, counts, rng)):
        if not narrows(counts[victim], mine, floor):
            break
        claims.append(left[victim].pop(rng.randrange(len(left[victim]))))
        mine, counts[victim] = mine + 1, counts[victim] - 1
    return claims


def balanced(census: Census, rng: Random) -> list[str]:
    """Claim at most one partition per cycle, so that a new host disturbs few pumps."""
    return greedy(census, rng)[:1]


def fixed(census: Census, rng: Random) -> list[str]:
    """Claim one free partition per cycle; the strategy's limit bounds the total."""
    return sample(census.free, 1, rng)


def eph(census: Census, rng: Random) -> list[str]:
    """As the Event Processor Host: free partitions up to the ceiling, then exactly one steal.

    It steals if the biggest owner then has two or more beyond mine: at a gap of one a steal would
    only swap the roles.
    """
    floor, extra = census.level
    claims = sample(census.free, floor + (extra > 0) - census.own_count, rng)
    left = others(census)
    victim = one_of_the_biggest(left, census.counts, rng)
    if victim and census.counts[victim] - census.own_count - len(claims) >= 2:
        claims.append(rng.choice(left[victim]))
    return claims


def eph_js(census: Census, rng: Random) -> list[str]:
    """As the JavaScript host: free partitions, then the rest from one of the biggest owners.

    It takes only from an owner above its share, and never takes it below its share.
    """
    share, floor = fair_share(census), census.level.floor
    claims = sample(census.free, share - census.own_count, rng)
    left = others(census)
    if victim := one_of_the_biggest(left, census.counts, rng):
        mine, theirs = census.own_count + len(claims), census.counts[victim]
        steps = range(share - mine)
        steals = sum(narrows(theirs - step, mine + step, floor) for step in steps)
        claims += sample(left[victim], steals, rng)
    return claims


def fair_share(census: Census) -> int:
    """The floor, plus one of the extra partitions unless other hosts have them all.

    The first host to claim an extra partition gets it; no host waits for another.
    """
    floor, extra = census.level
    taken = sum(census.counts[host] > floor for host in census.members if host != census.me)
    return floor + (taken < extra)


def narrows(theirs: int, mine: int, floor: int) -> bool:
    """Whether a steal makes the fleet more even: at a gap of one it would only swap the roles."""
    return theirs > floor and theirs - mine >= 2


def one_of_the_biggest(
    left: Mapping[str, Sequence[str]], counts: Mapping[str, int], rng: Random
) -> str | None:
    """A random one of the hosts with the most partitions that still have requestable ones."""
    owners = [host for host in left if left[host]]
    most = max((counts[host] for host in owners), default=0)
    biggest = [host for host in owners if counts[host] == most]
    return rng.choice(biggest) if biggest else None


def others(census: Census) -> dict[str, list[str]]:
    """The requestable partitions of every other host."""
    return {host: list(held) for host, held in census.held.items() if host != census.me}


def sample(partitions: Sequence[str], count: int, rng: Random) -> list[str]:
    """`count` random ones, or all if there are fewer."""
    return rng.sample(partitions, max(0, min(count, len(partitions))))
