"""Registers `format("azure_eventhubs")`: Spark takes one source of each module named pyspark_*.

It is the same source as `format("eventhubs")`, for class paths that still have the Scala connector:
there the Scala connector takes the name `eventhubs`.
"""

from __future__ import annotations

import pyspark_eventhubs

__all__ = ["DefaultSource"]


class DefaultSource(pyspark_eventhubs.DefaultSource):
    """Events of an event hub, under a name that no other connector has."""

    @classmethod
    def name(cls) -> str:
        return "azure_eventhubs"
