"""Where Spark finds `format("azure_eventhubs")`: it takes one source of each module pyspark_*.

The same as `format("eventhubs")`, for class paths on which the Scala connector still lies: there
its name wins.
"""

from __future__ import annotations

import pyspark_eventhubs

__all__ = ["DefaultSource"]


class DefaultSource(pyspark_eventhubs.DefaultSource):
    """Events of an event hub, by a name that nobody else has."""

    @classmethod
    def name(cls) -> str:
        return "azure_eventhubs"
