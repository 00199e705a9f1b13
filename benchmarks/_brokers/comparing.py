"""Compares what was measured: pure arithmetic from rates, delays and sizes to figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks._brokers.hub import BULK, NATIVE, SDK
from benchmarks._brokers.measuring import CONSUME, PUBLISH, Case, Crash, Rates
from benchmarks._brokers.model import DURABLE, SIZES
from benchmarks._figures import EVENTS_PER_CPU_S, Figure, compare

EVENTS_PER_S = "events/s"
CONSUME_GOAL, PUBLISH_GOAL, DURABLE_GOAL = 1.0, 0.67, 1.0
DELAY_GOAL, START_GOAL, CRASH_GOAL = 0.5, 1.0, 0.0
GOAL_SIZES = (100, 1024)
WALL_SIZE = 1024  # of the wall rates in memory, which depend on the load of the machine


class Peer(NamedTuple):
    """A kind of client of a peer."""

    name: str
    title: str
    reason: str = ""  # why it is absent
    reads_walls: bool = True  # False: it is read in short passes, which mostly connect


Costs = Mapping[Case, Sequence[Rates]]


def versus(
    figure: str, unit: str, ours: Sequence[float], peer: Sequence[float], goal: float | None = None,
    lower_is_better: bool = False,
) -> Figure:  # fmt: skip
    """A figure of the rounds that both sides have: a peer that failed has fewer."""
    rounds = min(len(ours), len(peer))
    return compare(
        figure, unit, ours[:rounds], peer[:rounds], goal=goal, lower_is_better=lower_is_better
    )


def without(figure: str, unit: str, ours: Sequence[float], peers: Iterable[Peer]) -> list[Figure]:
    """A line for each absent peer, with our number."""
    return [
        compare(f"{figure} vs {peer.title}: absent ({peer.reason})", unit, ours)
        for peer in peers
        if peer.reason
    ]


def grouped(group: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    return (replace(figure, group=group) for figure in figures)


# -- costs ----------------------------------------------------------------------------------------


def cost_figures(found: Costs, mode: str, peers: Sequence[Peer]) -> Iterator[Figure]:
    """Costs of broker and client and wall rates, for each size and task and each peer."""
    pairs = {(case.size, case.task) for case in found}
    for size, task in sorted(pairs, key=lambda pair: (pair[0], pair[1] != PUBLISH)):
        yield from task_figures(found, mode, size, task, peers)


def task_figures(
    found: Costs, mode: str, size: int, task: str, peers: Sequence[Peer]
) -> Iterator[Figure]:
    ours, what = found[Case(NATIVE.name, size, task)], f"{task} {SIZES[size]}"
    there = [peer for peer in peers if Case(peer.name, size, task) in found]
    measured = {peer.title: found[Case(peer.name, size, task)] for peer in there}
    for peer in there:
        yield from pair_figures(what, peer, ours, measured[peer.title], mode, size, task)
    if (case := Case(BULK.name, size, task)) in found:
        yield from best_figures(f"{what}, bulk client", found[case], measured)
    if (case := Case(SDK.name, size, task)) in found:
        yield from best_figures(f"{what}, official SDK", found[case], measured)
    absent = [peer for peer in peers if peer.title not in measured]
    yield from without(f"{what}, broker", EVENTS_PER_CPU_S, column(ours, "broker"), absent)


def pair_figures(
    what: str, peer: Peer, ours: Sequence[Rates], theirs: Sequence[Rates], mode: str, size: int,
    task: str,
) -> Iterator[Figure]:  # fmt: skip
    """Our native client and hub against a peer."""
    for side in ("broker", "client"):
        goal = goal_of(mode, size, task) if side == "broker" else None
        yield versus(
            f"{what}, {side} vs {peer.title}",
            EVENTS_PER_CPU_S,
            column(ours, side),
            column(theirs, side),
            goal,
        )
    walls = task == PUBLISH or (peer.reads_walls and size == WALL_SIZE)
    if walls and (mode == DURABLE or size == WALL_SIZE):
        goal = DURABLE_GOAL if (mode, task) == (DURABLE, PUBLISH) and size in GOAL_SIZES else None
        rows = column(ours, "wall"), column(theirs, "wall")
        yield versus(f"{what}, wall rate vs {peer.title}", EVENTS_PER_S, *rows, goal)


def goal_of(mode: str, size: int, task: str) -> float | None:
    """The goal for the CPU time of the hub."""
    if size not in GOAL_SIZES:
        return None
    return CONSUME_GOAL if task == CONSUME else PUBLISH_GOAL


def best_figures(
    what: str, ours: Sequence[Rates], measured: Mapping[str, Sequence[Rates]]
) -> Iterator[Figure]:
    """Another client of ours against the peer that is best at this."""
    for side in ("broker", "client"):
        mine = column(ours, side)
        if not measured:
            yield compare(f"{what}, {side}", EVENTS_PER_CPU_S, mine)
            continue
        title, theirs = best(measured, side)
        yield versus(f"{what}, {side} vs the best, {title}", EVENTS_PER_CPU_S, mine, theirs)


def best(measured: Mapping[str, Sequence[Rates]], side: str) -> tuple[str, list[float]]:
    columns = {title: column(rounds, side) for title, rounds in measured.items()}
    title = max(columns, key=lambda each: median(columns[each]))
    return title, columns[title]


def column(rounds: Sequence[Rates], side: str) -> list[float]:
    return [getattr(rates, side) for rates in rounds]


# -- the others -----------------------------------------------------------------------------------


def delay_figures(
    found: Mapping[str, Sequence[Sequence[float]]], rate: int, peers: Sequence[Peer]
) -> Iterator[Figure]:
    """Percentiles of every round."""
    for name, cut, goal in (("p50", 49, None), ("p99", 98, DELAY_GOAL)):
        columns = {
            kind: [quantiles(delays, n=100)[cut] for delays in rounds]
            for kind, rounds in found.items()
        }
        what, ours = f"{name} delay at {rate} events/s", columns[NATIVE.name]
        for peer in peers:
            if peer.name in columns:
                title = f"{what} vs {peer.title}"
                yield versus(title, "ms", ours, columns[peer.name], goal, True)
        yield from without(what, "ms", ours, [p for p in peers if p.name not in columns])


def start_figures(
    ours: Mapping[str, Sequence[float]], found: Mapping[str, Sequence[float]]
) -> Iterator[Figure]:
    """Each form of the hub against the process of each peer."""
    for form, seconds in ours.items():
        for title, theirs in found.items():
            what = f"cold start, {form} vs {title}"
            yield versus(what, "s", seconds, theirs, START_GOAL, True)
        if not found:
            yield compare(f"cold start, {form}", "s", seconds, lower_is_better=True)


def footprint_figures(
    found: Mapping[str, float], events: int, size: int, peers: Sequence[Peer]
) -> Iterator[Figure]:
    what, ours = f"memory of {events:,} events of {size} B", [found[NATIVE.name]]
    for peer in peers:
        if peer.name in found:
            title = f"{what} vs {peer.title}"
            yield versus(title, "MiB", ours, [found[peer.name]], lower_is_better=True)
    if len(found) == 1:
        yield compare(what, "MiB", ours, lower_is_better=True)


def crash_figures(found: Mapping[str, Crash], peers: Sequence[Peer]) -> Iterator[Figure]:
    """Events that were acknowledged and are gone, and the time until the broker is back."""
    ours = found[NATIVE.name]
    there = [peer for peer in peers if peer.name in found]
    for peer in there:
        theirs = found[peer.name]
        yield versus(
            f"acknowledged and gone after kill -9, of {ours.acknowledged:,} vs {peer.title}, "
            f"of {theirs.acknowledged:,}",
            "events",
            [ours.missing],
            [theirs.missing],
            CRASH_GOAL,
            True,
        )
    for peer in there:
        title = f"back after kill -9 vs {peer.title}"
        yield versus(title, "s", [ours.ready_s], [found[peer.name].ready_s], None, True)
    if not there:
        what = f"acknowledged and gone after kill -9, of {ours.acknowledged:,}"
        yield compare(what, "events", [ours.missing], goal=CRASH_GOAL, lower_is_better=True)
