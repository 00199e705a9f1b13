"""Small ranges of a task are requested before the first of them is read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pumphouse.errors import PumphouseError
from pumphouse.spark import source
from pumphouse.spark.driver.base import TaskPartition
from pumphouse.spark.offsets import Span
from pumphouse.spark.read import early
from pumphouse.spark.read import task as read_task
from pumphouse.spark.read.connections import connections
from pumphouse.spark.read.parallel import read_in_parallel
from pumphouse.spark.read.siblings import PROBE
from tests.spark.conftest import Hub
from tests.spark.support.queries import numbered
from tests.spark.support.readers import Run
from tests.spark.support.waiting import until

PARTITIONS = ("0", "1", "2", "3")
EACH = {"0": 5, "1": 5, "2": 5, "3": 5}


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


@pytest.fixture
def run(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A query whose worker has read a batch: so it has an open connection for each partition."""
    for partition in PARTITIONS:
        hub.send(*numbered(15), partition=partition)
    with Run(hub, partitionsPerTask="4") as run:
        assert run.batch(20) == EACH
        open_connections(run, len(PARTITIONS))
        monkeypatch.setattr(read_task, "read_in_parallel", fail)
        yield run


def open_connections(run: Run, number: int) -> None:
    """Open connections until this number is idle: a late thread reuses one of an earlier thread."""
    identity = run.query_run.options.identity
    with ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(connections.borrow(identity))


def fail(*_: Any) -> Any:
    raise AssertionError("the ranges were read by threads")


def readers(hub: Hub) -> int:
    """How many readers the hub has, without the probe of the driver."""
    partitions = hub.embedded.namespace.hub(hub.name).partitions
    links: list[Any] = [link for each in partitions for link in each.readers.get("$default", [])]
    return sum(not link.reader.name.startswith(PROBE) for link in links)


def only(tasks: list[TaskPartition]) -> TaskPartition:
    (task,) = tasks
    return task


def test_all_ranges_are_requested_before_the_first_is_read(run: Run, hub: Hub) -> None:
    batches = run.reader.read(only(run.plan(20)))
    first = next(batches)
    until(lambda: readers(hub) == len(PARTITIONS))
    rows = [row for batch in (first, *batches) for row in batch.to_pylist()]
    assert [(row["partition"], row["sequenceNumber"]) for row in rows] == [
        (partition, number) for partition in PARTITIONS for number in range(5, 10)
    ]
    assert run.batch(20) == EACH


def test_at_most_as_many_as_threads_are_requested_at_the_same_time(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in PARTITIONS:
        hub.send(*numbered(10), partition=partition)
    with Run(hub, partitionsPerTask="4", threadPoolSize="2") as run:
        assert run.batch(20) == EACH
        assert connections.count_idle(run.query_run.options.identity) <= 2
        open_connections(run, 2)
        monkeypatch.setattr(read_task, "read_in_parallel", fail)
        batches = run.reader.read(only(run.plan(20)))
        first = next(batches)
        until(lambda: readers(hub) == 2)
        assert sum(batch.num_rows for batch in batches) + first.num_rows == 20


def test_a_request_that_fails_is_repeated(run: Run, hub: Hub) -> None:
    hub.embedded.faults.detach(hub=hub.name, times=3)
    assert run.batch(20) == EACH


def test_connections_that_broke_while_they_were_idle_are_opened_again(run: Run) -> None:
    identity = run.query_run.options.identity
    taken = [connections.take_idle(identity) for _ in PARTITIONS]
    for client in taken:
        assert client is not None
        stream: Any = client.connection.stream
        stream.shutdown(socket.SHUT_RDWR)
        connections._put(identity, client)
    assert run.batch(20) == EACH


def test_ranges_that_are_given_up_leave_no_reader(run: Run, hub: Hub) -> None:
    batches: Any = run.reader.read(only(run.plan(20)))
    next(batches)
    batches.close()
    until(lambda: readers(hub) == 0)


def test_a_reader_that_evicts_a_requested_range_is_reported(
    run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = run.reader.read(only(run.plan(20)))
    rows = next(batches).num_rows
    monkeypatch.setattr(read_task, "read_in_parallel", read_in_parallel)
    with Run(hub, partitionsPerTask="4") as newer:
        list(newer.reader.read(only(newer.plan(20))))
        with pytest.raises(PumphouseError, match="another reader with a higher epoch"):
            rows += sum(batch.num_rows for batch in batches)
    assert rows < 20


@pytest.mark.parametrize(("events", "small"), [(1, True), (early.EVENTS_MAX, False)])
def test_only_small_ranges_are_requested_early(events: int, small: bool) -> None:
    assert early.is_small((Span("0", 0, events), Span("1", 7, 8))) is small
