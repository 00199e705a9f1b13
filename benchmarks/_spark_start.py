"""Starts a streaming query, also on a machine that is too busy for Spark's time limit

For every streaming query that reads from Python, Spark starts a new Python process, which imports
PySpark and then connects back. Spark waits ten seconds for it and then fails the query with "Python
worker failed to connect back". No setting changes this: the limit is a constant, and these
processes neither come from Spark's Python daemon nor are they used again. A busy machine may need
longer for the import.

The query fails while it initializes, before its first batch. It is therefore safe to start it
again, as a supervised pipeline does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TOO_SLOW = "failed to connect back"
INITIALIZING = "Initializing"  # the start of the status of a query that has no source yet
STARTS_MAX = 8
LOOK_S = 0.02


def start_query(
    start: Callable[[], StreamingQuery], sleep: Callable[[float], None] = time.sleep
) -> StreamingQuery:
    """Start a query, and start it again if its Python process was too slow."""
    for _ in range(STARTS_MAX - 1):
        query = start()
        if not was_too_slow(query, sleep):
            return query
    return start()


def was_too_slow(query: StreamingQuery, sleep: Callable[[float], None]) -> bool:
    """Wait until the query has its sources or has failed; whether it has failed for this reason."""
    while query.isActive and query.status["message"].startswith(INITIALIZING):
        sleep(LOOK_S)
    return TOO_SLOW in str(query.exception() or "")
