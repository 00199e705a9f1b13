"""Metrics of streaming queries.

    progress of Spark -> QueryMetricsListener -> QueryMetrics -> telemetry
                         ^^^^^^^^^^^^^^^^^^^^    ^^^^^^^^^^^^ this module

`session()` installs the listener. The lag is that of `EventHubsLagListener`. Nothing else is
recorded unless metrics can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pumphouse.spark.lag.known_positions import Lag
from pumphouse.spark.lag.listener import EventHubsLagListener, log_lag
from pumphouse.telemetry.definitions import (
    SPARK_BATCH_SECONDS,
    SPARK_INPUT_ROWS,
    SPARK_LAG_EVENTS,
    SPARK_LAG_SECONDS,
    SPARK_STATE_ROWS,
    SPARK_WATERMARK_DELAY,
    Metric,
)
from pumphouse.telemetry.meter import (
    Labels,
    Series,
    add_source,
    close_series,
    is_on,
    open_series,
    remove_source,
)

OBSERVED = (
    SPARK_LAG_EVENTS,
    SPARK_LAG_SECONDS,
    SPARK_INPUT_ROWS,
    SPARK_WATERMARK_DELAY,
    SPARK_STATE_ROWS,
)


@dataclass(slots=True)
class QueryState:
    """What the last progress of a query contains, and the rows of all."""

    name: str
    rows: int = 0
    watermark_delay_s: float | None = None
    state_rows: Mapping[str, int] = field(default_factory=dict)  # by operator
    lags: dict[str, Lag] = field(default_factory=dict)  # by hub
    batches: dict[str, Series] = field(default_factory=dict)  # by phase

    def batch(self, phase: str) -> Series:
        """The durations of one phase of the batches."""
        if phase not in self.batches:
            labels = {"query": self.name, "phase": phase}
            self.batches[phase] = open_series(SPARK_BATCH_SECONDS, labels)
        return self.batches[phase]


class QueryMetrics:
    """The state of all queries that run; a query that has ended has no series."""

    def __init__(self) -> None:
        self.queries: dict[str, QueryState] = {}

    def record(self, progress: Mapping[str, Any]) -> None:
        state = self._state(str(progress["id"]), progress.get("name"))
        state.rows += int(progress.get("numInputRows") or 0)
        state.watermark_delay_s = watermark_delay_s(progress)
        state.state_rows = state_rows(progress)
        for phase, milliseconds in progress.get("durationMs", {}).items():
            state.batch(phase).record(milliseconds / 1000)

    def record_lag(self, lag: Lag) -> None:
        self._state(lag.query, lag.name).lags[lag.hub] = lag

    def forget(self, query: str) -> None:
        state = self.queries.pop(query, None)
        if state is not None:
            close_series(*state.batches.values())

    def _state(self, query: str, name: str | None) -> QueryState:
        # Two queries without a name must not share a series.
        return self.queries.setdefault(query, QueryState(name or query))

    def observe(self, metric: Metric) -> Iterator[tuple[float, Labels]]:
        for state in list(self.queries.values()):
            yield from values_of(state, metric)


def values_of(state: QueryState, metric: Metric) -> Iterator[tuple[float, Labels]]:
    query = {"query": state.name}
    if metric is SPARK_INPUT_ROWS:
        yield state.rows, query
    elif metric is SPARK_WATERMARK_DELAY and state.watermark_delay_s is not None:
        yield state.watermark_delay_s, query
    elif metric is SPARK_STATE_ROWS:
        for operator, rows in list(state.state_rows.items()):
            yield rows, {**query, "operator": operator}
    elif metric in (SPARK_LAG_EVENTS, SPARK_LAG_SECONDS):
        for lag in list(state.lags.values()):
            for partition in lag.partitions:
                labels = {**query, "eventhub": lag.hub, "partition": partition.partition}
                value = partition.events if metric is SPARK_LAG_EVENTS else partition.seconds
                if value is not None:
                    yield value, labels


def state_rows(progress: Mapping[str, Any]) -> dict[str, int]:
    """The rows of each operator with state, named by its number and kind."""
    operators = progress.get("stateOperators") or ()
    return {
        f"{number}-{operator.get('operatorName', 'state')}": int(operator.get("numRowsTotal", 0))
        for number, operator in enumerate(operators)
    }


def watermark_delay_s(progress: Mapping[str, Any]) -> float | None:
    """From the watermark to the start of the batch; None without a watermark."""
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if not watermark or not progress.get("timestamp"):
        return None
    at = parse_time(watermark)
    # Before the first event the watermark is the beginning of 1970.
    return None if at.year == 1970 else (parse_time(progress["timestamp"]) - at).total_seconds()


def parse_time(text: str) -> datetime:
    """A time of Spark's progress: `2026-11-18T12:00:00.000Z`."""
    return datetime.fromisoformat(text).astimezone(UTC)


class QueryMetricsListener(EventHubsLagListener):
    """Records the metrics of every streaming query of the session."""

    only_lag = False

    def __init__(self) -> None:
        self.metrics = QueryMetrics()
        super().__init__(self._record_lag)
        add_source(self.metrics, *OBSERVED)

    def onQueryProgress(self, event: Any) -> None:
        super().onQueryProgress(event)
        if is_on():
            self.metrics.record(json.loads(event.progress.json))

    def _record_lag(self, lag: Lag) -> None:
        log_lag(lag)
        if is_on():
            self.metrics.record_lag(lag)

    def onQueryTerminated(self, event: Any) -> None:
        super().onQueryTerminated(event)
        self.metrics.forget(str(event.id))

    def close(self) -> None:
        """End all series."""
        remove_source(self.metrics)
