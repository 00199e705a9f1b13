"""A query after a crash and beside another one. Readers are called as Spark calls them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pumphouse.spark import source
from pumphouse.spark.read.connections import connections
from tests.spark.conftest import Hub
from tests.spark.support.readers import Run, count_rows

LIMIT = 1000


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


def read_between(run: Run, start: dict[str, Any], end: dict[str, Any]) -> dict[str, int]:
    tasks = run.reader.partitions(start, end)
    return dict(sum((count_rows(run.reader, task) for task in tasks), count_rows(run.reader, None)))


# -- after a crash --------------------------------------------------------------------------------


def test_a_start_at_latest_is_the_same_after_a_crash(hub: Hub) -> None:
    """Spark has journalled the first batch and crashed: later events are not skipped."""
    hub.send("old", partition="0")
    with Run(hub, startingPosition="latest") as first:
        start = first.reader.initialOffset()
        hub.send("meanwhile", partition="0")
        journalled = first.reader.driver.latest_offset(start, LIMIT)
    hub.send("after the crash", partition="0")
    with Run(hub, startingPosition="latest") as second:
        new_start = second.reader.initialOffset()
        assert new_start != start
        assert read_between(second, new_start, journalled) == {}
        end = second.reader.driver.latest_offset(journalled, LIMIT)
        assert read_between(second, journalled, end) == {"0": 2}


def test_a_batch_is_replayed_as_it_was_planned(hub: Hub) -> None:
    hub.send(*"abc", partition="0")
    with Run(hub) as first:
        start = first.reader.initialOffset()
        end = first.reader.driver.latest_offset(start, LIMIT)
    hub.send(*"defg", partition="0")
    hub.send("h", partition="1")
    with Run(hub) as second:
        assert read_between(second, start, end) == {"0": 3}


# -- two queries ----------------------------------------------------------------------------------


def test_the_newer_of_two_queries_evicts_the_older(hub: Hub) -> None:
    hub.send("a", partition="0")
    with Run(hub) as older, Run(hub) as newer:
        (mine,), (theirs,) = older.plan(), newer.plan()
        assert theirs.task.epoch > mine.task.epoch
        reading = newer.reader.read(theirs)
        next(reading)  # attached, and not finished
        reason = r"partition 0 of consumer group \$Default has another reader"
        with pytest.raises(Exception, match=reason):
            list(older.reader.read(mine))
        assert sum(batch.num_rows for batch in reading) == 0


def test_epochs_grow_from_batch_to_batch_and_from_run_to_run(hub: Hub) -> None:
    hub.send(*"abc", partition="0")
    epochs = []
    for _ in range(2):
        with Run(hub) as run:
            epochs += [run.plan(1)[0].task.epoch for _ in range(2)]
    assert epochs == sorted(set(epochs))


def test_queries_without_exclusive_receivers_read_side_by_side(hub: Hub) -> None:
    hub.send("a", partition="0")
    with (
        Run(hub, useExclusiveReceiver="false") as one,
        Run(hub, useExclusiveReceiver="false") as other,
    ):
        (mine,), (theirs,) = one.plan(), other.plan()
        assert mine.task.epoch is None
        reading = one.reader.read(mine)
        next(reading)
        assert count_rows(other.reader, theirs) == {"0": 1}
        assert list(reading) == []
