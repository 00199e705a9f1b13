"""Every mutant is caught, and by an invariant that it violates.

`make test` runs one mutant per invariant, `make proof` runs them all.
"""

from __future__ import annotations

import pytest

from pumphouse.simulation import INVARIANTS
from tests.simulation.mutants.all_mutants import MUTANTS
from tests.simulation.mutants.mutant import run_scenario

SEEDS = 40  # at most; the first seed catches most mutants
# One per invariant, caught within the first seeds.
REPRESENTATIVES = {
    "I1": "self_fencing_off",
    "I2": "no_drain",
    "I3": "an_event_skipped_after_a_break",
    "I4": "events_out_of_order",
    "I5": "checkpoint_of_undelivered_events",
    "I6": "no_checkpoint_when_leaving",
    "I7": "requests_at_random",
    "I8": "expired_leases_count_as_live",
    "I9": "a_host_without_partitions_requests_none",
    "I10": "cycles_without_an_interval",
    "I11": "a_stuck_handler_is_not_reported",
    "I12": "a_hand_over_has_no_deadline",
    "I13": "a_stop_that_never_ends",
    "I15": "position_ignores_the_checkpoint",
    "I16": "a_failing_store_raises_in_the_handler",
    "I18": "expired_events_are_not_reported",
    "I22": "a_key_is_released_when_it_starts",
}


def assert_caught(name: str, invariants: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.apply(monkeypatch)
    scenario = dict(mutant.scenario)
    seeds = scenario.pop("seeds", SEEDS)
    for seed in range(1, seeds + 1):
        if mutant.is_caught_by(run_scenario(seed, 0.4, scenario), invariants):
            return
    pytest.fail(f"{name} violated none of {invariants} in {seeds} seeds")


@pytest.mark.parametrize("invariant", REPRESENTATIVES)
def test_the_mutant_of_each_invariant_is_caught(
    invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_caught(REPRESENTATIVES[invariant], invariant, monkeypatch)


# Those of the other parts of I22, and of a checkpoint at the low-water mark.
OF_CONCURRENCY = (
    "keys_are_ignored",
    "a_partition_is_given_up_while_its_handlers_run",
    "one_handler_too_many",
    "the_buffer_has_no_limit",
    "the_low_water_mark_ignores_gaps",
    "nothing_is_drained",
    "a_handler_that_cancels_its_task_ends_it",
)


@pytest.mark.parametrize("name", [*OF_CONCURRENCY, "a_handler_gets_the_list_of_the_engine"])
def test_further_mutants_of_handlers_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_caught(name, MUTANTS[name].violates, monkeypatch)


@pytest.mark.proof
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_caught(name, MUTANTS[name].violates, monkeypatch)


def test_every_invariant_but_i0_has_mutants() -> None:
    """I0 is that no host fails by itself: every other test of a fleet proves it."""
    assert len(MUTANTS) >= 48
    names = {name for mutant in MUTANTS.values() for name in mutant.violates.split()}
    assert names <= INVARIANTS.keys()
    assert INVARIANTS.keys() - names == {"I0"}
    assert REPRESENTATIVES.keys() == names
