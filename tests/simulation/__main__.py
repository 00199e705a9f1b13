"""Ten simulated years: 10,000 seeds and more, in every combination. `make simulate` runs it.

    python -m tests.simulation [--seeds 10000] [--first 1] [--minutes M] [--jobs N]

Nine seeds of ten are short and rough; every tenth is three days long, with the relaxed timing of
today's official processors. It ends early after so many minutes, and with status 1 at a violation.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context

from pumphouse.simulation import Result
from tests.simulation.mix import run

YEAR_H = 365.25 * 24
SHOW_EVERY_S = 30.0


def results(seeds: range, jobs: int, until_s: float) -> Iterator[Result]:
    """Results as they come, until the time is over."""
    left = iter(seeds)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[Result]] = {pool.submit(run, seed) for seed in islice(left, 2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            if time.monotonic() < until_s:
                running |= {pool.submit(run, seed) for seed in islice(left, len(done))}
            yield from (future.result() for future in done)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=360.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    started_s = shown_s = time.monotonic()
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    hours = cpu_s = 0.0
    seeds = range(asked.first, asked.first + asked.seeds)
    for result in results(seeds, asked.jobs, started_s + 60 * asked.minutes):
        hours, cpu_s = hours + result.simulated_s / 3600, cpu_s + result.took_s
        total.update(seeds=1, broken=int(not result.ok), moves=result.figures.moves)
        total.update(handled=result.figures.handled, again=result.figures.duplicates)
        faults.update(result.faults)
        if not result.ok:
            tell(result)
        if time.monotonic() - shown_s > SHOW_EVERY_S:
            shown_s = time.monotonic()
            say(f"{total['seeds']} seeds, {hours / YEAR_H:.2f} years, {total['broken']} violations")
    say(
        f"{total['seeds']:,} seeds, {hours:,.0f} hours ({hours / YEAR_H:.2f} years) in "
        f"{cpu_s:,.0f} CPU seconds, {hours * 3600 / max(cpu_s, 1e-9):,.0f} times; "
        f"{total['handled']:,} events handled, {total['again']:,} again, {total['moves']:,} moves; "
        f"{faults.total():,} faults; {total['broken']} violations"
    )
    say(", ".join(f"{kind} {count:,}" for kind, count in sorted(faults.items())))
    return 1 if total["broken"] else 0


def tell(result: Result) -> None:
    seed = result.scenario.seed
    say(f"seed {seed}: {result.violations[0]} {result.scenario}")
    for line in result.scene[-30:]:
        say(f"  {line}")
    say(f"replay: python -m tests.simulation --first {seed} --seeds 1")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
