"""Tenants that crash at random stages of a batch; called as Spark calls them.

The rows of a batch are output at its commit, as by a transactional sink: a row that is output twice
was read again after its commit. SEED selects the crashes, CRASHES their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pumphouse.leases.model import Checkpoint
from pumphouse.spark.versions.features import SHARING
from tests.spark.conftest import Hub
from tests.spark.tenancy.support.microbatch import CheckpointFolder, Query, Row
from tests.spark.tenancy.support.shared_group import (
    SharedGroup,
    duplicates,
    is_in_order,
    run_together,
    shared_group,
)

pytestmark = [pytest.mark.needs(SHARING), pytest.mark.timeout(900)]

SEED = int(os.environ.get("SEED", "7"))
CRASHES = int(os.environ.get("CRASHES", "8"))
STAGES = ("planned", "read", "committed", "next planned")
# So short that the leases of a crashed query have often expired when the other claims.
SHORT_TIMES = {"leaseDuration": "1s", "renewInterval": "200ms", "cycleInterval": "100ms"}


@pytest.fixture
def group(hub: Hub, tmp_path: Path) -> Iterator[SharedGroup]:
    with shared_group(hub, tmp_path) as group:
        yield group


def crash_at(query: Query, stage: str) -> None:
    """Run the next batch up to this stage, and crash."""
    if query.plan() and stage != "planned":
        rows = query.read()
        if stage != "read":
            query.commit(rows)
        if stage == "next planned":
            query.plan()
    query.crash()


def test_a_crash_at_any_stage_reads_nothing_twice(group: SharedGroup) -> None:
    rng, folder = Random(SEED), CheckpointFolder()
    for _ in range(CRASHES):
        group.send(rng.randrange(4))
        crash_at(group.query(folder, "same"), rng.choice(STAGES))
    group.send(3)
    group.query(folder, "same").drain(sum(group.sent.values()))
    assert set(folder.rows) == group.all_rows()
    assert not duplicates(folder)
    assert is_in_order(folder)


def test_crashes_and_takeovers_leave_no_gap(group: SharedGroup) -> None:
    """After a crash another query takes some of the partitions, and handles some events or none."""
    rng, one, two = Random(SEED), CheckpointFolder(), CheckpointFolder()
    in_flight: set[Row] = set()
    for _ in range(CRASHES // 2):
        group.send(1 + rng.randrange(4))
        first = group.query(one, "one", **SHORT_TIMES)
        crash_at(first, rng.choice(STAGES))
        in_flight |= not_checkpointed(group)
        group.send(1)
        second = group.query(two, "two", assignment="greedy", **SHORT_TIMES)
        crash_at(second, rng.choice(STAGES)) if rng.random() < 0.5 else second.stop()
        in_flight |= not_checkpointed(group)
    queries = [group.query(one, "one", **SHORT_TIMES), group.query(two, "two", **SHORT_TIMES)]
    run_together(*queries, done=lambda: {*one.rows, *two.rows} >= group.all_rows())
    assert {*one.rows, *two.rows} == group.all_rows()
    assert duplicates(one, two) <= in_flight


def not_checkpointed(group: SharedGroup) -> set[Row]:
    """Events that are not in a checkpoint: a batch in flight may have read them."""
    checkpoints = group.leases.checkpoints()
    return {row for row in group.all_rows() if not is_handled(checkpoints.get(row[0]), row[1])}


def is_handled(checkpoint: Checkpoint | None, number: int) -> bool:
    handled = None if checkpoint is None else checkpoint.sequence
    return handled is not None and number <= handled
