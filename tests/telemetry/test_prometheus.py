"""Metrics in Prometheus' text format, parsed by Prometheus' own client."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pumphouse.telemetry import definitions
from pumphouse.telemetry.definitions import (
    CHECKPOINT_AGE,
    CONNECTIONS,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    METRICS,
    SENT_MESSAGES,
    Metric,
)
from pumphouse.telemetry.meter import Meter
from pumphouse.telemetry.prometheus import metric_name, page
from tests.telemetry.page import parse, series

SYNC = Metric("pumphouse.hub.sync", HISTOGRAM, "s", "A sync.", (), (0.1, 1.0))
LAG = Metric("lag", GAUGE, "", "A lag.", ("partition",))


class Values:
    """A source with values that a test changes."""

    def __init__(self, **values: float) -> None:
        self.values = values

    def observe(self, metric: Metric) -> Any:
        return [(value, {"partition": name}) for name, value in self.values.items()]


@pytest.fixture
def meter() -> Meter:
    return Meter()


def samples(meter: Meter) -> dict[Any, float]:
    return parse(page(meter))


def test_a_counter(meter: Meter) -> None:
    labels = {"messaging.destination.name": "doors"}
    meter.open(SENT_MESSAGES, labels).add(2)
    meter.open(SENT_MESSAGES, labels).add(3)
    name = "messaging_client_sent_messages_total"
    assert samples(meter) == {series(name, messaging_destination_name="doors"): 5}


def test_a_histogram_has_cumulative_buckets(meter: Meter) -> None:
    histogram = meter.open(SYNC, {})
    for seconds in (0.05, 0.1, 0.5, 7.0):  # a bound belongs to its bucket
        histogram.record(seconds)
    name = "pumphouse_hub_sync_seconds"
    assert samples(meter) == {
        series(f"{name}_bucket", le="0.1"): 2,
        series(f"{name}_bucket", le="1.0"): 3,
        series(f"{name}_bucket", le="+Inf"): 4,
        series(f"{name}_count"): 4,
        series(f"{name}_sum"): pytest.approx(7.65),
    }


def test_a_closed_series_vanishes(meter: Meter) -> None:
    first, second = meter.open(SENT_MESSAGES, {"p": "0"}), meter.open(SENT_MESSAGES, {"p": "0"})
    first.add(4)
    assert first is second
    meter.close(first)
    assert list(samples(meter).values()) == [4]  # it was opened twice and closed once
    meter.close(second)
    assert page(meter) == b""
    meter.open(SENT_MESSAGES, {"p": "0"}).add(1)
    assert list(samples(meter).values()) == [1]


def test_a_value_of_a_source_vanishes(meter: Meter) -> None:
    lags = Values(a=5, b=7)
    meter.add_source(lags, LAG)
    assert samples(meter) == {series("lag", partition="a"): 5, series("lag", partition="b"): 7}
    del lags.values["a"]
    assert samples(meter) == {series("lag", partition="b"): 7}
    meter.remove_source(lags)
    assert samples(meter) == {}


def test_sources_are_held_weakly(meter: Meter) -> None:
    lags = Values(a=5)
    meter.add_source(lags, LAG)
    del lags
    gc.collect()
    assert samples(meter) == {}


def test_labels_that_differ_between_series(meter: Meter) -> None:
    meter.open(SENT_MESSAGES, {"hub": "a"}).add(1)
    meter.open(SENT_MESSAGES, {"hub": "b", "error.type": "x"}).add(2)
    name = "messaging_client_sent_messages_total"
    assert samples(meter) == {
        series(name, hub="a", error_type=""): 1,
        series(name, hub="b", error_type="x"): 2,
    }


def test_odd_label_values_are_escaped(meter: Meter) -> None:
    odd = 'a"b\\c\nd'
    meter.open(SENT_MESSAGES, {"hub": odd}).add(1)
    assert samples(meter) == {series("messaging_client_sent_messages_total", hub=odd): 1}


def test_no_metrics_are_an_empty_page(meter: Meter) -> None:
    assert page(meter) == b""


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        (definitions.PROCESS_DURATION, "messaging_process_duration_seconds"),
        (definitions.GROUP_LAG_SECONDS, "eventhub_consumergroup_group_lag_seconds"),
        (SENT_MESSAGES, "messaging_client_sent_messages"),
        (CHECKPOINT_AGE, "pumphouse_processor_checkpoint_age_seconds"),
        (CONNECTIONS, "pumphouse_hub_connections"),
    ],
)
def test_names(metric: Metric, shown: str) -> None:
    assert metric_name(metric) == shown


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_definitions_follow_the_naming_rules(metric: Metric) -> None:
    assert not metric.name.endswith("_total")  # added for Prometheus
    assert metric.unit in ("", "s", "{message}")
    assert (metric.kind == HISTOGRAM) == bool(metric.buckets)
    assert metric.meaning.endswith(".")
    assert metric.kind != COUNTER or metric.unit != "s"
    forbidden = {"key", "home", "home_id", "partition_key", "event"}
    assert not forbidden & set(metric.labels)
