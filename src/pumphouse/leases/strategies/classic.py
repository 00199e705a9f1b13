"""Which partitions should this host claim next? The rules of five known processors.

Each is a function of a census and of chance. It answers with partitions: a free one is to be
claimed, one that somebody holds is to be asked for or taken. `Strategy` says how a rule is used.

    take_census -> balanced | greedy | fixed | eph | eph_js -> partitions to claim or ask for
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

What is on its way to a host counts as its own already, and cannot be asked for twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from pumphouse.leases.census import Census


def greedy(census: Census, rng: Random) -> list[str]:
    """Claim my whole missing share at once: free partitions first, then steals."""
    share, floor = fair_share(census), census.level.floor
    claims = some(census.free, share - census.have, rng)
    have, counts, left = census.have + len(claims), dict(census.counts), others(census)
    while have < share and (victim := one_of_the_biggest(left, counts, rng)):
        if not narrows(counts[victim], have, floor):
            break
        claims.append(left[victim].pop(rng.randrange(len(left[victim]))))
        have, counts[victim] = have + 1, counts[victim] - 1
    return claims


def balanced(census: Census, rng: Random) -> list[str]:
    """Claim at most one partition per cycle, so that a newcomer disturbs few pumps."""
    return greedy(census, rng)[:1]


def fixed(census: Census, rng: Random) -> list[str]:
    """One free partition per cycle, whatever others have; how many in all is the strategy's."""
    return some(census.free, 1, rng)


def eph(census: Census, rng: Random) -> list[str]:
    """As the Event Processor Host: what is free up to the ceiling, then exactly one steal.

    It steals if the biggest owner has two or more beyond what I have by then: at a gap of one a
    steal would only swap the roles.
    """
    floor, extra = census.level
    claims = some(census.free, floor + (extra > 0) - census.have, rng)
    left = others(census)
    victim = one_of_the_biggest(left, census.counts, rng)
    if victim and census.counts[victim] - census.have - len(claims) >= 2:
        claims.append(rng.choice(left[victim]))
    return claims


def eph_js(census: Census, rng: Random) -> list[str]:
    """As the JavaScript host: what is free, then all I still need from one of the biggest owners.

    It takes from an owner above its share only, and never so much that it falls below.
    """
    share, floor = fair_share(census), census.level.floor
    claims = some(census.free, share - census.have, rng)
    left = others(census)
    if victim := one_of_the_biggest(left, census.counts, rng):
        have, theirs = census.have + len(claims), census.counts[victim]
        steps = range(share - have)
        wanted = sum(narrows(theirs - step, have + step, floor) for step in steps)
        claims += some(left[victim], wanted, rng)
    return claims


def fair_share(census: Census) -> int:
    """What I may have: the floor, and one of the extra partitions unless others have them all.

    Whoever comes first gets an extra one; nobody waits for a host that was meant to have it.
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
    """One at random of the hosts with the most partitions, if any could be asked for something."""
    owners = [host for host in left if left[host]]
    most = max((counts[host] for host in owners), default=0)
    biggest = [host for host in owners if counts[host] == most]
    return rng.choice(biggest) if biggest else None


def others(census: Census) -> dict[str, list[str]]:
    """What every other host could be asked for."""
    return {host: list(held) for host, held in census.held.items() if host != census.me}


def some(partitions: Sequence[str], count: int, rng: Random) -> list[str]:
    """So many of them at random, or all if there are fewer."""
    return rng.sample(partitions, max(0, min(count, len(partitions))))
