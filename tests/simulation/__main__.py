"""Ten simulated years: 10,000 seeds, in every combination. `make simulate` runs it.

    python -m tests.simulation [--seeds 10000] [--first 1] [--minutes M] [--jobs N]
                               [--diary build/simulate.jsonl] [--page docs/internals/reliability.md]
                               [--told | --replay SEED]

Nine seeds of ten are short and rough; every tenth lasts for more than three days. Every seed is
written to the diary when it is done, so a run that was stopped goes on where it was, and `--told`
says how far it is. What was played with another version of the code is played again, once all the
rest is done. Ends with status 1 if a seed broke a promise.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from pumphouse.simulation import Result
from tests.simulation.diary import Line, put_on_page, read, total, version, write
from tests.simulation.mix import run

SHOW_EVERY_S = 30.0
DIARY = Path("build/simulate.jsonl")
GARBAGE = (50_000, 20, 50)  # a run makes many small things that live for long: look less often


def results(seeds: Iterable[int], jobs: int, until_s: float) -> Iterator[Result]:
    """Results as they come, until the time is over."""
    left = iter(seeds)
    spawn = get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, gc.set_threshold, GARBAGE) as pool:
        running: set[Future[Result]] = {pool.submit(run, seed) for seed in islice(left, 2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            if time.monotonic() < until_s:
                running |= {pool.submit(run, seed) for seed in islice(left, len(done))}
            yield from (future.result() for future in done)


def main() -> int:
    asked = arguments()
    if asked.replay is not None:
        tell(result := run(asked.replay))
        return int(not result.ok)
    code, lines = version(), read(asked.diary)
    if not asked.told:
        go_on(to_play(asked, lines, code), lines, asked, code)
    so_far = total(lines.values(), code)
    for line in so_far.told():
        say(line)
    if asked.page is not None:
        asked.page.write_text(put_on_page(asked.page.read_text(), so_far))
    return 1 if so_far.broken else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=360.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--diary", type=Path, default=DIARY)
    parser.add_argument("--told", action="store_true", help="only say how far it is")
    parser.add_argument("--page", type=Path, help="put it on this page, between its marks")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one seed, and what happened")
    return parser.parse_args()


def to_play(asked: argparse.Namespace, lines: dict[int, Line], code: str) -> list[int]:
    """What was never played, or broke a promise; then what another version was played with."""
    seeds = range(asked.first, asked.first + asked.seeds)
    new = [seed for seed in seeds if seed not in lines or lines[seed].violations]
    return new + [s for s in seeds if s in lines and lines[s].code != code and s not in new]


def go_on(
    seeds: Iterable[int], lines: dict[int, Line], asked: argparse.Namespace, code: str
) -> None:
    shown_s = time.monotonic()
    for result in results(seeds, asked.jobs, time.monotonic() + 60 * asked.minutes):
        line = lines[result.scenario.seed] = Line.of(result, code)
        write(asked.diary, line)
        if not result.ok:
            tell(result)
        if time.monotonic() - shown_s > SHOW_EVERY_S:
            shown_s, so_far = time.monotonic(), total(lines.values(), code)
            broken = f"{len(so_far.broken)} violations"
            now = f"{so_far.present:,} with this version"
            say(f"{so_far.seeds:,} seeds ({now}), {so_far.years:.2f} years, {broken}")


def tell(result: Result) -> None:
    seed = result.scenario.seed
    for line in result.scene[-40:]:
        say(f"  {line}")
    say(f"seed {seed}: {result.violations[0] if result.violations else 'every promise was kept'}")
    say(f"  {result.scenario}")
    say(f"replay: python -m tests.simulation --replay {seed}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
