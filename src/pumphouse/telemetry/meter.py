"""The series of this process: counters and histograms, and sources that are asked for values.

    client, hub, processor, ... -> series, add_source -> Meter -> prometheus, opentelemetry
                                   ^^^^^^^^^^^^^^^^^^    ^^^^^ this module

A series is created once, for instance by a reader for its partition, and recorded into often:
`record` costs less than a microsecond, where OpenTelemetry's own histogram costs several. It is
closed with the object that it belongs to: the series of a lost partition end. Series that last keep
their totals: a sender may be open for a shorter time than the interval between two scrapes.

Nothing is recorded unless it can be read: `is_on()` is False until `serve_metrics()` is called or
the application has set a MeterProvider. Readers and senders call `is_on()` when they are opened,
hosts and hubs when they start.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet

from pumphouse.telemetry.definitions import HISTOGRAM, Metric

Labels = Mapping[str, str]
Key = tuple[tuple[str, str], ...]

API = "opentelemetry.metrics"


class Source(Protocol):
    """An object whose values are read at each collection, in the thread of the collection.

    It is held weakly: its series end with it.
    """

    def observe(self, metric: Metric) -> Iterable[tuple[float, Labels]]: ...


class Series:
    """One counter or histogram with one set of labels. One thread at a time records into it."""

    __slots__ = (
        "bounds",
        "buckets",
        "forward",
        "key",
        "labels",
        "lasts",
        "metric",
        "total",
        "uses",
    )

    def __init__(self, metric: Metric, labels: Labels) -> None:
        self.metric, self.labels = metric, dict(labels)
        self.key = key_of(labels)
        self.total = 0.0  # of a counter; the sum of a histogram
        self.bounds = metric.buckets
        self.buckets = [0] * (len(metric.buckets) + 1)  # the last one has no bound
        self.uses = 0  # objects that record into it
        self.lasts = False  # whether it stays if nothing uses it
        self.forward: Callable[[float, Labels], None] | None = None  # to OpenTelemetry

    def add(self, value: float = 1) -> None:
        """Count."""
        self.total += value

    def record(self, value: float) -> None:
        """Record a value of a histogram."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value
        if self.forward is not None:
            self.forward(value, self.labels)

    @property
    def count(self) -> int:
        """The number of recorded values."""
        return sum(self.buckets)


class Meter:
    """All series and sources of a process."""

    def __init__(self) -> None:
        self.is_served = False  # whether a page of metrics is served
        self.uses_opentelemetry = True  # if the application has imported its metrics
        self._lock = RLock()
        self._series: dict[str, dict[Key, Series]] = {}
        self._sources: dict[str, WeakSet[Any]] = {}
        self._metrics: dict[str, Metric] = {}
        self._bridge: Callable[[Meter, Metric], None] | None = None

    # -- for those who record ---------------------------------------------------------------------

    def open(self, metric: Metric, labels: Labels, *, lasts: bool = False) -> Series:
        """The series with these labels, until `close` is called as often as this, or for good."""
        with self._lock:
            self._use(metric)
            table = self._series.setdefault(metric.name, {})
            series = table.setdefault(key_of(labels), Series(metric, labels))
            series.uses += 1
            series.lasts |= lasts
            if metric.kind == HISTOGRAM and self._bridge is not None:
                self._bridge_histogram(series)
            return series

    def close(self, *series: Series) -> None:
        with self._lock:
            for each in series:
                each.uses -= 1
                if each.uses == 0 and not each.lasts:
                    self._series[each.metric.name].pop(each.key, None)

    def add_source(self, source: Source, *metrics: Metric) -> None:
        """Ask this source for the values of these metrics, as long as it exists."""
        with self._lock:
            for metric in metrics:
                self._use(metric)
                self._sources.setdefault(metric.name, WeakSet()).add(source)

    def remove_source(self, source: Source) -> None:
        with self._lock:
            for sources in self._sources.values():
                sources.discard(source)

    # -- for those who read -----------------------------------------------------------------------

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that have had a series or a source."""
        with self._lock:
            return list(self._metrics.values())

    def series(self, metric: Metric) -> list[Series]:
        with self._lock:
            return list(self._series.get(metric.name, {}).values())

    def values(self, metric: Metric) -> Iterator[tuple[float, Labels]]:
        """The values of a counter or gauge."""
        for series in self.series(metric):
            yield series.total, series.labels
        with self._lock:
            sources = list(self._sources.get(metric.name, ()))
        for source in sources:
            yield from source.observe(metric)

    # -- OpenTelemetry ----------------------------------------------------------------------------

    @property
    def imports_opentelemetry(self) -> bool:
        """Whether the application has a MeterProvider, or can set one later."""
        return self.uses_opentelemetry and API in sys.modules

    def _use(self, metric: Metric) -> None:
        if self._bridge is None and self.imports_opentelemetry:
            self._begin_bridge()
        if metric.name not in self._metrics:
            self._metrics[metric.name] = metric
            if self._bridge is not None:
                self._bridge(self, metric)

    def _begin_bridge(self) -> None:
        """Also for the metrics that were recorded before the application imported OpenTelemetry."""
        from pumphouse.telemetry.bridge import observe_in_opentelemetry

        self._bridge = observe_in_opentelemetry
        for metric in self._metrics.values():
            self._bridge(self, metric)
            for series in self.series(metric):
                if metric.kind == HISTOGRAM:
                    self._bridge_histogram(series)

    def _bridge_histogram(self, series: Series) -> None:
        from pumphouse.telemetry.bridge import histogram_of

        series.forward = histogram_of(series.metric)


def key_of(labels: Labels) -> Key:
    return tuple(sorted(labels.items()))


METER = Meter()  # of this process


def is_on() -> bool:
    """Whether metrics can be read: they are served, or the application has a MeterProvider."""
    return METER.is_served or (METER.imports_opentelemetry and has_meter_provider())


def may_turn_on() -> bool:
    """Whether metrics can be read, or will be if the application sets a MeterProvider."""
    return METER.is_served or METER.imports_opentelemetry


def has_meter_provider() -> bool:
    """Not if it only imports the API: the SDK for traces imports it too."""
    from pumphouse.telemetry.bridge import has_meter_provider

    return has_meter_provider()


def open_series(metric: Metric, labels: Labels, *, lasts: bool = False) -> Series:
    return METER.open(metric, labels, lasts=lasts)


def close_series(*series: Series) -> None:
    METER.close(*series)


def add_source(source: Source, *metrics: Metric) -> None:
    METER.add_source(source, *metrics)


def remove_source(source: Source) -> None:
    METER.remove_source(source)
