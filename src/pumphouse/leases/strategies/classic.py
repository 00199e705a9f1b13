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
    mine, counts = census.own_count + len(claims), dict(census.counts)
    requestable = requestable_by_owner(census)
    while mine < share and (victim := random_largest_owner(requestable, counts, rng)):
        if not reduces_gap(counts[victim], mine, floor):
            break
        claims.append(requestable[victim].pop(rng.randrange(len(requestable[victim]))))
        mine, counts[victim] = mine + 1, counts[victim] - 1
    return claims


def balanced(census: Census, rng: Random) -> list[str]:
    """Claim at most one partition per cycle, so that a new host disturbs few pumps."""
    return greedy(census, rng)[:1]


def fixed(census: Census, rng: Random) -> list[str]:
    """Claim one free partition per cycle; the strategy's limit bounds the total."""
    return sample(census.free, 1, rng)


def eph(census: Census, rng: Random) -> list[str]:
    """Claim like the Event Processor Host: free partitions up to the ceiling, then one steal.

    It steals only if the largest owner has at least two partitions more: with a gap of one, a steal
    would only reverse the gap.
    """
    floor, extra = census.level
    claims = sample(census.free, floor + (extra > 0) - census.own_count, rng)
    requestable = requestable_by_owner(census)
    victim = random_largest_owner(requestable, census.counts, rng)
    if victim and census.counts[victim] - census.own_count - len(claims) >= 2:
        claims.append(rng.choice(requestable[victim]))
    return claims


def eph_js(census: Census, rng: Random) -> list[str]:
    """Claim like the JavaScript host: free partitions, then the rest from one large owner.

    It steals only from an owner above its share, and leaves that owner its share.
    """
    share, floor = fair_share(census), census.level.floor
    claims = sample(census.free, share - census.own_count, rng)
    requestable = requestable_by_owner(census)
    if victim := random_largest_owner(requestable, census.counts, rng):
        mine, theirs = census.own_count + len(claims), census.counts[victim]
        steps = range(share - mine)
        steals = sum(reduces_gap(theirs - step, mine + step, floor) for step in steps)
        claims += sample(requestable[victim], steals, rng)
    return claims


def fair_share(census: Census) -> int:
    """The floor, plus one of the extra partitions unless other hosts have them all.

    The first host to claim an extra partition gets it; no host waits for another.
    """
    floor, extra = census.level
    taken = sum(census.counts[host] > floor for host in census.members if host != census.me)
    return floor + (taken < extra)


def reduces_gap(theirs: int, mine: int, floor: int) -> bool:
    """Whether a steal makes the fleet more even: a gap of one would only be reversed."""
    return theirs > floor and theirs - mine >= 2


def random_largest_owner(
    requestable: Mapping[str, Sequence[str]], counts: Mapping[str, int], rng: Random
) -> str | None:
    """A random host among the largest owners that have requestable partitions."""
    owners = [host for host in requestable if requestable[host]]
    most = max((counts[host] for host in owners), default=0)
    largest = [host for host in owners if counts[host] == most]
    return rng.choice(largest) if largest else None


def requestable_by_owner(census: Census) -> dict[str, list[str]]:
    """The requestable partitions of every other host."""
    return {host: list(held) for host, held in census.held.items() if host != census.me}


def sample(partitions: Sequence[str], count: int, rng: Random) -> list[str]:
    """Pick `count` random partitions, or all if there are fewer."""
    return rng.sample(partitions, max(0, min(count, len(partitions))))
