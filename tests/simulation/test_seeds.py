"""Fleets in bad weather: every strategy, every face, every store's semantics. No promise breaks."""

from __future__ import annotations

from itertools import cycle, islice, product

import pytest

from pumphouse.simulation import PROFILES, Scenario, simulate
from pumphouse.simulation.adapters import FACES
from pumphouse.simulation.store import SEMANTICS

STRATEGIES = ("steady", "greedy", "balanced", "eph", "eph_js", "steady:rates")
SEEDS = 216
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


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    for scenario in ALL[first : first + PER_TEST]:
        result = simulate(scenario)
        story = "\n".join((str(scenario), *result.scene, *map(str, result.violations)))
        assert result.ok, story
        assert sum(result.faults.values()) > 5, story
