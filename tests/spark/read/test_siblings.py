"""Tasks of one batch that read the same partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pumphouse.errors import ReaderEvicted
from pumphouse.spark import source
from pumphouse.spark.driver.base import TaskPartition
from pumphouse.spark.read import task as read_task
from pumphouse.spark.read.connections import connections
from pumphouse.spark.read.siblings import (
    BATCH_EPOCH,
    LONGEST_WAIT_S,
    STEP_MS,
    TaskOrigin,
    is_sibling,
    other_reader,
    query_of,
    task_epoch,
    wait_s,
)
from pumphouse.spark.versions.features import SHARING
from tests.growth import assert_linear
from tests.spark.conftest import Hub
from tests.spark.support.readers import Run, both_drivers, count_rows

RNG = Random(1)
QUERY = "41c83318-bdb3-450d-a84d-a449b8a4a06c"
RUN = "09b48ed3-a7e2-4b15-9b04-49e54b15af3d"
HOURS_MS = 3_600_000


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


def evicted(new: str, old: str) -> ReaderEvicted:
    text = (
        f"New receiver '{new}' with higher epoch of '7' is created hence current receiver '{old}' "
        "with epoch '6' is getting disconnected."
    )
    return ReaderEvicted("amqp:link:stolen", text, 7)


def refused(present: str, new: str) -> ReaderEvicted:
    text = (
        f"Receiver '{present}' with a higher epoch '7' already exists. Receiver '{new}' with epoch "
        "6 cannot be created."
    )
    return ReaderEvicted("amqp:link:stolen", text, 7)


def test_a_later_task_has_a_lower_epoch_and_a_later_attempt_or_batch_a_higher_one() -> None:
    now = task_epoch(BATCH_EPOCH, 0, 0, RNG)
    later = [task_epoch(BATCH_EPOCH, 0, ms, RNG) for ms in (STEP_MS, 10 * STEP_MS, HOURS_MS)]
    assert [now, *later] == sorted([now, *later], reverse=True)
    assert len({now, *later}) == 4
    assert task_epoch(BATCH_EPOCH, 1, HOURS_MS, RNG) > now
    assert min(later) > BATCH_EPOCH
    assert task_epoch(BATCH_EPOCH, 99, 0, RNG) < 2 * BATCH_EPOCH
    assert task_epoch(0, 0, -5, RNG) < BATCH_EPOCH  # the clocks of machines differ


def test_chance_orders_the_tasks_of_a_batch_that_runs_for_a_day() -> None:
    epochs = {task_epoch(0, 0, 24 * HOURS_MS, RNG) for _ in range(50)}
    assert len(epochs) > 40
    assert max(epochs) < task_epoch(0, 0, 6 * HOURS_MS, RNG)


def test_the_other_reader_is_found_in_linear_time() -> None:
    unit = "New receiver '"
    assert_linear(
        other_reader,
        lambda size: ReaderEvicted("amqp:link:stolen", unit * (size // len(unit))),
        500,
    )


def test_the_other_reader_is_found_in_the_description_of_the_hub() -> None:
    assert other_reader(evicted("new", "old")) == "new"
    assert other_reader(refused("present", "new")) == "present"
    assert other_reader(ReaderEvicted("amqp:link:stolen", "gone")) == ""
    assert is_sibling(evicted("mine", "mine"), "mine")
    assert is_sibling(refused("mine", "mine"), "mine")
    assert not is_sibling(evicted("other", "mine"), "mine")
    assert not is_sibling(refused("other", "mine"), "mine")
    assert not is_sibling(ReaderEvicted("amqp:link:stolen", "gone"), "")


def test_readers_are_named_by_query_run_and_batch() -> None:
    name = TaskOrigin(QUERY, RUN, "1234567").reader_name("spark")
    assert name == f"spark-{QUERY}-09b48ed3-1234567"
    assert len(name) <= 64
    assert query_of(name) == QUERY
    assert TaskOrigin().reader_name("spark-x") == "spark-x"
    assert query_of("spark-x") == ""


def test_the_wait_grows_up_to_a_limit() -> None:
    assert STEP_MS / 1000 < wait_s(0, RNG) < wait_s(3, RNG) < wait_s(999, RNG)
    assert wait_s(999, RNG) <= 1.2 * LONGEST_WAIT_S


@both_drivers
def test_tasks_of_one_batch_read_the_same_partition_at_the_same_time(hub: Hub, driver: str) -> None:
    hub.send(*["x" * 1000] * 5000, partition="0")
    with Run(hub, driver=driver, arrowBatchRows="100") as run:
        start = run.offset = run.reader.initialOffset()
        (task,) = run.plan(5000)
        (again,) = run.reader.driver.tasks(start, run.offset, run.reader.columns)  # another scan
        assert again.task.epoch == task.task.epoch
        with ThreadPoolExecutor(4) as threads:
            reads = [
                threads.submit(count_rows, run.reader, each) for each in (task, again, task, again)
            ]
            assert [read.result() for read in reads] == [Counter({"0": 5000})] * 4


def test_a_task_fails_if_its_sibling_never_ends(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.send("a", partition="0")
    monkeypatch.setattr(read_task, "SIBLING_S", 0.5)
    with Run(hub) as run:
        (task,) = run.plan()
        reading = run.reader.read(task)
        next(reading)  # attached, and not finished
        late = replace(task.task, planned_ms=task.task.planned_ms - 60_000)
        with pytest.raises(Exception, match=r"partition 0: another task of this batch has read it"):
            list(run.reader.read(TaskPartition(late)))
        assert list(reading) == []


@pytest.mark.needs(SHARING)
def test_tasks_of_a_tenant_read_the_same_partition_at_the_same_time(
    hub: Hub, tmp_path: Path
) -> None:
    hub.send(*["x" * 1000] * 3000, partition="0")
    shared = {"assignment": "steady", "store": f"sqlite:///{tmp_path}/leases.db"}
    with Run(hub, cycleInterval="1s", arrowBatchRows="100", **shared) as run:
        (task,) = run.plan(5000)
        with ThreadPoolExecutor(3) as threads:
            reads = [threads.submit(count_rows, run.reader, task) for _ in range(3)]
            assert [read.result() for read in reads] == [Counter({"0": 3000})] * 3
