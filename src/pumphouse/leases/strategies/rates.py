"""Which partitions should go where, if some are much busier than others?

Counts come first: every host still gets its share, give or take one. Rates decide which partitions
make up a share, so that no host is left with all the busy ones.

    steady_by_rate -> even_out, exchange -> partition -> host
                      ^^^^^^^^^^^^^^^^^^ this module

Moving a partition costs its readers a pause, and rates waver, so exchanges are damped:

* Nothing is exchanged until the busiest host is 20 % above the mean (`START`); then every host
  more than 10 % above it gives (`STOP`). What was evened out must drift far to be moved again.
* An exchange that would narrow the gap between two hosts by less than a twentieth of the mean
  (`WORTH`) is not worth its moves.
* Each host takes part in one exchange at a time, and none begins while anything is on its way or
  any rate is unknown. A partition that has just moved has no rate until its new owner has one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from statistics import fmean

from pumphouse.leases.census import Census

START, STOP, WORTH = 0.2, 0.1, 0.05

Rates = Mapping[str, float]


# -- at rest: exchanges ---------------------------------------------------------------------------


def exchange(census: Census) -> dict[str, str]:
    """What the idlest hosts should take over from the busiest.

    Only this half of an exchange is planned. If it leaves the taker with too many, the other half
    follows by itself: `even_out` gives back what evens the two out best.
    """
    if census.free or in_motion(census) or None in census.rates.values():
        return {}
    rates = assumed(census)
    loads = loads_of(census, rates)
    mean = fmean(loads.values())
    if max(loads.values()) <= mean * (1 + START):
        return {}
    worth = WORTH * mean
    found = (
        (best_move(census, rates, busy, idle, worth), idle) for busy, idle in pairs(loads, mean)
    )
    return {partition: idle for partition, idle in found if partition is not None}


def in_motion(census: Census) -> bool:
    return sum(map(len, census.held.values())) < len(census.whose)


def pairs(loads: Rates, mean: float) -> Iterator[tuple[str, str]]:
    """The busiest host with the idlest, the next with the next, while they are worth a look."""
    ranked = sorted(loads, key=lambda host: (-loads[host], host))
    for busy, idle in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
        if loads[busy] > mean * (1 + STOP):
            yield busy, idle


def best_move(census: Census, rates: Rates, busy: str, idle: str, worth: float) -> str | None:
    """The partition whose move evens out two hosts best, if it is worth its moves."""
    theirs = sorted((rates[p], p) for p in census.held.get(idle, ()))
    gap = sum(rates[p] for p in census.held[busy]) - sum(rate for rate, _ in theirs)
    # With as many as the busy one, the taker will have to give one back; else nothing returns.
    back = theirs if census.counts[idle] >= census.counts[busy] else [(0.0, "")]

    def remains(partition: str) -> float:
        returned, _ = back[nearest(back, rates[partition] - gap / 2)]
        return abs(gap - 2 * (rates[partition] - returned))

    left, partition = min((remains(p), p) for p in census.held[busy])
    return partition if gap - left > worth else None


# -- not at rest: shares filled with a view to rates ----------------------------------------------


def even_out(census: Census, gaps: Mapping[str, int], beyond: Mapping[str, int]) -> dict[str, str]:
    """Fill the gaps: with what is free, then with what some can spare, to the idlest hosts."""
    rates, left, targets = assumed(census), dict(gaps), in_turns(census, gaps)
    loads = loads_of(census, rates)
    for partition, host in targets.items():
        left[host] -= 1
        loads[host] += rates[partition]
    takers = [(loads[host], host) for host in left if left[host] > 0]
    heapify(takers)
    givers = [(-loads[host], host) for host in beyond]
    heapify(givers)
    return targets | relieve(census, rates, givers, dict(beyond), takers, left)


def in_turns(census: Census, gaps: Mapping[str, int]) -> dict[str, str]:
    """Free partitions in turns to those that lack any, who lacks the most first; the busiest first.

    How busy hosts are is not asked. That wavers, and hosts that looked a moment apart would leave
    a partition to each other. What is free keeps the rate that its row tells, and what somebody has
    claimed meanwhile changes nobody else's turn.
    """
    most = sorted(gaps, key=lambda host: (-gaps[host], host))
    turns = (host for turn in range(max(gaps.values())) for host in most if gaps[host] > turn)
    free = sorted(census.free, key=lambda p: (-(census.rates[p] or 0.0), p))
    return dict(zip(free, turns, strict=False))


def relieve(
    census: Census,
    rates: Rates,
    givers: list[tuple[float, str]],
    beyond: dict[str, int],
    takers: list[tuple[float, str]],
    gaps: dict[str, int],
) -> dict[str, str]:
    """The busiest giver to the idlest taker, what evens them out best, until nobody lacks any."""
    left = {host: sorted((rates[p], p) for p in census.held[host]) for _, host in givers}
    targets = {}
    while givers and takers:
        load, host = heappop(givers)
        rate, partition = left[host].pop(nearest(left[host], (-load - takers[0][0]) / 2))
        targets[partition] = hand(takers, gaps, rate)
        beyond[host] -= 1
        if beyond[host] and left[host]:
            heappush(givers, (load + rate, host))
    return targets


def hand(takers: list[tuple[float, str]], gaps: dict[str, int], rate: float) -> str:
    """Give the idlest taker a partition, and put it back in line unless it is full."""
    load, host = heappop(takers)
    gaps[host] -= 1
    if gaps[host]:
        heappush(takers, (load + rate, host))
    return host


# -- numbers --------------------------------------------------------------------------------------


def assumed(census: Census) -> dict[str, float]:
    """The rate of every partition; one that nobody knows is taken for an average one."""
    known = [rate for rate in census.rates.values() if rate is not None]
    average = fmean(known) if known else 1.0
    return {p: average if rate is None else rate for p, rate in census.rates.items()}


def loads_of(census: Census, rates: Rates) -> dict[str, float]:
    """Events per second of every host, once what is on its way has arrived."""
    loads = dict.fromkeys(census.members, 0.0)
    for partition, host in census.whose.items():
        loads[host] += rates[partition]
    return loads


def nearest(ascending: Sequence[tuple[float, str]], wanted: float) -> int:
    """The place of the rate that comes closest."""
    at = bisect_left(ascending, (wanted, ""))
    around = [place for place in (at - 1, at) if 0 <= place < len(ascending)]
    return min(around, key=lambda place: abs(ascending[place][0] - wanted))
