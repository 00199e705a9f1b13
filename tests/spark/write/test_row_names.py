"""The properties that name a row, by which a reader drops duplicates."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pumphouse.spark.write.rows import RowFormat, RowOrigin

FORMAT = RowFormat(None, "partitionKey", "properties", None, None)
TEXT_MAP = pa.map_(pa.string(), pa.string())
ORIGIN = RowOrigin("query", "7", 0)


def names(rows: list[tuple[str, str | None]], origin: RowOrigin | None = ORIGIN) -> list[Any]:
    """The properties of the events of these bodies and keys."""
    bodies, keys = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_pydict(
        {
            "body": bodies,
            "partitionKey": keys,
            "properties": pa.array(
                [[("spark-query-id", "upstream"), ("n", "1")]] * len(rows), TEXT_MAP
            ),
        }
    )
    return [event.properties for _, event in FORMAT.events(batch, 0, origin)]


def test_a_row_has_the_same_name_whenever_its_task_runs() -> None:
    rows = [("a", None), ("b", "k"), ("b", "k")]
    assert names(rows) == names(rows)
    assert len({each["spark-row"] for each in names(rows)}) == 3


def test_rows_in_another_order_have_other_names() -> None:
    """So a reader keeps them all: it must not take one row for another."""
    first, again = names([("a", None), ("b", None)]), names([("b", None), ("a", None)])
    assert not {each["spark-row"] for each in first} & {each["spark-row"] for each in again}
    assert names([("a", "k")])[0]["spark-row"] != names([("a", "l")])[0]["spark-row"]


def test_the_name_of_the_row_that_was_read_is_not_passed_on() -> None:
    assert names([("a", None)], origin=None) == [{"n": "1"}]
    assert names([("a", None)])[0]["spark-query-id"] == "query"
