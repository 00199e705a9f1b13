"""Thresholds from metadata, and values from lags."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import OptionError
from pumphouse.processor.admin.overview import AHEAD, OK, Overview, PartitionRow
from pumphouse.scaler.decisions import (
    LagUnknown,
    Trigger,
    is_active,
    lags_of,
    metric_name,
    metric_value,
    trigger_of,
)

ROW = PartitionRow("0", "a", 1, 9.0, "", 4, 0, 9, 5, None, OK)


def test_the_metadata() -> None:
    assert trigger_of({"scalerAddress": "scaler:6000"}) == Trigger("$Default", 1000, 0)
    metadata = {"consumerGroup": "bill.2", "lagThreshold": "50", "activationLagThreshold": "9"}
    assert trigger_of(metadata) == Trigger("bill.2", 50, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lagThreshold", "0"),
        ("lagThreshold", "-5"),
        ("lagThreshold", "1.5"),
        ("lagThreshold", ""),
        ("lagThreshold", "٣"),
        ("lagThreshold", "1000000000001"),
        ("activationLagThreshold", "many"),
        ("consumerGroup", ""),
        ("consumerGroup", "other/hub"),
        ("consumerGroup", "a\nb"),
        ("consumerGroup", "-a"),
        ("consumerGroup", "a" * 51),
    ],
)
def test_an_invalid_value_is_named(key: str, value: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"invalid {key} {value!r}: use ")):
        trigger_of({key: value})


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(OptionError) as error:
        trigger_of({"lagThreshold": "9" * 100_000})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("lags", "threshold", "value"),
    [
        ((0, 0), 10, 0),
        ((3, 4), 10, 7),
        ((10, 10), 10, 20),
        ((500, 0), 10, 20),  # one host per partition is enough
        ((10**15,), 10**12, 10**12),
    ],
)
def test_the_value_is_the_lag_up_to_one_host_per_partition(
    lags: tuple[int, ...], threshold: int, value: int
) -> None:
    assert metric_value(lags, Trigger("g", threshold)) == value


@given(st.lists(st.integers(0, 10**15), min_size=1), st.integers(1, 10**12))
def test_keda_never_requests_more_hosts_than_partitions(lags: list[int], threshold: int) -> None:
    value = metric_value(lags, Trigger("g", threshold))
    assert -(-value // threshold) <= len(lags)
    assert (value > 0) == is_active(lags, Trigger("g", threshold))


def test_active_is_more_than_the_activation_threshold() -> None:
    trigger = Trigger(activation_threshold=5)
    assert [is_active((lag, 2), trigger) for lag in (0, 3, 4)] == [False, False, True]


def test_an_unknown_lag_has_no_value() -> None:
    unknown = replace(ROW, partition="1", lag=None)
    with pytest.raises(LagUnknown, match="partition 1 of consumer group 'g' is unknown"):
        lags_of(Overview("g", "orders", (ROW, unknown), ()))
    with pytest.raises(LagUnknown, match="no partitions"):
        lags_of(Overview("g", "orders", (), ()))


def test_every_event_of_a_hub_that_was_created_again_waits() -> None:
    ahead = replace(ROW, checkpoint=99, lag=0, status=AHEAD)
    empty = replace(ahead, end=-1)
    assert lags_of(Overview("g", "orders", (ROW, ahead, empty), ())) == (5, 10, 0)


@pytest.mark.parametrize(
    ("group", "name"),
    [("$Default", "pumphouse-lag-default"), ("Bill.2_b", "pumphouse-lag-bill-2-b")],
)
def test_the_name_of_the_metric(group: str, name: str) -> None:
    assert metric_name(group) == name
