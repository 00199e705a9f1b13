"""The series of an overview."""

from __future__ import annotations

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.lag.exporter import OBSERVED
from pumphouse.lag.poller import next_sequence, pause_s
from pumphouse.lag.series import STATUS, GroupLag, Series, group_series, partition_series
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.processor.admin.overview import MEANING, overview

GROUP = Group("ns", "orders", "counters")


def properties(partition: str, first: int, last: int) -> PartitionProperties:
    return PartitionProperties("orders", partition, first, last, str(last), 0, last < first)


PARTITIONS = [properties("0", 0, 9), properties("1", 5, 24)]


def series_of(*checkpoints: Checkpoint, seconds: dict[str, float | None]) -> Series:
    listing = Listing((Ownership("0", "an\x1bna", 1),))
    current = overview("counters", "orders", PARTITIONS, listing, checkpoints, 30.0)
    return group_series("ns", [GroupLag(current, seconds)])


def values(series: Series, name: str) -> list[float]:
    return [value for value, _ in series.get(f"eventhub_consumergroup_{name}", [])]


def test_every_verdict_has_a_status() -> None:
    assert set(STATUS) == set(MEANING)


def test_sum_and_maximum() -> None:
    done = Checkpoint(GROUP, "0", 6, "6")
    series = series_of(done, seconds={"0": 1.5, "1": 20.0})
    assert values(series, "group_lag") == [3, 20]
    assert values(series, "group_sum_lag") == [23]
    assert values(series, "group_max_lag") == [20]
    assert values(series, "group_max_lag_seconds") == [20.0]
    assert values(series, "group_offset") == [6]  # the other has no checkpoint
    assert values(series, "status") == [1, 3]


def test_what_is_unknown_has_no_series() -> None:
    only_an_offset = Checkpoint(GROUP, "0", None, "6")
    series = series_of(only_an_offset, seconds={"0": None, "1": 20.0})
    assert values(series, "group_lag") == [20]
    assert values(series, "group_lag_seconds") == [20.0]
    for total in ("group_sum_lag", "group_max_lag", "group_max_lag_seconds"):
        assert values(series, total) == []


def test_labels() -> None:
    series = series_of(seconds={}) | partition_series("ns", PARTITIONS)
    for metric in OBSERVED:
        for _, labels in series.get(metric.name, []):
            assert tuple(labels) == metric.labels
    owners = [labels["owner"] for _, labels in series["eventhub_consumergroup_status"]]
    assert owners == ["an\\x1bna", ""]


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (None, 5),  # from the oldest event
        (Checkpoint(GROUP, "1", 9, "9"), 10),
        (Checkpoint(GROUP, "1", 1, "1"), 5),  # retention removed 2 to 4
        (Checkpoint(GROUP, "1", None, "24"), 25),  # at the end
        (Checkpoint(GROUP, "1", None, "7"), None),
    ],
)
def test_the_next_event_of_a_group(checkpoint: Checkpoint | None, expected: int | None) -> None:
    assert next_sequence(properties("1", 5, 24), checkpoint) == expected


def test_a_poll_that_takes_longer_than_the_interval_skips_times() -> None:
    assert pause_s(1.0, 15.0) == 14.0
    assert pause_s(20.0, 15.0) == 10.0
