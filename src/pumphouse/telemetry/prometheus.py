"""The series of this process in Prometheus' text format.

Meter -> families -> page -> GET /metrics
         ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from pumphouse.telemetry.definitions import COUNTER, HISTOGRAM, Metric
from pumphouse.telemetry.meter import METER, Labels, Meter, Series

UNITS = {"s": "seconds", "By": "bytes"}
NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


def page(meter: Meter = METER) -> bytes:
    """What Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(_Families(meter))
    return generate_latest(registry)


class _Families(Collector):
    """What `generate_latest` asks for."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def collect(self) -> Iterable[Family]:
        return families(self._meter)

    def describe(self) -> Iterable[Family]:
        return []  # else everything would be collected when it is registered


def families(meter: Meter) -> Iterator[Family]:
    """One family per metric that has a series."""
    for metric in meter.metrics:
        family = (
            histogram_family(metric, meter.series(metric))
            if metric.kind == HISTOGRAM
            else value_family(metric, list(meter.values(metric)))
        )
        if family.samples:
            yield family


def value_family(metric: Metric, values: list[tuple[float, Labels]]) -> Family:
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    keys = label_keys(labels for _, labels in values)
    family = kind(metric_name(metric), metric.meaning, labels=[name_of(key) for key in keys])
    for value, labels in values:
        family.add_metric([labels.get(key, "") for key in keys], value)
    return family


def histogram_family(metric: Metric, table: list[Series]) -> Family:
    keys = label_keys(series.labels for series in table)
    names = [name_of(key) for key in keys]
    family = HistogramMetricFamily(metric_name(metric), metric.meaning, labels=names)
    for series in table:
        values = [series.labels.get(key, "") for key in keys]
        family.add_metric(values, cumulated(series), series.total)
    return family


def label_keys(labels: Iterable[Labels]) -> list[str]:
    """All labels of a family: a series without one of them has it empty."""
    return sorted({key for each in labels for key in each})


def cumulated(series: Series) -> list[tuple[str, float]]:
    """The buckets of Prometheus: each contains all below it."""
    total, buckets = 0, []
    bounds = [*map(str, series.bounds), "+Inf"]
    for bound, count in zip(bounds, series.buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def metric_name(metric: Metric) -> str:
    """Underscores for dots, and the unit at the end."""
    plain, suffix = name_of(metric.name), UNITS.get(metric.unit, "")
    return plain if not suffix or plain.endswith(f"_{suffix}") else f"{plain}_{suffix}"


def name_of(dotted: str) -> str:
    return NOT_A_NAME.sub("_", dotted)
