"""`format("eventhubs")`: a source and a sink for PySpark, without a jar."""

from typing import TYPE_CHECKING, Any

from pumphouse.spark.deduplication import drop_repeats
from pumphouse.spark.lag.known_positions import Lag, PartitionLag
from pumphouse.spark.session import JavaMissing, lags, session

if TYPE_CHECKING:
    from pumphouse.spark.lag.listener import EventHubsLagListener

__all__ = [
    "EventHubsLagListener",
    "JavaMissing",
    "Lag",
    "PartitionLag",
    "drop_repeats",
    "lags",
    "session",
]


def __getattr__(name: str) -> Any:
    """Import the listener, and with it PySpark, when it is first used."""
    if name == "EventHubsLagListener":
        from pumphouse.spark.lag.listener import EventHubsLagListener

        return EventHubsLagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
