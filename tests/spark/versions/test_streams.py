"""The calls of the versions without limits, in the order in which Spark 4.0 and 4.1 make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pumphouse.spark.driver.base import SourceDriver
from pumphouse.spark.source import StreamReader
from pumphouse.spark.versions.streams import CallsWithoutLimits
from tests.spark.conftest import Hub
from tests.spark.support.queries import numbered
from tests.spark.support.readers import SCHEMA, count_rows, options_for

EARLIEST = {"startingPosition": "earliest"}


class OldStream(CallsWithoutLimits):
    """A stream as Spark 4.0 sees it, and one batch after another."""

    def __init__(self, hub: Hub, **options: str) -> None:
        self.reader = StreamReader(options_for(hub, **EARLIEST | options), SCHEMA)
        self.options, self.columns = self.reader.options, self.reader.columns

    @property
    def driver(self) -> SourceDriver:
        return self.reader.driver

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reader.read(partition)

    def count(self, start: dict[str, Any], end: dict[str, Any]) -> int:
        return sum(count_rows(self, task).total() for task in self.partitions(start, end))

    def first_batch(self) -> tuple[dict[str, Any], int]:
        """The end of the first batch of a query, and its rows."""
        end = self.latestOffset()
        return end, self.count(self.initialOffset(), end)

    def restart(self, end: dict[str, Any]) -> None:
        assert self.count(end, end) == 0

    def next_batch(self, start: dict[str, Any]) -> tuple[dict[str, Any], int]:
        end = self.latestOffset()
        return end, 0 if end == start else self.count(start, end)


def test_the_first_batch_of_a_run_reads_everything_and_the_next_ones_up_to_the_limit(
    hub: Hub,
) -> None:
    hub.send(*numbered(50), partition="0")
    first = OldStream(hub, maxEventsPerTrigger="20")
    end, rows = first.first_batch()
    assert rows == 50
    assert first.latestOffset() == end
    hub.send(*numbered(30), partition="1")
    end, rows = first.next_batch(end)
    assert rows == 20
    first.reader.stop()
    hub.send(*numbered(30), partition="2")
    second = OldStream(hub, maxEventsPerTrigger="20")
    second.restart(end)
    end, rows = second.next_batch(end)
    assert rows == 10 + 30
    second.reader.stop()


def test_limits_apply_to_the_first_batch_on_request(hub: Hub) -> None:
    hub.send(*numbered(50), partition="0")
    stream = OldStream(hub, maxEventsPerTrigger="20", firstBatch="limited")
    end, rows = stream.first_batch()
    assert rows == 20
    counts = []
    while rows:
        end, rows = stream.next_batch(end)
        counts.append(rows)
    assert counts == [20, 10, 0]
    stream.reader.stop()


def test_a_repeated_first_batch_starts_where_it_started_before(hub: Hub) -> None:
    """The newest position moves, and Spark journals no start for the first batch."""
    first = OldStream(hub, startingPosition="latest")
    initial = first.initialOffset()
    hub.send(*numbered(5), partition="0")
    first.driver.run.hub_state.refresh()  # type: ignore[attr-defined]
    end = first.latestOffset()
    assert first.count(initial, end) == 5
    first.reader.stop()
    second = OldStream(hub, startingPosition="latest")
    assert second.count(second.initialOffset(), end) == 5
    second.restart(end)
    assert second.next_batch(end) == (end, 0)
    second.reader.stop()


def test_the_first_batch_of_several_hubs_reads_everything(hub: Hub) -> None:
    hub.embedded.create_hub("doors", 2)
    doors = Hub(hub.embedded, "doors")
    hub.send(*numbered(15), partition="0")
    doors.send(*numbered(15), partition="1")
    stream = OldStream(hub, name="sensors,doors", maxEventsPerTrigger="20")
    end, rows = stream.first_batch()
    assert rows == 30
    hub.send(*numbered(15), partition="0")
    doors.send(*numbered(15), partition="1")
    end, rows = stream.next_batch(end)
    assert rows == 20
    assert stream.next_batch(end)[1] == 10
    stream.reader.stop()
