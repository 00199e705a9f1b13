"""Chooses partitions by their rates, so that no host owns all the busy ones.

Counts come first: every host still gets its share, plus or minus one. Rates decide which partitions
make up a share.

    steady_by_rate -> even_out, exchange -> partition -> host
                      ^^^^^^^^^^^^^^^^^^ this module

A move costs the readers of a partition a pause, and rates vary, so exchanges are damped:

* Nothing is exchanged until the busiest host is 20 % above the mean (`START`). Then every host more
  than 10 % above it gives partitions (`STOP`). So a balanced pair must drift far before a partition
  moves again.
* An exchange that narrows the gap between two hosts by less than a twentieth of the mean (`WORTH`)
  is not made.
* An exchange whose gain may be chance is not made: with few events, rates vary without a cause.
* An exchange that would not even out the loads of the whole fleet is not made. Its second half is
  decided by counts, so a third host may receive the partition that is given back.
* Each host takes part in one exchange at a time, and none begins while anything is incoming or any
  rate is unknown. A partition that has just moved has no rate until its new owner measures one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import fsum, sqrt

from pumphouse.leases.census import Census

START, STOP, WORTH = 0.2, 0.1, 0.05
MEASURED_S = 30.0  # a rate is smoothed over about three renewals

Rates = Mapping[str, float]


# -- a balanced fleet: exchanges ------------------------------------------------------------------


def exchange(census: Census, rebalance: Callable[[Census], dict[str, str]]) -> dict[str, str]:
    """The partitions that the idlest hosts should take over from the busiest.

    Only this half of an exchange is planned. If a host then has too many, the other half follows in
    a later cycle, by `rebalance`. The exchange is made only if both halves together even out the
    loads. So exchanges come to an end if rates are constant.
    """
    if census.free or has_moves(census) or None in census.rates.values():
        return {}
    rates = assumed_rates(census)
    loads = loads_of(census, rates)
    mean = mean_of(loads.values())
    if max(loads.values()) <= mean * (1 + START):
        return {}
    worth = WORTH * mean
    best = (
        (best_move(census, rates, busy, idle, max(worth, chance(loads[busy] + loads[idle]))), idle)
        for busy, idle in pairs(loads, mean)
    )
    moves = {partition: idle for partition, idle in best if partition is not None}

    def evens_out(targets: dict[str, str]) -> bool:
        moved = with_moves(census, targets)
        after = with_moves(moved, rebalance(moved))
        return unevenness(loads) - unevenness(loads_of(after, rates)) > worth * worth

    plans = [moves, *({partition: idle} for partition, idle in moves.items())]
    return next((plan for plan in plans if plan and evens_out(plan)), {})


def chance(load: float) -> float:
    """A difference of rates that chance explains: three standard deviations of a count."""
    return 3 * sqrt(load / MEASURED_S)


def with_moves(census: Census, targets: Mapping[str, str]) -> Census:
    """The census after these moves."""
    assigned = {**census.assigned, **targets}
    held: dict[str, list[str]] = {host: [] for host in census.members}
    for partition, host in assigned.items():
        held[host].append(partition)
    counts = {host: len(partitions) for host, partitions in held.items()}
    partitions = {host: tuple(partitions) for host, partitions in held.items() if partitions}
    return replace(census, assigned=assigned, held=partitions, counts=counts)


def unevenness(loads: Rates) -> float:
    """The sum of the squared loads: the smaller, the more even."""
    return fsum(load * load for load in loads.values())


def has_moves(census: Census) -> bool:
    return sum(map(len, census.held.values())) < len(census.assigned)


def pairs(loads: Rates, mean: float) -> Iterator[tuple[str, str]]:
    """The busiest host with the idlest, the second with the second idlest, ..., down to `STOP`."""
    ranked = sorted(loads, key=lambda host: (-loads[host], host))
    for busy, idle in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
        if loads[busy] > mean * (1 + STOP):
            yield busy, idle


def best_move(census: Census, rates: Rates, busy: str, idle: str, worth: float) -> str | None:
    """The partition whose move evens out two hosts best, if the gain is above `worth`."""
    idle_rates = sorted((rates[p], p) for p in census.held.get(idle, ()))
    gap = sum(rates[p] for p in census.held[busy]) - sum(rate for rate, _ in idle_rates)
    # If the idle host has as many partitions as the busy one, it gives one back later.
    returnable = idle_rates if census.counts[idle] >= census.counts[busy] else [(0.0, "")]

    def remaining_gap(partition: str) -> float:
        returned, _ = returnable[nearest(returnable, rates[partition] - gap / 2)]
        return abs(gap - 2 * (rates[partition] - returned))

    smallest_gap, partition = min((remaining_gap(p), p) for p in census.held[busy])
    return partition if gap - smallest_gap > worth else None


# -- an unbalanced fleet: shares filled by rates --------------------------------------------------


def even_out(census: Census, gaps: Mapping[str, int], surplus: Mapping[str, int]) -> dict[str, str]:
    """Fill the gaps with free partitions, then with those that owners can spare."""
    rates, open_gaps, targets = assumed_rates(census), dict(gaps), in_turns(census, gaps)
    loads = loads_of(census, rates)
    for partition, host in targets.items():
        open_gaps[host] -= 1
        loads[host] += rates[partition]
    takers = [(loads[host], host) for host in open_gaps if open_gaps[host] > 0]
    heapify(takers)
    givers = [(-loads[host], host) for host in surplus]
    heapify(givers)
    return targets | relieve(census, rates, givers, dict(surplus), takers, open_gaps)


def in_turns(census: Census, gaps: Mapping[str, int]) -> dict[str, str]:
    """Deal free partitions in turns, the busiest first, to hosts with gaps, the widest first.

    The loads of hosts are not considered. They vary, so hosts that list at different moments could
    each leave a partition to the other. A free partition keeps the rate of its row, and a claim
    made meanwhile does not change the turns of other hosts.
    """
    widest = sorted(gaps, key=lambda host: (-gaps[host], host))
    turns = (host for turn in range(max(gaps.values())) for host in widest if gaps[host] > turn)
    free = sorted(census.free, key=lambda p: (-(census.rates[p] or 0.0), p))
    return dict(zip(free, turns, strict=False))


def relieve(
    census: Census,
    rates: Rates,
    givers: list[tuple[float, str]],
    surplus: dict[str, int],
    takers: list[tuple[float, str]],
    gaps: dict[str, int],
) -> dict[str, str]:
    """Move partitions from the busiest giver to the idlest taker until no host has a gap."""
    remaining = {host: sorted((rates[p], p) for p in census.held[host]) for _, host in givers}
    targets = {}
    while givers and takers:
        load, host = heappop(givers)
        rate, partition = remaining[host].pop(nearest(remaining[host], (-load - takers[0][0]) / 2))
        targets[partition] = give_to_idlest(takers, gaps, rate)
        surplus[host] -= 1
        if surplus[host] and remaining[host]:
            heappush(givers, (load + rate, host))
    return targets


def give_to_idlest(takers: list[tuple[float, str]], gaps: dict[str, int], rate: float) -> str:
    """Give a partition to the idlest taker, which stays in the heap unless it is full."""
    load, host = heappop(takers)
    gaps[host] -= 1
    if gaps[host]:
        heappush(takers, (load + rate, host))
    return host


# -- numbers --------------------------------------------------------------------------------------


def assumed_rates(census: Census) -> dict[str, float]:
    """The rate of every partition; an unknown rate is assumed to be the average."""
    known = [rate for rate in census.rates.values() if rate is not None]
    average = mean_of(known) if known else 1.0
    return {p: average if rate is None else rate for p, rate in census.rates.items()}


def loads_of(census: Census, rates: Rates) -> dict[str, float]:
    """Events per second of every host, incoming partitions included."""
    loads = dict.fromkeys(census.members, 0.0)
    for partition, host in census.assigned.items():
        loads[host] += rates[partition]
    return loads


def nearest(ascending: Sequence[tuple[float, str]], rate: float) -> int:
    """The index of the rate that is closest to `rate`."""
    at = bisect_left(ascending, (rate, ""))
    around = [index for index in (at - 1, at) if 0 <= index < len(ascending)]
    return min(around, key=lambda index: abs(ascending[index][0] - rate))


def mean_of(rates: Collection[float]) -> float:
    # As statistics.fmean, whose module is slow to import.
    return fsum(rates) / len(rates)
