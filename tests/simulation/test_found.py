"""What seeds have found. It stays mended, and each seed would find it again if it came back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pumphouse.simulation import Result, Scenario, parse_faults, simulate
from tests.simulation.mutants import EVICTED, MUTANTS


@dataclass(frozen=True)
class Found:
    """A bug: the sabotage that brings it back, and a seed that meets it then."""

    back_by: str
    seed: int
    scene: dict[str, Any] = field(default_factory=dict)

    def play(self) -> Result:
        given: dict[str, Any] = {"hosts": 3, "partitions": 6, "hours": 0.5, **self.scene}
        faults = parse_faults(given.pop("faults", "harsh"))
        return simulate(Scenario(**given, seed=self.seed, faults=faults))


FOUND = {
    "a pump that started again believed an old listing of checkpoints": Found(
        "old_listing_believed", 8
    ),
    "a host that lost its row to the clock forgot who had asked for it": Found(
        "who_has_asked_is_forgotten", 2
    ),
    "a partition was given away while its pump was still leaving": Found(
        "a_pump_that_leaves_is_forgotten", 10
    ),
    "a part of a batch, tried one by one, was checkpointed as all of it": Found(
        "a_part_of_a_batch_counts_as_all_of_it", 1, {"face": "push"}
    ),
    "functions were called with events after the lease had run out": Found(
        "live_whatever_happens", 1, {"face": "functions"}
    ),
    "asking a dead host for a partition gave it another lease": Found(
        "asking_gives_the_dead_another_lease", 4
    ),
    "a store that tells no ages let a host believe in its lease for too long": Found(
        "hearsay_is_believed",
        1,
        {
            "hosts": 5,
            "partitions": 8,
            "strategy": "steady:rates",
            "face": "functions",
            "store": "bloblease",
        },
    ),
    "a store that tells whole seconds made a lease longer than it was": Found(
        "a_row_makes_a_lease_longer", 1, {"store": "blob"}
    ),
    "an epoch that was raised without an answer left a pump unable to checkpoint": Found(
        "an_epoch_in_doubt_is_not_settled", 9, {**EVICTED, "face": "push"}
    ),
    "an epoch that was raised without an answer ended a stay, and what it had handled with it": (
        Found("a_raise_that_took_effect_ends_the_stay", 4, EVICTED)
    ),
    "functions handled again on a clean move what they had handled of a batch": Found(
        "a_part_of_a_batch_counts_for_nothing", 3, {"face": "functions"}
    ),
    "a host that left a blob store just after it was asked kept its row": Found(
        "a_refusal_without_a_word_ends_a_hand_over", 1, {"store": "blob"}
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_it_does_not_happen_again(what: str) -> None:
    result = FOUND[what].play()
    assert result.ok, "\n".join((*result.scene, *map(str, result.violations)))


@pytest.mark.parametrize("what", FOUND)
def test_its_seed_would_find_it_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[FOUND[what].back_by]
    mutant.apply(monkeypatch)
    broken = {violation.name for violation in FOUND[what].play().violations}
    assert broken & set(mutant.breaks.split())
