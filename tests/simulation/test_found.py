"""Seeds that broke a promise once. What was mended stays mended."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.simulation import PROFILES, Scenario, simulate

FOUND: dict[str, dict[str, Any]] = {
    "a pump that started again believed an old listing of checkpoints": {"seed": 3},
    "a host that lost its row to the clock forgot who had asked for it": {"seed": 7},
    "a partition was given away while its pump was still leaving": {"seed": 26},
    "a part of a batch, tried one by one, was checkpointed as all of it": {
        "seed": 200,
        "face": "push",
    },
    "functions were called with events after the lease had run out": {
        "seed": 200,
        "face": "functions",
    },
    "asking a dead host for a partition gave it another lease": {
        "seed": 200,
        "face": "push",
        "store": "blob",
        "hours": 0.4,
    },
    "a store that tells no ages let a host believe in its lease for too long": {
        "seed": 131,
        "hosts": 5,
        "partitions": 8,
        "strategy": "steady:rates",
        "face": "functions",
        "store": "bloblease",
    },
    "a store that tells whole seconds made a lease longer than it was": {
        "seed": 1,
        "store": "blob",
    },
    "an epoch that was raised without an answer left a pump unable to checkpoint": {
        "seed": 3162,
        "hosts": 2,
        "partitions": 5,
        "face": "fixed",
        "store": "bloblease",
        "burst_s": 10.0,
        "hours": 0.9,
    },
    "functions handled again on a clean move what they had handled of a batch": {
        "seed": 12,
        "face": "functions",
    },
}


@pytest.mark.parametrize("what", FOUND)
def test_it_does_not_happen_again(what: str) -> None:
    given: dict[str, Any] = {"hosts": 3, "partitions": 6, "hours": 0.5, **FOUND[what]}
    result = simulate(Scenario(**given, faults=PROFILES["harsh"]))
    assert result.ok, "\n".join((*result.scene, *map(str, result.violations)))
