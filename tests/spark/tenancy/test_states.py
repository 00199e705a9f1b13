"""The state machine of a partition."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pumphouse.spark.tenancy.states import OWNED_STATES, TRANSITIONS, Change, State, next_state

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "tenancy.md"


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ("claimed", "owned"),
        ("claimed, stop requested, checkpointed", "released"),
        ("claimed, batch planned, batch ended", "owned"),
        ("claimed, batch planned, stop requested", "draining"),  # a batch delays the hand-over
        ("claimed, batch planned, stop requested, checkpointed", "draining"),
        ("claimed, batch planned, stop requested, batch ended, checkpointed", "released"),
        ("claimed, stop requested, batch planned", "draining"),  # a replay
        ("claimed, batch planned, ownership lost, batch ended, checkpointed", "lost"),
        ("claimed, ownership lost, claimed", "owned"),
        ("claimed, stop requested, checkpointed, ownership lost", "released"),
        ("batch planned, batch ended, stop requested, checkpointed, ownership lost", "not owned"),
    ],
)
def test_a_partition_moves_through_its_states(changes: str, end: str) -> None:
    state = State.NOT_OWNED
    for change in changes.split(", "):
        state = next_state(state, Change(change))
    assert state is State(end)


def test_every_owned_partition_can_be_lost_and_every_other_can_be_claimed() -> None:
    for state in State:
        lost = next_state(state, Change.OWNERSHIP_LOST)
        claimed = next_state(state, Change.CLAIMED)
        assert (lost is State.LOST) == (state in OWNED_STATES or state is State.LOST)
        assert (claimed is State.OWNED) == (state not in OWNED_STATES or state is State.OWNED)


def test_a_partition_is_released_only_after_its_batch_and_its_checkpoint() -> None:
    before = [state for state, _ in TRANSITIONS if TRANSITIONS[state, _] is State.RELEASED]
    assert before == [State.RELEASING]
    assert next_state(State.READING, Change.STOP_REQUESTED) is State.DRAINING


def test_the_diagram_of_the_documentation_shows_every_transition() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): ([\w ]+)$", PAGE.read_text(), re.MULTILINE))
    assert drawn == {
        (start.name, end.name, change.value) for (start, change), end in TRANSITIONS.items()
    }
