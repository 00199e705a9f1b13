"""Ten simulated years: 10,000 seeds, in every combination. `make simulate` runs it.

    python -m tests.simulation [--seeds 10000] [--first 1] [--minutes M] [--jobs N]
                               [--log build/simulate.jsonl] [--page PAGE]
                               [--report | --replay SEED]

Nine seeds of ten are short with many faults; every tenth lasts for more than three days. Each
result is appended to the log, so a stopped run continues, and `--report` shows its progress. Seeds
that ran with another version of the code run again, after all others. The exit status is 1 if a
seed violated an invariant.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from pumphouse.simulation import Result
from tests.simulation.run_log import SeedResult, code_version, put_on_page, read, total, write
from tests.simulation.scenarios import run
from tests.simulation.worker import prepare_worker

SHOW_EVERY_S = 30.0
LOG = Path("build/simulate.jsonl")


def results(seeds: Iterable[int], jobs: int, until_s: float) -> Iterator[Result]:
    """Results in the order of completion, until the time is over."""
    left = iter(seeds)
    spawn = get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, prepare_worker, (os.getpid(),)) as pool:
        running: set[Future[Result]] = {pool.submit(run, seed) for seed in islice(left, 2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            if time.monotonic() < until_s:
                running |= {pool.submit(run, seed) for seed in islice(left, len(done))}
            yield from (future.result() for future in done)


def main() -> int:
    options = arguments()
    if options.replay is not None:
        show(result := run(options.replay))
        return int(not result.ok)
    code, logged = code_version(), read(options.log)
    if not options.report:
        run_seeds(seeds_to_run(options, logged, code), logged, options, code)
    totals = total(logged.values(), code)
    for line in totals.report():
        write_line(line)
    if options.page is not None:
        options.page.write_text(put_on_page(options.page.read_text(), totals))
    return 1 if totals.failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=360.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--report", action="store_true", help="run nothing, show the progress")
    parser.add_argument("--page", type=Path, help="write the totals between the page's markers")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, show its history")
    return parser.parse_args()


def seeds_to_run(
    options: argparse.Namespace, logged: dict[int, SeedResult], code: str
) -> list[int]:
    """Seeds that never ran or failed, then those that ran with another version of the code."""
    seeds = range(options.first, options.first + options.seeds)
    new = [seed for seed in seeds if seed not in logged or logged[seed].violations]
    return new + [s for s in seeds if s in logged and logged[s].code != code and s not in new]


def run_seeds(
    seeds: Iterable[int], logged: dict[int, SeedResult], options: argparse.Namespace, code: str
) -> None:
    shown_s = time.monotonic()
    for result in results(seeds, options.jobs, time.monotonic() + 60 * options.minutes):
        logged[result.scenario.seed] = SeedResult.of(result, code)
        write(options.log, logged[result.scenario.seed])
        if not result.ok:
            show(result)
        if time.monotonic() - shown_s > SHOW_EVERY_S:
            shown_s, totals = time.monotonic(), total(logged.values(), code)
            failed = f"{len(totals.failed)} violations"
            current = f"{totals.current:,} with this version"
            write_line(f"{totals.seeds:,} seeds ({current}), {totals.years:.2f} years, {failed}")


def show(result: Result) -> None:
    seed = result.scenario.seed
    for line in result.scene[-40:]:
        write_line(f"  {line}")
    outcome = result.violations[0] if result.violations else "no invariant was violated"
    write_line(f"seed {seed}: {outcome}")
    write_line(f"  {result.scenario}")
    write_line(f"replay: python -m tests.simulation --replay {seed}")


def write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
