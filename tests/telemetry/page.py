"""The page of Prometheus' text format of this process, as a table of series."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from pumphouse.telemetry.meter import METER
from pumphouse.telemetry.prometheus import page

Series = tuple[str, frozenset[tuple[str, str]]]


def series(name: str, **labels: str) -> Series:
    return name, frozenset(labels.items())


def parse(text: bytes) -> dict[Series, float]:
    return {
        series(sample.name, **sample.labels): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@contextmanager
def recording() -> Iterator[None]:
    """Clients, hubs and processors that are created meanwhile record metrics."""
    METER.is_served = True
    try:
        yield
    finally:
        METER.is_served = False


def forget_totals() -> None:
    """End the series that last as long as the process, unless an object of this test uses them."""
    for metric in METER.metrics:
        for each in METER.series(metric):
            if each.uses == 0:
                METER._series[metric.name].pop(each.key)


def scrape(name: str = "", **labels: str) -> dict[Series, float]:
    """The series whose name begins so and that have these labels."""
    return {
        (found, given): value
        for (found, given), value in parse(page()).items()
        if found.startswith(name) and labels.items() <= given
    }
