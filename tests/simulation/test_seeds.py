"""Fleets with injected faults violate no invariant: every strategy, API and store semantics.

`make test` runs twelve seeds, `make proof` runs 270 of them.
"""

from __future__ import annotations

from itertools import cycle, islice, product

import pytest

from pumphouse.leases.strategies import STRATEGIES
from pumphouse.simulation import PROFILES, Scenario, simulate
from pumphouse.simulation.adapters import FACES
from pumphouse.simulation.store import SEMANTICS

SEEDS = 270
PER_TEST = 9


def scenarios() -> list[Scenario]:
    combinations = cycle(product(STRATEGIES, FACES, SEMANTICS))
    return [
        Scenario(
            hosts=2 + seed % 3,
            partitions=4 + seed % 5,
            hours=0.3,
            seed=seed,
            faults=PROFILES["harsh" if seed % 2 else "default"],
            strategy=strategy,
            face=face,
            store=store,
        )
        for seed, (strategy, face, store) in enumerate(islice(combinations, SEEDS), 1)
    ]


ALL = scenarios()
# Every strategy twice, every API at least twice, every store four times.
REPRESENTATIVE = [
    ALL[(n % 6) * len(FACES) * len(SEMANTICS) + (n % 5) * len(SEMANTICS) + n % 3] for n in range(12)
]


def assert_no_violation(scenario: Scenario) -> None:
    result = simulate(scenario)
    story = "\n".join((str(scenario), *result.scene, *map(str, result.violations)))
    assert result.ok, story
    assert sum(result.faults.values()) > 5, story


@pytest.mark.parametrize("scenario", REPRESENTATIVE, ids=lambda scenario: f"seed-{scenario.seed}")
def test_a_representative_seed_violates_no_invariant(scenario: Scenario) -> None:
    assert_no_violation(scenario)


def test_the_representative_seeds_cover_every_strategy_api_and_store() -> None:
    assert {scenario.strategy for scenario in REPRESENTATIVE} == set(STRATEGIES)
    assert {scenario.face for scenario in REPRESENTATIVE} == set(FACES)
    assert {scenario.store for scenario in REPRESENTATIVE} == set(SEMANTICS)
    assert len({scenario.faults for scenario in REPRESENTATIVE}) == 2


@pytest.mark.proof
@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_every_seed_violates_no_invariant(first: int) -> None:
    for scenario in ALL[first : first + PER_TEST]:
        assert_no_violation(scenario)
