"""Records the metrics of the stages in the driver, from the progress that Spark reports.

    progress of every query -> StageMetricsListener -> pumphouse_spark_..., SiftMetrics
                               ^^^^^^^^^^^^^^^^^^^^ this module

Spark calls the listener after every batch, exactly once for each batch that has succeeded. The
metrics of the stage `record` come from its transactions (record/metrics.py).
"""

from __future__ import annotations

from typing import Any

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.sift.metrics import SiftMetrics
from pumphouse.spark.lag.metrics import QueryMetricsListener


class StageMetricsListener(QueryMetricsListener):
    """The metrics of the queries, and those of the readings that `sift` has processed."""

    def __init__(self, kinds: Kinds = DEFAULT) -> None:
        super().__init__()
        self._sift = SiftMetrics(kinds)

    def onQueryProgress(self, event: Any) -> None:
        super().onQueryProgress(event)
        if event.progress.name == sift.NAME:
            self._sift.record(sift.counts(event.progress))

    def close(self) -> None:
        super().close()
        self._sift.close()
