"""Settings of Spark that a query takes with it when it starts, and that nobody else should have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For queries whose state is few and large values, written anew in every batch.
STATE_SETTINGS = {
    # Only what changed is written at the end of a batch, not a snapshot of all.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The default of 100 batches would be gigabytes; the last ones are enough to go on.
    "spark.sql.streaming.minBatchesToRetain": "5",
}

# A session's settings are shared: two stages that start at once must not mix theirs.
starting = Lock()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """With these settings; a query that starts inside keeps them."""
    with starting:
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, was in before.items():
                if was is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, was)
