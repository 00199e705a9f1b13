"""`pumphouse simulate`: runs a fleet in virtual time with faults, and checks the invariants."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pumphouse.cli.common import console
from pumphouse.cli.common.options import output_option, strategy_option
from pumphouse.errors import OptionError

if TYPE_CHECKING:
    from pumphouse.simulation import Result, Scenario

APIS = ("pull", "push", "functions", "fixed", "partitions", "handler")
STORES = ("memory", "blob", "bloblease")
HISTORY_LINES = 40
PROGRESS_EVERY_S = 0.5


@click.command(short_help="Simulate processors with faults, in virtual time.")
@click.option(
    "--hosts", type=click.IntRange(1), default=5, show_default=True, help="Number of hosts."
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Number of partitions of the hub.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    default=24.0,
    show_default=True,
    help="Hours of virtual time per seed.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="First seed. The same seed gives the same run.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of seeds to run.",
)
@click.option(
    "--faults",
    default="default",
    show_default=True,
    metavar="PROFILE",
    help="Fault profile: none, quiet, default, harsh, hosts or store; with changes such as "
    "default,crash=20,stale=0.",
)
@strategy_option
@click.option(
    "--api",
    type=click.Choice(APIS),
    default="pull",
    show_default=True,
    help="Processor API of the hosts. Hosts with `--api fixed` keep their partitions: they have "
    "no --strategy.",
)
@click.option("--face", type=click.Choice(APIS), hidden=True, help="The old name of --api.")
@click.option(
    "--store",
    type=click.Choice(STORES),
    default="memory",
    show_default=True,
    help="Kind of store to simulate.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Handlers of a partition at once. Each key is handled in order. Not with --api pull or "
    "partitions.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Number of processes for several seeds; one per core by default.",
)
@output_option
@click.pass_context
def simulate(
    ctx: click.Context,
    hosts: int,
    partitions: int,
    hours: float,
    seed: int,
    seeds: int,
    faults: str,
    strategy: str,
    api: str,
    face: str | None,
    store: str,
    concurrency: int,
    jobs: int | None,
    output: str,
) -> None:
    """Run a fleet of real processors in virtual time with faults, and check every invariant.

    Hosts crash, freeze and restart, the store loses responses, readers are evicted, handlers hang.
    In the fault-free phase at the end the fleet must recover. If an invariant is violated, the exit
    status is 1, and the last events and the command that replays the seed are printed.
    """
    from pumphouse.leases.strategies import parse_strategy
    from pumphouse.simulation import Scenario, parse_faults

    parse_strategy(strategy)
    if face is not None:
        api = api_of_face(ctx, face)
    if api == "fixed" and is_given(ctx, "strategy"):
        raise OptionError("--strategy has no effect with --api fixed: remove one of them")
    scenarios = [
        Scenario(
            hosts,
            partitions,
            hours,
            number,
            parse_faults(faults),
            strategy,
            api,
            store,
            concurrency=concurrency,
        )
        for number in range(seed, seed + seeds)
    ]
    total = Totals(len(scenarios))
    failed = False
    with ProgressLine(total, hours * 3600, shown=output == "text") as line:
        for result in results(scenarios, jobs or os.cpu_count() or 1, line):
            total.add(result)
            line.show()
            if output == "json":
                console.print_json(as_json(result, faults))
            if not result.ok:
                failed = True
                line.clear()
                report_failure(result, faults)
    if output == "text":
        show_total(total)
    if failed:
        ctx.exit(console.FAILED)


def api_of_face(ctx: click.Context, face: str) -> str:
    """The value of the deprecated option --face."""
    if is_given(ctx, "api"):
        raise OptionError("--face is the old name of --api: remove --face")
    console.message("pumphouse: --face is deprecated: use --api")
    return face


def is_given(ctx: click.Context, option: str) -> bool:
    return ctx.get_parameter_source(option) is not ParameterSource.DEFAULT


# -- running --------------------------------------------------------------------------------------


def results(scenarios: list[Scenario], jobs: int, line: ProgressLine) -> Iterator[Result]:
    """Yield the result of every scenario; several run in parallel processes."""
    from pumphouse.simulation import simulate as run

    if len(scenarios) == 1 or jobs == 1:
        for scenario in scenarios:
            yield run(scenario, progress=line.progress)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # A new interpreter each: no threads or event loops are inherited.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, scenarios, chunksize=max(1, min(20, len(scenarios) // (4 * jobs))))


@dataclass(slots=True)
class Totals:
    """The sums over all finished seeds."""

    seeds: int
    done: int = 0
    violated: int = 0  # seeds with at least one violation
    simulated_s: float = 0.0
    took_s: float = 0.0
    sent: int = 0
    refused: int = 0  # writes that the store refused
    worst_gap_s: float = 0.0  # the longest time between sending and handling an event
    handler_failed: str | None = None  # the first exception of a handler
    faults: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.done += 1
        self.violated += bool(result.violations)
        self.handler_failed = self.handler_failed or result.handler_failed
        self.simulated_s += result.simulated_s
        self.took_s += result.took_s
        self.sent += result.sent
        self.refused += result.refused
        self.faults.update(result.faults)
        self.calls.update(result.calls)
        figures = result.figures
        self.worst_gap_s = max(self.worst_gap_s, figures.worst_gap_s)
        for name in ("moves", "handled", "duplicates", "batches", "stuck_reports"):
            self.figures[name] += getattr(figures, name)


class ProgressLine:
    """One progress line on stderr, if it is a terminal."""

    def __init__(self, total: Totals, seed_s: float, *, shown: bool) -> None:
        self.total, self.seed_s = total, seed_s
        self.shown = shown and sys.stderr.isatty()
        self._printed_s = 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def progress(self, at_s: float, checks: Any) -> None:
        self.show(at_s, checks.figures.moves)

    def show(self, at_s: float = 0.0, moves: int = 0) -> None:
        if not self.shown or time.monotonic() - self._printed_s < PROGRESS_EVERY_S:
            return
        self._printed_s = time.monotonic()
        total = self.total
        hours, hours_max = (total.simulated_s + at_s) / 3600, total.seeds * self.seed_s / 3600
        text = f"{hours:,.1f} of {hours_max:,.1f} hours, {total.done} of {total.seeds} seeds, "
        text += f"{total.figures['moves'] + moves:,} moves, {total.violated} seeds with violations"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# -- output ---------------------------------------------------------------------------------------


def replay(scenario: Scenario, faults: str) -> str:
    """The command that repeats this seed."""
    options = {
        "--hosts": str(scenario.hosts),
        "--partitions": str(scenario.partitions),
        "--hours": repr(scenario.hours),  # all digits: the history depends on them
        "--seed": str(scenario.seed),
        "--faults": faults,
        "--strategy": scenario.strategy,
        "--api": scenario.face,
        "--store": scenario.store,
    }
    if scenario.concurrency != 1:
        options["--concurrency"] = str(scenario.concurrency)
    if scenario.face == "fixed":
        del options["--strategy"]
    return shlex.join(
        ["pumphouse", "simulate", *(word for pair in options.items() for word in pair)]
    )


def report_failure(result: Result, faults: str) -> None:
    seed = result.scenario.seed
    if result.handler_failed is not None:
        console.message(f"seed {seed}: the handler raised {result.handler_failed}")
    if not result.violations:
        return
    console.message(f"seed {seed}: {result.violations[0]}")
    for line in result.scene[-HISTORY_LINES:]:
        console.message(f"  {line}")
    console.message(f"replay: {replay(result.scenario, faults)}")


def show_total(total: Totals) -> None:
    hours = total.simulated_s / 3600
    speed = total.simulated_s / max(total.took_s, 1e-9)
    seeds = console.plural(total.done, "seed")
    cost = f"{total.took_s:,.1f} CPU seconds ({speed:,.0f} times real time)"
    print(f"{seeds}, {hours:,.1f} hours in {cost}")
    console.print_table(("", ""), list(rows(total)))


def rows(total: Totals) -> Iterable[tuple[str, str]]:
    for name, count in sorted(total.faults.items()):
        yield f"fault: {name}", f"{count:,}"
    yield "events sent", f"{total.sent:,}"
    yield "events handled", f"{total.figures['handled']:,}"
    yield "handled again", f"{total.figures['duplicates']:,}"
    yield "moves", f"{total.figures['moves']:,}"
    yield "longest delay from send to handling", f"{total.worst_gap_s:.1f} s"
    for name, count in sorted(total.calls.items()):
        yield f"store calls: {name}", f"{count:,}"
    yield "writes refused", f"{total.refused:,}"
    if total.handler_failed is not None:
        yield "handler failed", total.handler_failed
    yield "seeds with violations", f"{total.violated:,}"


def as_json(result: Result, faults: str) -> dict[str, Any]:
    figures = result.figures
    return {
        "seed": result.scenario.seed,
        "ok": result.ok,
        "violations": [str(violation) for violation in result.violations],
        "handler_failed": result.handler_failed,
        "replay": replay(result.scenario, faults),
        "last_events": list(result.scene[-HISTORY_LINES:]),
        "history": result.digest,
        "hours": round(result.simulated_s / 3600, 3),
        "cpu_s": round(result.took_s, 3),
        "faults": result.faults,
        "store_calls": result.calls,
        "writes_refused": result.refused,
        "sent": result.sent,
        "handled": figures.handled,
        "duplicates": figures.duplicates,
        "moves": figures.moves,
        "worst_gap_s": round(figures.worst_gap_s, 3),
    }
