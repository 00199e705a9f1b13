"""Rows that cannot be written: the error names the row or the option.

Writers are called as Spark calls them, without Spark.
"""

from __future__ import annotations

import socket

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pumphouse.errors import PumphouseError
from pumphouse.spark.options import read_sink
from pumphouse.spark.read.connections import connections
from pumphouse.spark.sink import stream_writer
from pumphouse.spark.write.rows import read_row_format
from pumphouse.spark.write.task import write_rows
from tests.spark.conftest import Hub
from tests.spark.support.readers import (
    both_drivers,
    connection_string_of,
    options_for,
    read_batch,
    with_wrong_key,
)
from tests.spark.write.rows import two_rows, write

TEXT_MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        (pa.RecordBatch.from_pydict({"x": ["a"]}), {}, "the column body .* is missing"),
        (two_rows(body=[1, 2]), {}, "the column body is bigint; it must be string or binary"),
        (two_rows(extra=["1", "2"]), {}, "unknown column 'extra'"),
        (two_rows(partition=["0", "0"], partitionId=["0", "0"]), {}, "mean the same"),
        (
            two_rows(partitionKey=["k", "k"]),
            {"partitionId": "0"},
            "row 0 .* has a partition .* and a k",
        ),
        (two_rows(partitionKey=["k", "k"]), {"partitionKey": "k"}, "as an option and as a column"),
        (
            two_rows(partition=[None, "1"], partitionKey=["k", "k"]),
            {},
            r"row 1 of the task has a partition \(1\) and a key \(k\); set one to null",
        ),
        (two_rows(body=["a", None]), {}, "row 1 of the task has no body .*; filter such rows out"),
        (
            two_rows(properties=pa.array([[("a", "b")], [("a", None)]], TEXT_MAP)),
            {},
            "row 1 of the task has a null in its properties .*; leave the entry out",
        ),
        (two_rows(body=["a", "b" * 2_000_000]), {}, "row 1 of the task, with a body of 2,000,000"),
        (
            two_rows(partition=["0", "77"]),
            {},
            r"row 1 of the task to partition 77: .*between 0 and 3",
        ),
        (two_rows(partition=["0", ""]), {}, "row 1 of the task has an empty partition; write null"),
        (
            two_rows(
                body=["long", "b"], properties=pa.array([None, [("a", "x" * 2_000_000)]], TEXT_MAP)
            ),
            {},
            "row 1 of the task, with a body of 1 bytes: an event of 2000026 bytes exceeds",
        ),
        (
            two_rows(),
            {"maxBatchBytes": "10"},
            "invalid maxBatchBytes '10': use at least 1,024 bytes",
        ),
        (two_rows(), {"name": "nowhere"}, "nowhere.* the option name"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    hub: Hub, rows: pa.RecordBatch, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(PumphouseError, match=reason):
        write(hub, rows, **options)


@both_drivers
def test_writing_with_a_wrong_key_names_the_option(hub: Hub, driver: str) -> None:
    with pytest.raises(
        PumphouseError, match=r"signature.* The key is in connectionString"
    ) as failed:
        write(hub, two_rows(), connectionString=with_wrong_key(hub), driver=driver)
    assert "d3Jvbmc=" not in str(failed.value)


@both_drivers
def test_writing_to_a_host_that_does_not_respond_names_the_option(hub: Hub, driver: str) -> None:
    reason = r"The host is 127\.0\.0\.1, from connectionString or fullyQualifiedNamespace"
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = connection_string_of(free)
    with pytest.raises(PumphouseError, match=reason):
        write(hub, two_rows(), connectionString=gone, driver=driver)


@both_drivers
def test_a_stream_writer_checks_the_hub_before_there_are_rows(hub: Hub, driver: str) -> None:
    def start(**options: str) -> object:
        given = options_for(hub, driver=driver, **options)
        return stream_writer(given, from_arrow_schema(two_rows().schema))

    assert start()
    with pytest.raises(PumphouseError, match=r"signature.* The key is in connectionString"):
        start(connectionString=with_wrong_key(hub))
    with pytest.raises(PumphouseError, match=r"nowhere.* the option name"):
        start(name="nowhere")
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = connection_string_of(free)
    assert start(connectionString=gone)  # it may respond when there are rows


def test_a_task_of_a_checked_query_opens_no_connection_without_rows(hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = connection_string_of(free)
    options = read_sink(options_for(hub, connectionString=gone))
    row_format = read_row_format(from_arrow_schema(two_rows().schema), options)
    for batches in ([], [two_rows().slice(0, 0)]):
        assert write_rows(batches, row_format, options, None, is_checked=True).events == 0


def test_valid_rows_are_written(hub: Hub) -> None:
    """The errors above have the reasons that they name."""
    write(
        hub, two_rows(partitionKey=["k", None], properties=pa.array([[("a", "b")], None], TEXT_MAP))
    )
    try:
        assert read_batch(hub).total() == 2
    finally:
        connections.close()  # a worker process keeps them
