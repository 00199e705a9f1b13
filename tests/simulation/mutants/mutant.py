"""Mutants: deliberate bugs in the real code, applied by monkeypatching, that the checks must catch.

A mutant has the invariants that it violates and the scenario in which it shows.
The modules *_mutants.py define them; test_mutants.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pumphouse.simulation import Result, Scenario, parse_faults, simulate

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A deliberate bug, the invariants that it may violate, and a scenario in which it does."""

    apply: Callable[[Patch], None]
    violates: str  # names of invariants
    scenario: dict[str, Any] = field(default_factory=dict)
    text: str = ""  # a part of the text of the violation

    def is_caught_by(self, result: Result, invariants: str = "") -> bool:
        """Whether one of these invariants is violated, by default any of its own."""
        names = (invariants or self.violates).split()
        return any(v.name in names and self.text in v.text for v in result.violations)


MUTANTS: dict[str, Mutant] = {}


def mutant(
    violates: str, text: str = "", **scenario: Any
) -> Callable[[Callable[[Patch], None]], None]:
    def register(apply: Callable[[Patch], None]) -> None:
        MUTANTS[apply.__name__] = Mutant(apply, violates, scenario, text)

    return register


def run_scenario(seed: int, hours: float, scenario: dict[str, Any]) -> Result:
    """Run a small fleet with the harsh fault profile, unless the scenario has another one."""
    given = {"hosts": 3, "partitions": 6, "hours": hours, **scenario}
    faults = parse_faults(given.pop("faults", "harsh"))
    return simulate(Scenario(**given, seed=seed, faults=faults))


def violated(result: Result) -> set[str]:
    return {violation.name for violation in result.violations}
