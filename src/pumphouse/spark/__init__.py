"""`format("eventhubs")`: a source and a sink for PySpark, without a jar."""

from typing import TYPE_CHECKING, Any

from pumphouse.spark.deduplication import drop_repeats
from pumphouse.spark.lag.known_positions import Lag, PartitionLag
from pumphouse.spark.session import JavaMissing, lags, session

if TYPE_CHECKING:
    from pumphouse.spark.lag.listener import EventHubsLagListener
    from pumphouse.spark.versions.features import SparkTooOld

__all__ = [
    "EventHubsLagListener",
    "JavaMissing",
    "Lag",
    "PartitionLag",
    "SparkTooOld",
    "drop_repeats",
    "lags",
    "session",
]


def __getattr__(name: str) -> Any:
    """Import PySpark, and what needs it, when that is first used."""
    if name == "EventHubsLagListener":
        from pumphouse.spark.lag.listener import EventHubsLagListener

        return EventHubsLagListener
    if name == "SparkTooOld":
        from pumphouse.spark.versions.features import SparkTooOld

        return SparkTooOld
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
