"""How much a batch takes without a limit, and with a limit in bytes. Readers without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.spark import source
from pumphouse.spark.driver import hub_state
from pumphouse.spark.driver.batch_size import (
    BATCHES_BETWEEN_TRIALS,
    EVENTS_PER_PARTITION_MAX,
    GROWTH_MAX,
    NO_LIMIT,
    TARGET_S,
    BatchSize,
    MeasuredBatch,
    TriggerTrials,
    adapted,
    measured,
)
from pumphouse.spark.options import EVENTS_PER_PARTITION, Limits
from pumphouse.spark.read.connections import connections
from tests.spark.conftest import Hub
from tests.spark.support.readers import Run

START, END = {"sensors": {"0": 0}}, {"sensors": {"0": 10_000}}


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


def test_the_size_follows_the_time_of_full_batches() -> None:
    assert adapted(1000, MeasuredBatch(1000, TARGET_S)) == 1000
    assert adapted(1000, MeasuredBatch(1000, TARGET_S / 2)) == 2000
    assert adapted(1000, MeasuredBatch(1000, 0.001)) == 1000 * GROWTH_MAX
    assert adapted(1000, MeasuredBatch(1000, 2 * TARGET_S)) == 500
    assert adapted(1000, MeasuredBatch(10, 0.001)) == 1000  # it was not full
    assert adapted(1000, MeasuredBatch(10, 4 * TARGET_S)) == 250


def sizes(trials: TriggerTrials, first: int, per_event_s: float, trigger_s: float) -> list[int]:
    """The sizes of full batches of which reading takes a small part of the time."""
    sizes = [first]
    for _ in range(BATCHES_BETWEEN_TRIALS + 3):
        seconds = max(trigger_s, sizes[-1] * per_event_s)
        batch = MeasuredBatch(sizes[-1], seconds, sizes[-1] * per_event_s / 20)
        sizes.append(max(first, trials.next_size(sizes[-1], batch)))
    return sizes


def test_the_size_grows_though_batches_wait_for_a_slow_trigger() -> None:
    grown = sizes(TriggerTrials(), 1000, per_event_s=0.001, trigger_s=60)
    assert grown[:4] == [1000, 2000, 16_000, 128_000]
    assert all(59_000 <= size <= 75_000 for size in grown[4:])  # what fits between two triggers


def test_a_trial_that_makes_batches_longer_is_taken_back() -> None:
    """A stage after a shuffle takes the time: then reading is a small part of the batch."""
    tried = sizes(TriggerTrials(), 1000, per_event_s=0.06, trigger_s=0)
    assert tried[:3] == [1000, 2000, 1000]
    assert tried.count(2000) == 2  # one more after a pause


def test_without_reports_the_time_from_plan_to_plan_counts() -> None:
    trials = TriggerTrials()
    assert trials.next_size(1000, MeasuredBatch(1000, 2 * TARGET_S)) == 500
    assert measured(5, 10.0, 70.0, None).reading_s is None
    assert measured(5, 10.0, 70.0, 9.0).reading_s is None  # of an earlier batch
    assert measured(5, 10.0, 70.0, 12.0) == MeasuredBatch(5, 60.0, 2.0)


def test_a_small_batch_is_no_reason_to_shrink_if_it_waits_for_its_trigger() -> None:
    trials = TriggerTrials()
    size = 1000
    for _ in range(3):
        size = trials.next_size(size, MeasuredBatch(size, 60.0, 0.5))
    assert trials.next_size(size, MeasuredBatch(10, 60.0, 0.5)) == size
    assert trials.next_size(size, MeasuredBatch(size, 5.0, 0.5)) == 2 * size  # another trigger


def test_the_size_grows_from_batch_to_batch_within_bounds() -> None:
    size = BatchSize(Limits())
    assert size.limit(START, 1, 0) == EVENTS_PER_PARTITION
    size.planned(END, EVENTS_PER_PARTITION, 0)
    assert size.limit(START, 1, 1) == EVENTS_PER_PARTITION  # the batch was not run
    grown = size.limit(END, 1, 2)
    assert grown is not None
    assert grown == 5 * EVENTS_PER_PARTITION
    size.planned(START, grown, 2)
    assert size.limit(START, 1, 99_999) == EVENTS_PER_PARTITION
    size.planned(START, 10**9, 0)
    for _ in range(5):
        size.planned(END, 10**9, 0)
        grown = size.limit(END, 1, 0.1)
    assert grown == EVENTS_PER_PARTITION_MAX


def test_a_run_that_ends_starts_with_a_larger_batch() -> None:
    size = BatchSize(Limits())
    size.run_ends = True
    assert size.limit(START, 2, 0) == 10 * EVENTS_PER_PARTITION


@pytest.mark.parametrize("limits", [Limits(events=5), Limits(events_per_partition=50_000)])
def test_a_limit_of_the_query_is_not_adapted(limits: Limits) -> None:
    assert BatchSize(limits).limit(START, 1, 0) is None


def test_the_limit_of_a_partition_is_not_capped_by_a_default_of_the_trigger(hub: Hub) -> None:
    hub.send(*["x"] * 12_000, partition="0")
    with Run(hub, maxEventsPerPartition="11000", partitions="0") as run:
        assert run.reader.driver.default_limit() == NO_LIMIT
        assert run.batch(NO_LIMIT) == {"0": 11_000}


@pytest.mark.parametrize("limits", [{}, {"maxEventsPerTrigger": "10"}])
def test_the_only_batch_of_a_run_has_no_limit(hub: Hub, limits: dict[str, str]) -> None:
    hub.send(*["x"] * 12_000, partition="0")
    with Run(hub, partitions="0", **limits) as run:
        start = run.reader.initialOffset()
        end = run.reader.driver.latest_offset(start, None, everything=True)
        assert end["sensors"] == {"0": 12_000}


def test_a_backlog_is_read_in_few_batches(hub: Hub) -> None:
    hub.send(*["x"] * 30_000, partition="0")
    with Run(hub, partitions="0") as run:
        sizes = [run.batch(NO_LIMIT)["0"] for _ in range(2)]
    assert sizes == [10_000, 20_000]


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_a_limit_in_bytes_holds_in_the_first_batch(hub: Hub, driver: str) -> None:
    for partition in "01":
        hub.send(*["x" * 10_000] * 500, partition=partition)
    with Run(hub, maxBytesPerTrigger="1m", driver=driver) as run:
        assert 60 < run.batch(NO_LIMIT).total() <= 105
        assert 60 < run.batch(NO_LIMIT).total() <= 105


def test_a_limit_in_bytes_sees_larger_events_after_small_ones(hub: Hub) -> None:
    hub.send(*["x"] * 100, *["x" * 10_000] * 900, partition="0")
    with Run(hub, maxBytesPerTrigger="1m") as run:
        assert run.batch(NO_LIMIT).total() <= 120


def test_a_partition_that_returns_no_events_is_skipped(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_state, "UNRESPONSIVE_S", 0.5)
    monkeypatch.setattr(hub_state, "FROZEN_S", 0.0)
    for partition in "0123":
        hub.send("a", partition=partition)
    fault = hub.embedded.faults.freeze("sensors", "2")
    with Run(hub, unavailablePartitions="skip") as run:
        run.offset = run.reader.initialOffset()
        assert run.batch() == {"0": 1, "1": 1, "3": 1}
        assert run.report()["@unavailable"] == {"2": 0}
        hub.embedded.faults.cancel(fault)
        assert run.batch() == {"2": 1}
