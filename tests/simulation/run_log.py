"""The log of the long run: one JSON line per seed, so that a run can be stopped and continued.

simulate -> SeedResult -> run log (a file of JSON lines) -> Totals
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from pumphouse import leases, processor, simulation
from pumphouse.simulation import Result
from tests.simulation import scenarios
from tests.simulation.scenarios import LONG_EVERY, TIMINGS, scenario_of, timing_of

YEAR_H = 365.25 * 24


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One seed: its duration, its injected faults, and its result."""

    seed: int
    hours: float
    cpu_s: float
    handled: int
    again: int
    moves: int
    calls: int
    digest: str
    faults: dict[str, int]
    violations: list[str]
    code: str = ""  # the version of the code that ran

    @classmethod
    def of(cls, result: Result, code: str) -> SeedResult:
        return cls(
            result.scenario.seed,
            round(result.simulated_s / 3600, 4),
            round(result.took_s, 4),
            result.figures.handled,
            result.figures.duplicates,
            result.figures.moves,
            sum(result.calls.values()),
            result.digest,
            result.faults,
            [str(violation) for violation in result.violations[:3]],
            code,
        )


def code_version() -> str:
    """A digest of all code that a seed runs: results of another version prove nothing of it."""
    digest = sha256()
    for package in (processor, leases, simulation):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + code_of(path.read_text()))
    digest.update(code_of(Path(scenarios.__file__).read_text()))
    return digest.hexdigest()[:12]


def code_of(source: str) -> bytes:
    """What a module does, without its comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and is_text(body[0]):
            body[0] = ast.Pass()
    return ast.dump(tree).encode()


def is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def read(path: Path) -> dict[int, SeedResult]:
    """The results in a log by seed; a truncated line is ignored."""
    results = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            result = SeedResult(**json.loads(text))
        except (ValueError, TypeError):
            continue
        results[result.seed] = result
    return results


def write(path: Path, result: SeedResult) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(json.dumps(asdict(result)) + "\n")


@dataclass(slots=True)
class Totals:
    """All results together."""

    seeds: int = 0
    long: int = 0
    hours: float = 0.0
    cpu_s: float = 0.0
    figures: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hours_by: Counter[str] = field(default_factory=Counter)  # timing, strategy, hosts
    failed: list[SeedResult] = field(default_factory=list)
    code: str = ""  # the present version
    current: int = 0  # seeds that ran with it

    @property
    def years(self) -> float:
        return self.hours / YEAR_H

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.current += result.code == self.code
        self.long += result.seed % LONG_EVERY == 0
        self.hours += result.hours
        self.cpu_s += result.cpu_s
        for name in ("handled", "again", "moves", "calls"):
            self.figures[name] += getattr(result, name)
        self.faults.update(result.faults)
        hours: Any = result.hours  # Counter is typed for integers
        scenario = scenario_of(result.seed)
        hosts = "1 host" if scenario.hosts == 1 else f"{scenario.hosts} hosts"
        self.hours_by.update(
            {timing_of(result.seed): hours, scenario.strategy: hours, hosts: hours}
        )
        if result.violations:
            self.failed.append(result)

    def report(self) -> Iterable[str]:
        figures = self.figures
        yield (
            f"{self.seeds:,} seeds ({self.long:,} of them for days), {self.hours:,.0f} hours "
            f"({self.years:.2f} years) in {self.cpu_s:,.0f} CPU seconds "
            f"({self.hours * 3600 / max(self.cpu_s, 1e-9):,.0f} times)"
        )
        yield (
            f"{figures['handled']:,} events handled, {figures['again']:,} again, "
            f"{figures['moves']:,} moves, {figures['calls']:,} store calls"
        )
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        yield f"{self.faults.total():,} faults: {kinds}"
        by = ", ".join(f"{name} {hours:,.0f}" for name, hours in self.hours_by.items())
        yield f"hours: {by}"
        yield f"{self.current:,} seeds with the present version of the code"
        yield f"{len(self.failed)} seeds violated an invariant"
        for result in self.failed:
            yield f"  seed {result.seed}: {result.violations[0]}"


BEGIN, END = "<!-- long run: begin -->", "<!-- long run: end -->"


def paragraph(totals: Totals) -> str:
    """The totals in words, for the page."""
    figures = totals.figures
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(totals.faults.items()))
    failed = len(totals.failed) or "none"
    by = totals.hours_by
    fleets = ", ".join(f"{name} {by[name]:,.0f}" for name in sorted(by) if "host" in name)
    timings = ", ".join(f"{name} {by[name]:,.0f}" for name in TIMINGS)
    lines = (
        f"Run so far: {totals.seeds:,} of 10,000 seeds ({totals.long:,} of them last for days),",
        f"{totals.hours:,.0f} hours ({totals.years:.2f} years) in {totals.cpu_s:,.0f} CPU seconds:",
        f"{totals.faults.total():,} faults, {figures['handled']:,} events handled,",
        f"{figures['moves']:,} moves, {figures['calls']:,} store calls; {failed} violated an "
        "invariant.",
        versions(totals),
        f"By kind: {kinds}.",
        f"Hours by size: {fleets}; by timing: {timings}.",
    )
    return "\n".join(lines)


def versions(totals: Totals) -> str:
    """Which version of the code the seeds ran with."""
    if totals.current == totals.seeds:
        return f"All of them ran with the present version of the code (`{totals.code}`)."
    return (
        f"{totals.current:,} of the seeds ran with the present version of the code\n"
        f"(`{totals.code}`), the others with earlier versions."
    )


def put_on_page(page: str, totals: Totals) -> str:
    """The page with the totals between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{paragraph(totals)}\n{END}{after}"


def total(results: Iterable[SeedResult], code: str = "") -> Totals:
    totals = Totals(code=code)
    for result in results:
        totals.add(result)
    return totals
