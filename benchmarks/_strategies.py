"""Every strategy, and the two of the official processor, in every scenario, as Markdown tables.

python -m benchmarks._strategies [--rounds 3] [--watch 1200] [--only WORD] [--side WORD]

Hosts run in virtual time: real processors of Pumphouse, and the EventProcessor of azure-eventhub.
Hub, events, handlers, network delays and the time of the change are the same for both. Figures are
medians of the rounds. The scenario with 256 partitions runs once: it takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks._fleet_observer import Measured
from benchmarks._fleet_scenarios import SCENARIOS, WATCH_S, FleetKind, Scenario, ours, simulate
from benchmarks._official_hosts import official
from pumphouse.leases.strategies import STRATEGIES
from pumphouse.processor.options import RELAXED, ProcessorOptions

ROUNDS = 3
LARGE = 100  # partitions; larger scenarios run once
COLUMNS = (
    "",
    "seconds until even",
    "cycles",
    "moves (over the fewest)",
    "spread at rest",
    "handled again per move",
    "unowned partition-seconds",
    "store calls in {minutes:g} min",
)


def sides() -> Iterator[tuple[str, FleetKind]]:
    yield "`steady`", ours(STRATEGIES["steady"], ProcessorOptions())
    yield "`steady`, `RELAXED` (30 s)", ours(STRATEGIES["steady"], RELAXED)
    for name in ("greedy", "balanced", "eph", "eph_js"):
        yield f"`{name}`", ours(STRATEGIES[name], ProcessorOptions())
    for kind in ("greedy", "balanced"):
        yield f"azure-eventhub, {kind} (30 s)", official(kind)


def table(scenario: Scenario, rounds: int, watch_s: float, side: str = "") -> str:
    columns = [column.format(minutes=watch_s / 60) for column in COLUMNS]
    lines = [columns, ["---"] * len(columns)]
    for name, kind_of_fleet in sides():
        if side not in name:
            continue
        results = [
            simulate(scenario, kind_of_fleet, seed, watch_s) for seed in range(1, rounds + 1)
        ]
        lines.append([name, *cells(scenario, kind_of_fleet, results)])
        sys.stderr.write(f"{scenario.name}: {name} done\n")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(
    scenario: Scenario, kind_of_fleet: FleetKind, results: Sequence[Measured]
) -> Iterator[str]:
    if missed := sum(each.missed for each in results):
        raise AssertionError(f"{missed} events were never handled in {scenario.name}")
    times = [each.seconds for each in results if each.seconds is not None]
    even = len(times) * 2 > len(results)
    yield f"{median(times):.1f}" if even else "never"
    yield f"{median(times) / kind_of_fleet.interval_s:.1f}" if even else "-"
    moves = median(each.moves for each in results)
    yield f"{moves:g} ({moves - scenario.fewest:+g})" if even else f"{moves:g}"
    yield f"{median(each.spread for each in results):g}"
    yield handled_again(results)
    yield f"{median(each.unowned_s for each in results):.0f}"
    yield f"{median(each.calls for each in results):,.0f}"


def handled_again(results: Sequence[Measured]) -> str:
    """Events that were handled again per partition that changed its owner, over all rounds."""
    handed = sum(each.handed for each in results)
    return f"{sum(each.again for each in results) / handed:.2f}" if handed else "-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks._strategies")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--watch", type=float, default=WATCH_S, help="seconds after the change")
    parser.add_argument("--only", default="", help="only scenarios with this text in their name")
    parser.add_argument("--side", default="", help="only sides with this text in their name")
    options = parser.parse_args()
    for scenario in SCENARIOS:
        if options.only in scenario.name:
            rounds = 1 if scenario.partitions >= LARGE else options.rounds
            print(f"**{scenario.name}** (fewest moves: {scenario.fewest})\n", flush=True)
            print(f"{table(scenario, rounds, options.watch, options.side)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
