"""What cannot be written: said with the row or the option that is to blame.

Writers are asked as Spark asks them, without a Spark around.
"""

from __future__ import annotations

import socket
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pumphouse.errors import PumphouseError
from pumphouse.spark.read.connections import connections
from pumphouse.spark.sink import batch_writer, stream_writer

from .conftest import Hub
from .runs import both_drivers, given, read_batch, string_of, with_wrong_key

TEXT_MAP = pa.map_(pa.string(), pa.string())


def write(hub: Hub, rows: pa.RecordBatch, **options: str) -> None:
    """As a task of Spark's would."""
    writer = batch_writer(given(hub, **options), from_arrow_schema(rows.schema), overwrite=False)
    writer.write(iter([rows]))


def two(**columns: Any) -> pa.RecordBatch:
    """Two rows with a body, and more."""
    return pa.RecordBatch.from_pydict({"body": ["a", "b"], **columns})


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        (pa.RecordBatch.from_pydict({"x": ["a"]}), {}, "a row needs a column body"),
        (two(body=[1, 2]), {}, "the column body is bigint; it must be string or binary"),
        (two(extra=["1", "2"]), {}, "does not know the column 'extra'"),
        (two(partition=["0", "0"], partitionId=["0", "0"]), {}, "mean the same"),
        (two(partitionKey=["k", "k"]), {"partitionId": "0"}, "row 0 .* has a partition .* and a k"),
        (two(partitionKey=["k", "k"]), {"partitionKey": "k"}, "as an option and as a column"),
        (
            two(partition=[None, "1"], partitionKey=["k", "k"]),
            {},
            r"row 1 of the task has a partition \(1\) and a key \(k\); one excludes the other",
        ),
        (two(body=["a", None]), {}, "row 1 of the task has no body .*; filter such rows out"),
        (
            two(properties=pa.array([[("a", "b")], [("a", None)]], TEXT_MAP)),
            {},
            "row 1 of the task has a null in its properties .*; leave the entry out",
        ),
        (two(body=["a", "b" * 2_000_000]), {}, "row 1 of the task, with a body of 2,000,000"),
        (two(partition=["0", "77"]), {}, r"row 1 of the task to partition 77: .*between 0 and 3"),
        (two(partition=["0", ""]), {}, "row 1 of the task has an empty partition; write null"),
        (
            two(
                body=["long", "b"], properties=pa.array([None, [("a", "x" * 2_000_000)]], TEXT_MAP)
            ),
            {},
            "row 1 of the task, with a body of 1 bytes: an event of 2000026 bytes exceeds",
        ),
        (two(), {"maxBatchBytes": "10"}, "it must be at least 1,024 bytes"),
        (two(), {"name": "nowhere"}, "nowhere.* the option name"),
    ],
)
def test_rows_that_cannot_be_written(
    hub: Hub, rows: pa.RecordBatch, options: dict[str, str], why: str
) -> None:
    with pytest.raises(PumphouseError, match=why):
        write(hub, rows, **options)


@both_drivers
def test_writing_with_a_wrong_key(hub: Hub, driver: str) -> None:
    with pytest.raises(PumphouseError, match=r"signature.* The key is in connectionString") as told:
        write(hub, two(), connectionString=with_wrong_key(hub), driver=driver)
    assert "d3Jvbmc=" not in str(told.value)


@both_drivers
def test_writing_to_a_host_that_does_not_answer(hub: Hub, driver: str) -> None:
    why = r"The host is 127\.0\.0\.1, from connectionString or fullyQualifiedNamespace"
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = string_of(free)
    with pytest.raises(PumphouseError, match=why):
        write(hub, two(), connectionString=gone, driver=driver)


@both_drivers
def test_a_stream_is_told_of_its_place_before_there_are_rows(hub: Hub, driver: str) -> None:
    def start(**options: str) -> object:
        told = given(hub, driver=driver, **options)
        return stream_writer(told, from_arrow_schema(two().schema))

    assert start()
    with pytest.raises(PumphouseError, match=r"signature.* The key is in connectionString"):
        start(connectionString=with_wrong_key(hub))
    with pytest.raises(PumphouseError, match=r"nowhere.* the option name"):
        start(name="nowhere")
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = string_of(free)
    assert start(connectionString=gone)  # it may be back when there are rows


def test_what_is_good_is_written(hub: Hub) -> None:
    """So that the refusals above are for their reasons."""
    write(hub, two(partitionKey=["k", None], properties=pa.array([[("a", "b")], None], TEXT_MAP)))
    try:
        assert read_batch(hub).total() == 2
    finally:
        connections.close()  # a worker would keep them for later
