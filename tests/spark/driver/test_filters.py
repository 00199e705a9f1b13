"""Filters of a batch query narrow what is read."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pumphouse.clock import MovableClock
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark.driver.filters import MARGIN_MS, NO_BOUNDS, Bounds, read_filters
from pumphouse.spark.source import BatchReader, FilteringReader, batch_reader
from tests.spark.conftest import Hub
from tests.spark.support.readers import SCHEMA, count_rows, options_for

PARTITION, NUMBER, TIME, OFFSET = (
    (name,) for name in ("partition", "sequenceNumber", "enqueuedTime", "offset")
)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], NO_BOUNDS),
        ([EqualTo(PARTITION, "3")], Bounds(frozenset("3"))),
        ([In(PARTITION, ("1", "2")), In(PARTITION, ("2", "3"))], Bounds(frozenset("2"))),
        ([EqualTo(NUMBER, 7)], Bounds(first=7, last=7)),
        ([GreaterThan(NUMBER, 7), LessThan(NUMBER, 12)], Bounds(first=8, last=11)),
        ([GreaterThanOrEqual(NUMBER, 7), LessThanOrEqual(NUMBER, 12)], Bounds(first=7, last=12)),
        ([GreaterThan(NUMBER, 3), GreaterThan(NUMBER, 9)], Bounds(first=10)),
        ([In(NUMBER, (9, 2, 5))], Bounds(first=2, last=9)),
        ([GreaterThan(TIME, NOON)], Bounds(since_ms=NOON_MS - MARGIN_MS)),
        ([LessThan(TIME, NOON)], Bounds(until_ms=NOON_MS + MARGIN_MS)),
        ([EqualTo(TIME, NOON)], Bounds(since_ms=NOON_MS - MARGIN_MS, until_ms=NOON_MS + MARGIN_MS)),
        ([EqualTo(OFFSET, "4096")], Bounds(offset="4096")),
        # Filters that give no bound.
        ([GreaterThan(OFFSET, "4096")], NO_BOUNDS),
        ([EqualTo(OFFSET, "1:2:3")], NO_BOUNDS),
        ([StringStartsWith(PARTITION, "1"), Not(EqualTo(PARTITION, "3"))], NO_BOUNDS),
        ([EqualTo(("properties", "partition"), "3"), EqualTo(("body",), "3")], NO_BOUNDS),
        ([EqualTo(NUMBER, None)], NO_BOUNDS),
    ],
)
def test_filters_give_bounds(filters: list[Filter], bounds: Bounds) -> None:
    assert read_filters(filters) == bounds


def read(hub: Hub, *filters: Filter, **options: Any) -> Counter[str]:
    reader = FilteringReader(options_for(hub, **{"pushFilters": "true", **options}), SCHEMA)
    assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark applies them again
    return sum((count_rows(reader, task) for task in reader.partitions()), Counter[str]())


def test_only_the_ranges_within_the_bounds_are_read(hub: Hub) -> None:
    for partition in "0123":
        hub.send(*"abcdefghij", partition=partition)
    assert read(hub, EqualTo(PARTITION, "2")) == {"2": 10}
    assert read(hub, EqualTo(PARTITION, "9")) == {}
    assert read(hub, GreaterThan(NUMBER, 6)) == dict.fromkeys("0123", 3)
    assert read(hub, EqualTo(PARTITION, "1"), EqualTo(NUMBER, 4)) == {"1": 1}
    assert read(hub, GreaterThan(NUMBER, 6), endingPosition="seq:8") == dict.fromkeys("0123", 1)
    offset = hub.events()["1"][4].offset
    assert read(hub, EqualTo(OFFSET, offset), EqualTo(PARTITION, "1")) == {"1": 1}


def test_without_the_option_everything_is_read(hub: Hub) -> None:
    for partition in "0123":
        hub.send(*"abc", partition=partition)
    expected = dict.fromkeys("0123", 3)
    assert read(hub, EqualTo(PARTITION, "2"), pushFilters="false") == expected


def test_a_filter_on_the_time_narrows_the_range_up_to_a_margin() -> None:
    clock = MovableClock()
    clock.advance(-3600)
    with EmbeddedHub({"sensors": 1}, clock=clock) as embedded:
        hub = Hub(embedded, "sensors")
        times = []
        for _ in range(4):
            hub.send("a", partition="0")
            times.append(datetime.fromtimestamp(clock.now(), UTC))
            clock.advance(600)
        clock.advance(1200)
        assert read(hub, GreaterThanOrEqual(TIME, times[2])) == {"0": 2}
        assert read(hub, LessThanOrEqual(TIME, times[0])) == {"0": 1}
        assert read(hub, EqualTo(TIME, times[1])) == {"0": 1}
        assert read(hub, GreaterThan(TIME, datetime(2099, 1, 1, tzinfo=UTC))) == {}


def test_spark_gets_a_reader_with_filters_only_where_it_passes_them(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(batch_reader(options_for(hub), SCHEMA)) is BatchReader
    monkeypatch.setattr("pumphouse.spark.versions.filters.PUSHES_FILTERS", "sys")
    assert type(batch_reader(options_for(hub), SCHEMA)) is FilteringReader
