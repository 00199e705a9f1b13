"""The series of this process as instruments of OpenTelemetry, for the application's MeterProvider.

Counters and gauges are observed when the provider collects, at no cost before. OpenTelemetry has no
observed histograms: their values are forwarded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from opentelemetry import metrics

from pumphouse.telemetry.definitions import COUNTER, HISTOGRAM, Metric

if TYPE_CHECKING:
    from pumphouse.telemetry.meter import Labels, Meter

SCOPE = "pumphouse"


def has_meter_provider() -> bool:
    """Whether the provider of the application records. The meters of the API do not."""
    return not type(metrics.get_meter(SCOPE)).__module__.startswith(metrics.__name__)


def observe_in_opentelemetry(source: Meter, metric: Metric) -> None:
    """Create the instrument of a counter or gauge."""
    if metric.kind == HISTOGRAM:
        return

    def observe(options: object) -> Iterable[metrics.Observation]:
        return [metrics.Observation(value, dict(labels)) for value, labels in source.values(metric)]

    meter = metrics.get_meter(SCOPE)
    if metric.kind == COUNTER:
        meter.create_observable_counter(metric.name, [observe], metric.unit, metric.meaning)
    else:
        meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.meaning)


@cache
def histogram_of(metric: Metric) -> Callable[[float, Labels], None]:
    histogram = metrics.get_meter(SCOPE).create_histogram(
        metric.name,
        metric.unit,
        metric.meaning,
        explicit_bucket_boundaries_advisory=list(metric.buckets),
    )
    return histogram.record
