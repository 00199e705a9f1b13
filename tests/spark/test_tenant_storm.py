"""Tenants that crash at any stage of a batch, again and again, driven as Spark drives them.

What a batch read comes out when it is committed, all at once, as with a sink that is transactional:
so whatever comes out twice was read again after it had been committed. SEED chooses the crashes,
CRASHES how many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pumphouse.leases.model import Checkpoint

from .conftest import Hub
from .tenants.house import House, house_of, in_order, repeats, together
from .tenants.microbatch import Folder, Query, Row

pytestmark = pytest.mark.timeout(900)

SEED = int(os.environ.get("SEED", "7"))
CRASHES = int(os.environ.get("CRASHES", "8"))
STAGES = ("planned", "read", "committed", "heard")
# So short that the leases of whoever crashed have often run out when the other looks.
BRIEF = {"leaseDuration": "1s", "renewInterval": "200ms", "cycleInterval": "100ms"}


@pytest.fixture
def house(hub: Hub, tmp_path: Path) -> Iterator[House]:
    with house_of(hub, tmp_path) as found:
        yield found


def crash_at(query: Query, stage: str) -> None:
    """Drive it into its next batch as far as that, and end it there."""
    if query.plan() and stage != "planned":
        rows = query.read()
        if stage != "read":
            query.commit(rows)
        if stage == "heard":
            query.plan()
    query.crash()


def test_crashes_at_any_stage_repeat_nothing(house: House) -> None:
    rng, folder = Random(SEED), Folder()
    for _ in range(CRASHES):
        house.send(rng.randrange(4))
        crash_at(house.query(folder, "same"), rng.choice(STAGES))
    house.send(3)
    house.query(folder, "same").drain(sum(house.sent.values()))
    assert set(folder.rows) == house.everything()
    assert not repeats(folder)
    assert in_order(folder)


def test_crashes_and_takers_leave_no_gap(house: House) -> None:
    """While one is away another takes some of its partitions, and handles some events or none."""
    rng, one, two = Random(SEED), Folder(), Folder()
    in_hand: set[Row] = set()
    for _ in range(CRASHES // 2):
        house.send(1 + rng.randrange(4))
        first = house.query(one, "one", **BRIEF)
        crash_at(first, rng.choice(STAGES))
        in_hand |= not_checkpointed(house)
        house.send(1)
        second = house.query(two, "two", assignment="greedy", **BRIEF)
        crash_at(second, rng.choice(STAGES)) if rng.random() < 0.5 else second.stop()
        in_hand |= not_checkpointed(house)
    queries = [house.query(one, "one", **BRIEF), house.query(two, "two", **BRIEF)]
    together(*queries, done=lambda: {*one.rows, *two.rows} >= house.everything())
    assert {*one.rows, *two.rows} == house.everything()
    assert repeats(one, two) <= in_hand


def not_checkpointed(house: House) -> set[Row]:
    """What was sent and is not in the checkpoint: it may have been in a batch."""
    marks = house.leases.checkpoints()
    return {row for row in house.everything() if not is_done(marks.get(row[0]), row[1])}


def is_done(mark: Checkpoint | None, number: int) -> bool:
    return mark is not None and mark.sequence is not None and number <= mark.sequence
