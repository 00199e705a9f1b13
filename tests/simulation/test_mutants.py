"""Every sabotage of the real code is noticed, and by the promise that it breaks."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.simulation import INVARIANTS, Scenario, parse_faults, simulate
from tests.simulation.mutants import MUTANTS

SEEDS = 40  # at the most; most are caught by the first


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.apply(monkeypatch)
    given: dict[str, Any] = {"hosts": 3, "partitions": 6, "hours": 0.4, **mutant.scene}
    seeds, faults = given.pop("seeds", SEEDS), parse_faults(given.pop("faults", "harsh"))
    for seed in range(1, seeds + 1):
        result = simulate(Scenario(**given, seed=seed, faults=faults))
        if {violation.name for violation in result.violations} & set(mutant.breaks.split()):
            return
    pytest.fail(f"{name} broke none of {mutant.breaks} in {seeds} seeds")


def test_there_are_enough_of_them_and_they_break_what_there_is() -> None:
    assert len(MUTANTS) >= 30
    broken = {name for mutant in MUTANTS.values() for name in mutant.breaks.split()}
    assert broken <= INVARIANTS.keys()
    # I0 is that nothing else goes wrong.
    assert INVARIANTS.keys() - broken == {"I0"}
