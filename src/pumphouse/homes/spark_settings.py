"""Spark settings for one query. A query takes the settings that its session has at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For queries with few, large values of state that change in every batch.
STATE_SETTINGS = {
    # The end of a batch writes the changes, not a snapshot of everything.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The default of 100 batches would take gigabytes; the last few are enough to resume.
    "spark.sql.streaming.minBatchesToRetain": "5",
}

# The settings of a session are shared, so two stages must not start at the same time.
settings_lock = Lock()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session; a query started inside keeps them."""
    with settings_lock:
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)
