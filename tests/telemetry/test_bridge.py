"""An application with a MeterProvider of its own gets all metrics."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pumphouse.telemetry import bridge
from pumphouse.telemetry.definitions import (
    CONSUMED_MESSAGES,
    OPERATION_DURATION,
    OWNED_PARTITIONS,
    SECONDS,
    Metric,
)
from pumphouse.telemetry.meter import Meter

LABELS = {"messaging.system": "eventhubs"}


class Host:
    def observe(self, metric: Metric) -> Any:
        yield 4, {"host": "a"}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader]).get_meter)
    bridge.histogram_of.cache_clear()
    return reader


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    return (
        {}
        if data is None
        else {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
    )


def test_counters_gauges_and_histograms(reader: InMemoryMetricReader) -> None:
    meter, host = Meter(), Host()
    consumed, duration = (meter.open(m, LABELS) for m in (CONSUMED_MESSAGES, OPERATION_DURATION))
    meter.add_source(host, OWNED_PARTITIONS)
    consumed.add(3)
    consumed.add(4)
    duration.record(0.2)
    found = collected(reader)
    assert found.keys() == {CONSUMED_MESSAGES.name, OPERATION_DURATION.name, OWNED_PARTITIONS.name}
    (point,) = found[CONSUMED_MESSAGES.name].data.data_points
    assert (point.value, point.attributes) == (7, LABELS)
    assert found[CONSUMED_MESSAGES.name].data.is_monotonic
    assert found[CONSUMED_MESSAGES.name].unit == "{message}"
    (point,) = found[OPERATION_DURATION.name].data.data_points
    assert (point.sum, point.count, point.attributes) == (0.2, 1, LABELS)
    assert point.explicit_bounds == SECONDS
    (point,) = found[OWNED_PARTITIONS.name].data.data_points
    assert (point.value, point.attributes) == (4, {"host": "a"})


def test_series_that_are_closed_vanish(reader: InMemoryMetricReader) -> None:
    meter = Meter()
    consumed = meter.open(CONSUMED_MESSAGES, LABELS)
    consumed.add(3)
    assert collected(reader)
    meter.close(consumed)
    assert not collected(reader)


def test_metrics_recorded_before_the_import_are_observed_too(reader: InMemoryMetricReader) -> None:
    meter = Meter()
    meter.uses_opentelemetry = False  # as before the import
    consumed, duration = (meter.open(m, LABELS) for m in (CONSUMED_MESSAGES, OPERATION_DURATION))
    consumed.add(3)
    assert not collected(reader)
    meter.uses_opentelemetry = True
    meter.open(CONSUMED_MESSAGES, LABELS | {"error.type": "OSError"})
    duration.record(0.2)
    found = collected(reader)
    assert {point.value for point in found[CONSUMED_MESSAGES.name].data.data_points} == {0, 3}
    assert found[OPERATION_DURATION.name].data.data_points[0].count == 1
