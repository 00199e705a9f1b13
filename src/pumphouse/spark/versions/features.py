"""Features that some versions of Spark 4 lack, and whether the installed one has them.

A feature is found by its name in PySpark, not by a version number: platforms add features to older
versions. The table of docs/spark.md is made of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import pyspark

from pumphouse.errors import PumphouseError


class SparkTooOld(PumphouseError):
    """A feature needs a newer version of Spark."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that some versions of Spark 4 lack."""

    name: str  # as in docs/spark.md
    since: str  # the first version of PySpark
    found_at: str  # module:name in PySpark; it exists if the feature does
    before: str  # what happens in older versions, as in docs/spark.md

    def table_row(self) -> str:
        """Its line in the table of docs/spark.md."""
        return f"| {self.name} | {self.since} | {self.before} |"


LIMITS = Feature(
    "limits of every batch, with every trigger",
    "4.2",
    "pyspark.sql.streaming.datasource:SupportsTriggerAvailableNow",
    "the first batch of a run has no limits (`firstBatch`)",
)
LAG = Feature(
    "lag: `EventHubsLagListener`, `lags`",
    "4.2",
    "pyspark.sql.datasource:DataSourceStreamReader.reportLatestOffset",
    "refused; the metrics of queries have no lag",
)
SHARING = Feature(
    "queries that share a consumer group: `assignment`, `store`",
    "4.2",
    "pyspark.sql.streaming.datasource:SupportsTriggerAvailableNow",
    "refused",
)
FILTERS = Feature(
    "`pushFilters`: batch queries with filters read fewer events",
    "4.1",
    "pyspark.sql.datasource:DataSourceReader.pushFilters",
    "everything is read, and Spark filters it",
)
ARROW_SINK = Feature(
    "streams are written as Arrow batches",
    "4.1",
    "pyspark.sql.datasource:DataSourceStreamArrowWriter",
    "row by row, which is slower",
)
SOME_COLUMNS = Feature(
    "SQL: `INSERT INTO` with a list of columns",
    "4.1",
    # A change of the JVM in the same version.
    "pyspark.sql.datasource:DataSourceStreamArrowWriter",
    "refused by Spark; use `df.write`",
)
STATE = Feature(
    "the pipeline of [homes.md](homes.md), by `transformWithState`",
    "4.1",
    "pyspark.sql.pandas.group_ops:PandasGroupedOpsMixin.transformWithState",
    "refused",
)
PIPELINES = Feature(
    "declarative pipelines (`spark-pipelines`)",
    "4.1",
    "pyspark.pipelines:table",
    "not in Spark",
)
FEATURES = (LIMITS, LAG, SHARING, FILTERS, ARROW_SINK, SOME_COLUMNS, STATE, PIPELINES)


@cache
def has(feature: Feature) -> bool:
    """Whether the installed PySpark has a feature."""
    module, _, path = feature.found_at.partition(":")
    try:
        value: Any = import_module(module)
    except ImportError:
        return False
    for name in path.split("."):
        value = getattr(value, name, None)
    return value is not None


def require(feature: Feature, what: str) -> None:
    """Raise SparkTooOld unless Spark has the feature that `what` needs."""
    if not has(feature):
        raise SparkTooOld(
            f"{what} needs Spark {feature.since} or newer, and this is Spark {pyspark.__version__}"
        )
