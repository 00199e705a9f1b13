"""Fleets with injected faults violate no invariant: every strategy, API and store semantics.

`make test` runs sixteen seeds, four of them with concurrency; `make proof` runs 360 of them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice, product

import pytest

from pumphouse.leases.strategies import STRATEGIES
from pumphouse.processor.handling.key_order import ORDERED, UNORDERED, Concurrency
from pumphouse.processor.options import SKIP, STOP, STOP_KEY, ProcessorOptions
from pumphouse.simulation import PROFILES, Scenario, simulate
from pumphouse.simulation.adapters import FACES
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SEMANTICS

SEEDS = 270
PER_TEST = 9


# In an order of their own: a seed must keep its scenario when the registries change.
SERIAL_FACES = ("pull", "push", "functions", "fixed", "partitions")


def scenarios() -> list[Scenario]:
    combinations = cycle(product(STRATEGIES, SERIAL_FACES, SEMANTICS))
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


CONCURRENT_FACES = ("handler", "push", "functions", "fixed")
CONCURRENT_SEEDS = 90
BUFFERS = (16, 1000)


def concurrent_scenarios() -> list[Scenario]:
    ends = cycle((SKIP, STOP, STOP_KEY))
    combinations = zip(cycle(CONCURRENT_FACES), cycle(SEMANTICS), cycle(STRATEGIES), ends)
    return [
        Scenario(
            hosts=2 + seed % 3,
            partitions=3 + seed % 4,
            hours=0.3,
            seed=seed,
            faults=PROFILES["harsh" if seed % 2 else "default"],
            strategy=strategy,
            face=face,
            store=store,
            options=with_concurrency(seed, end),
            burst_s=20.0,
        )
        for seed, (face, store, strategy, end) in enumerate(
            islice(combinations, CONCURRENT_SEEDS), 1001
        )
    ]


def with_concurrency(seed: int, end: str) -> ProcessorOptions:
    concurrency = Concurrency(
        handlers=(2, 4, 16)[seed % 3],
        keyless=ORDERED if seed // 2 % 2 else UNORDERED,
        ahead_events_max=BUFFERS[seed // 4 % 2],
    )
    return replace(OPTIONS, concurrency=concurrency, poison=replace(OPTIONS.poison, then=end))


ALL = scenarios()
CONCURRENT = concurrent_scenarios()
# Every strategy twice, every API at least twice, every store four times.
REPRESENTATIVE = [
    ALL[(n % 6) * len(SERIAL_FACES) * len(SEMANTICS) + (n % 5) * len(SEMANTICS) + n % 3]
    for n in range(12)
]
# Every API with a handler.
REPRESENTATIVE += CONCURRENT[:4]


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
@pytest.mark.parametrize("first", range(0, SEEDS + CONCURRENT_SEEDS, PER_TEST))
def test_every_seed_violates_no_invariant(first: int) -> None:
    for scenario in (ALL + CONCURRENT)[first : first + PER_TEST]:
        assert_no_violation(scenario)
