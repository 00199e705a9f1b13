"""The source as Spark sees it: readers of batches and streams.

Spark makes two of each reader: one plans in a process of the driver, the other is pickled and
sent to the tasks. So nothing is opened before Spark first calls a method that plans, and a task
receives everything it needs in its `TaskPartition`.

    Spark -> StreamReader -> SourceDriver     -> TaskPartition -> read_task
    Spark -> BatchReader  -> plan_batch_tasks -> TaskPartition -> read_task
             ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pumphouse.clock import SystemClock, now_ms
from pumphouse.errors import PumphouseError
from pumphouse.leases.store_url import parse_store_url
from pumphouse.spark.driver.base import ColumnSelection, SourceDriver, TaskPartition
from pumphouse.spark.driver.batch_query import plan_batch_tasks
from pumphouse.spark.driver.filters import NO_BOUNDS, read_filters
from pumphouse.spark.driver.secrets import Environment, resolve_options
from pumphouse.spark.driver_factory import open_driver
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.read.columns import check_columns, required_columns
from pumphouse.spark.read.plugins import find_plugin
from pumphouse.spark.read.task import read_task
from pumphouse.spark.several_hubs.calls import call_each
from pumphouse.spark.several_hubs.listing import options_of_hubs
from pumphouse.spark.several_hubs.sources import read_sources
from pumphouse.spark.versions.features import SHARING, require
from pumphouse.spark.versions.filters import passes_filters
from pumphouse.spark.versions.streams import StreamCalls
from pumphouse.spark.worker import (
    end_quietly_without_consumer,
    messages_first,
    showing_message,
)

log = logging.getLogger("pumphouse.spark")

terminating = threading.Event()  # Spark has sent SIGTERM to this process


@messages_first
class BatchReader(DataSourceReader):
    """`spark.read.format("eventhubs")`."""

    def __init__(self, option_texts: dict[str, str], schema: StructType) -> None:
        self.columns = ColumnSelection(check_columns(schema), required_columns(schema))
        self.sources = read_sources(
            resolve_options(option_texts),
            streaming=False,
            now_ms=now_ms(SystemClock()),
            environment=Environment(),
        )
        find_plugin(self.sources.common.reading.metric_plugin)
        self.bounds = NO_BOUNDS

    def partitions(self) -> Sequence[InputPartition]:
        options = options_of_hubs(self.sources)
        hubs = [hub for hub in options if self.bounds.includes_hub(hub)]
        tasks = call_each(
            hubs, lambda hub: plan_batch_tasks(options[hub], self.columns, self.bounds)
        )
        return [task for of_hub in tasks.values() for task in of_hub]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task_partition(partition)


class FilteringReader(BatchReader):
    """A batch reader to which Spark passes the filters of the query."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Narrow the ranges. All filters are returned: Spark applies them to the rows."""
        if self.sources.common.push_filters:
            self.bounds = read_filters(filters)
        return filters


def batch_reader(option_texts: dict[str, str], schema: StructType) -> BatchReader:
    """The reader of a batch query."""
    end_quietly_without_consumer()
    return (FilteringReader if passes_filters() else BatchReader)(option_texts, schema)


@messages_first
class StreamReader(StreamCalls):
    """`spark.readStream.format("eventhubs")`."""

    def __init__(self, option_texts: dict[str, str], schema: StructType) -> None:
        self.columns = ColumnSelection(check_columns(schema), required_columns(schema))
        self.sources = read_sources(
            resolve_options(option_texts),
            streaming=True,
            now_ms=now_ms(SystemClock()),
            environment=Environment(),
        )
        self.options = common = self.sources.common
        if common.tenancy is not None:
            require(SHARING, f"assignment={common.tenancy.assignment}")
        for store in filter(None, (common.store, tenancy_store(common))):
            parse_store_url(store)  # raises if the address of a store is invalid
        find_plugin(common.reading.metric_plugin)
        self._driver: SourceDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_driver": None}

    @property
    def driver(self) -> SourceDriver:
        if self._driver is None:
            self._driver = open_driver(self.sources)
            stop_on_sigterm()
        return self._driver

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task_partition(partition)

    def stop(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            # Spark sends SIGTERM more than once; the next one must not interrupt the close.
            on_sigterm(signal.SIG_IGN)
            driver.close()
        if terminating.is_set() or isinstance(sys.exc_info()[1], EOFError):
            # Spark has closed its end of the socket: its Python runner would only print errors.
            os._exit(0)


class FailedReader(StreamReader):
    """Raises the error of `StreamReader(...)` at the first call.

    If a reader cannot be made, Spark reports a mistake of its own in place of the error.
    """

    def __init__(self, error: PumphouseError) -> None:
        self.error = error
        self._driver = None

    def __getstate__(self) -> dict[str, Any]:
        return {"error": self.error, "_driver": None}

    @property
    def driver(self) -> SourceDriver:
        raise self.error


def stream_reader(option_texts: dict[str, str], schema: StructType) -> StreamReader:
    """The reader of a stream."""
    try:
        return StreamReader(option_texts, schema)
    except PumphouseError as failed:
        return FailedReader(failed)


def read_task_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The events of a task. For an empty batch Spark passes an InputPartition of its own."""
    if isinstance(partition, TaskPartition):
        with showing_message():
            yield from read_task(partition.task)


def tenancy_store(options: SourceOptions) -> str:
    return "" if options.tenancy is None else options.tenancy.store


def stop_on_sigterm() -> None:
    """Spark ends the process of the driver with SIGTERM and does not call stop().

    With this handler the process exits normally and runs stop(), so the readers are closed at
    once.
    """

    def terminate(*_: object) -> None:
        on_sigterm(signal.SIG_IGN)
        terminating.set()
        sys.exit(0)

    on_sigterm(terminate)


def on_sigterm(action: Callable[..., None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, action)
