"""What came of every seed so far, a line each: a long run can be stopped, gone on with, and told.

simulate -> Line -> diary (a file of JSON lines) -> Total
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from pumphouse import leases, processor, simulation
from pumphouse.simulation import Result
from tests.simulation import mix
from tests.simulation.mix import LONG_EVERY, TIMINGS, scenario, timing

YEAR_H = 365.25 * 24


@dataclass(frozen=True, slots=True)
class Line:
    """One seed: how long, what went wrong on purpose, what came of it."""

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
    code: str = ""  # which version of it ran

    @classmethod
    def of(cls, result: Result, code: str) -> Line:
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


def version() -> str:
    """Of everything that a seed plays: what another version came to proves nothing of this one."""
    digest = sha256()
    folders = [Path(room.__path__[0]) for room in (processor, leases, simulation)]
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(Path(mix.__file__).read_bytes())
    return digest.hexdigest()[:12]


def read(path: Path) -> dict[int, Line]:
    """What is written there, by seed; a line that was cut short does not count."""
    found = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            told = Line(**json.loads(text))
        except (ValueError, TypeError):
            continue
        found[told.seed] = told
    return found


def write(path: Path, line: Line) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as diary:
        diary.write(json.dumps(asdict(line)) + "\n")


@dataclass(slots=True)
class Total:
    """All lines together."""

    seeds: int = 0
    long: int = 0
    hours: float = 0.0
    cpu_s: float = 0.0
    figures: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hours_by: Counter[str] = field(default_factory=Counter)  # timing, strategy, hosts
    broken: list[Line] = field(default_factory=list)
    code: str = ""  # the present version
    present: int = 0  # seeds that were played with it

    @property
    def years(self) -> float:
        return self.hours / YEAR_H

    def add(self, line: Line) -> None:
        self.seeds += 1
        self.present += line.code == self.code
        self.long += line.seed % LONG_EVERY == 0
        self.hours += line.hours
        self.cpu_s += line.cpu_s
        for name in ("handled", "again", "moves", "calls"):
            self.figures[name] += getattr(line, name)
        self.faults.update(line.faults)
        hours: Any = line.hours  # counters count anything
        played = scenario(line.seed)
        hosts = "1 host" if played.hosts == 1 else f"{played.hosts} hosts"
        self.hours_by.update({timing(line.seed): hours, played.strategy: hours, hosts: hours})
        if line.violations:
            self.broken.append(line)

    def told(self) -> Iterable[str]:
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
        yield f"{self.present:,} seeds with the present version of the code"
        yield f"{len(self.broken)} seeds broke a promise"
        for line in self.broken:
            yield f"  seed {line.seed}: {line.violations[0]}"


BEGIN, END = "<!-- long run: begin -->", "<!-- long run: end -->"


def paragraph(told: Total) -> str:
    """What was run, in words for the page."""
    figures = told.figures
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(told.faults.items()))
    broken = f"{len(told.broken)} broke a promise" if told.broken else "none broke a promise"
    by = told.hours_by
    fleets = ", ".join(f"{name} {by[name]:,.0f}" for name in sorted(by) if "host" in name)
    timings = ", ".join(f"{name} {by[name]:,.0f}" for name in TIMINGS)
    words = (
        f"Run so far: {told.seeds:,} of 10,000 seeds ({told.long:,} of those that last for days),",
        f"{told.hours:,.0f} hours ({told.years:.2f} years) in {told.cpu_s:,.0f} CPU seconds:",
        f"{told.faults.total():,} faults, {figures['handled']:,} events handled,",
        f"{figures['moves']:,} moves, {figures['calls']:,} store calls; {broken}.",
        f"{told.present:,} of the seeds were played with the present version of the code",
        f"(`{told.code}`), the others with versions before it.",
        f"By kind: {kinds}.",
        f"Hours by size: {fleets}; by timing: {timings}.",
    )
    return "\n".join(words)


def put_on_page(page: str, told: Total) -> str:
    """The page with what was run between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{paragraph(told)}\n{END}{after}"


def total(lines: Iterable[Line], code: str = "") -> Total:
    told = Total(code=code)
    for line in lines:
        told.add(line)
    return told
