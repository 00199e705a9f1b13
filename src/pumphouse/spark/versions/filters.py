"""Whether Spark passes the filters of a batch query to its reader, as each version does it.

Spark 4.1 and newer do, if `spark.sql.python.filterPushdown.enabled` is set. It then makes the
reader in a worker process of its own, and anywhere else refuses a reader that has `pushFilters`.
"""

from __future__ import annotations

import sys

from pumphouse.spark.worker import is_main

PUSHES_FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"


def passes_filters() -> bool:
    """Whether this process is the worker in which Spark passes filters."""
    return PUSHES_FILTERS in sys.modules or is_main(PUSHES_FILTERS)
