"""Bugs that seeds have found: they stay fixed, and each seed finds its bug if it comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pumphouse.processor.handling.key_order import Concurrency
from pumphouse.simulation import Result
from tests.simulation import scenarios
from tests.simulation.mutants.all_mutants import MUTANTS
from tests.simulation.mutants.delivery_mutants import LATE_WRITES
from tests.simulation.mutants.mutant import run_scenario, violated
from tests.simulation.mutants.ownership_mutants import EVICTED


@dataclass(frozen=True)
class FoundBug:
    """A bug: the mutant that brings it back, and a seed that finds it then."""

    mutant: str
    seed: int
    scenario: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Result:
        return run_scenario(self.seed, 0.5, self.scenario)


FOUND: dict[str, FoundBug] = {
    "a restarted pump used a stale listing of checkpoints": FoundBug(
        "a_stale_listing_is_trusted", 8
    ),
    "a late write of our own and a stale listing looked like a move by hand": FoundBug(
        "a_stale_listing_after_a_refusal_is_trusted", 31, LATE_WRITES
    ),
    "a host whose lease expired dropped the successor of its row": FoundBug(
        "a_successor_is_dropped", 2
    ),
    "a partition was handed over while its pump was still stopping": FoundBug(
        "a_stopping_pump_is_ignored", 19
    ),
    "a part of a batch, retried one by one, was checkpointed as the whole": FoundBug(
        "a_part_of_a_batch_is_checkpointed_as_all", 1, {"face": "push"}
    ),
    "functions were called with events after the lease had expired": FoundBug(
        "retries_without_a_lease", 11, {"face": "functions"}
    ),
    "a request to a dead host gave it another lease": FoundBug(
        "a_request_extends_a_dead_owners_lease", 3
    ),
    "with a store without ages a host assumed its lease for too long": FoundBug(
        "a_listed_row_counts_as_a_lease",
        1,
        {
            "hosts": 5,
            "partitions": 8,
            "strategy": "steady:rates",
            "face": "functions",
            "store": "bloblease",
        },
    ),
    "with a store of whole seconds a host assumed a longer lease": FoundBug(
        "a_row_extends_a_lease", 11, {"store": "blob"}
    ),
    "an epoch raised without a response left a pump unable to checkpoint": FoundBug(
        "an_epoch_in_doubt_is_not_settled",
        3,
        {**EVICTED, "face": "functions", "store": "bloblease"},
    ),
    "an epoch raised without a response ended a term and lost what it had handled": (
        FoundBug("a_raised_epoch_ends_the_term", 2, EVICTED)
    ),
    "after a clean move functions handled a part of a batch again": FoundBug(
        "a_handled_part_of_a_batch_is_forgotten", 3, {"face": "functions"}
    ),
    "a host that stopped just after a request kept its row in a blob store": FoundBug(
        "a_refusal_without_the_row_ends_a_hand_over", 1, {"store": "blob"}
    ),
}


@pytest.mark.parametrize("bug", FOUND)
def test_a_found_bug_stays_fixed(bug: str) -> None:
    result = FOUND[bug].run()
    assert result.ok, "\n".join((*result.scene, *map(str, result.violations)))


@pytest.mark.proof
@pytest.mark.parametrize("bug", FOUND)
def test_the_seed_finds_its_bug_again(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[FOUND[bug].mutant]
    mutant.apply(monkeypatch)
    assert violated(FOUND[bug].run()) & set(mutant.violates.split())


def test_a_checkpoint_that_is_due_in_no_time_is_waited_for() -> None:
    """The policy was asked again and again while the clock stood still."""
    concurrency = Concurrency(handlers=16, keyless="ordered", ahead_events_max=16)
    scenario = {"face": "fixed", "concurrency": concurrency, "burst_s": 5.0}
    assert run_scenario(11, 0.2, scenario).ok


@pytest.mark.parametrize("seed", [767, 2817])
def test_a_seed_with_which_a_check_was_wrong_violates_nothing(seed: int) -> None:
    """767: a report of a hung handler of an earlier term; 2817: checkpoints that were held up."""
    assert scenarios.run(seed).violations == ()
