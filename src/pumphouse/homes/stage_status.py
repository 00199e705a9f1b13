"""The state and the progress of a stage: when it restarts, and what the status file contains.

A stage is a Spark query. It can fail: the hub restarts, a database is unavailable, a worker is
killed. It is then restarted with growing delays. Each failure is logged with its cause and the
number of restarts.

    Spark's progress -> ProgressReader -> StageProgress -> status_report -> status.json
    failure -> StageState -> wait_s -> restart
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pumphouse.spark.lag.known_positions import (
    PartitionLag,
    PositionHistory,
    partition_lags,
    progress_of_sources,
)

VERSION: Final = 1
FIRST_WAIT_S: Final = 1.0
WAIT_MAX_S: Final = 30.0
RECOVERED_AFTER_S: Final = 60.0  # a stage that ran this long has recovered
REASON_CHARS_MAX: Final = 300
# After this line of an error text, Spark describes the query.
_DESCRIPTION = "=== Streaming Query ==="
_CALLING = re.compile(r"^An error occurred while calling \S+\n: ")
_INTRODUCTION = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
# Linear also for long lines: what follows each `\w+` is not a letter.
_RAISED = re.compile(r"(?:\w+\.)*\w+: \S")

TRIGGER_MS: Final = "triggerExecution"  # the phase of Spark that contains all others

STARTING, RUNNING, WAITING, STOPPED = "starting", "running", "waiting", "stopped"


@dataclass(frozen=True, slots=True)
class StageState:
    """The state of a stage, and its failures so far."""

    state: str = STARTING
    since_s: float = 0.0  # when this state began
    restarts: int = 0
    in_a_row: int = 0  # failures since the last recovery
    error: str | None = None

    def started(self, now_s: float) -> StageState:
        return replace(self, state=RUNNING, since_s=now_s)

    def failed(self, reason: str, now_s: float) -> StageState:
        recovered = self.state == RUNNING and now_s - self.since_s >= RECOVERED_AFTER_S
        return StageState(
            WAITING, now_s, self.restarts + 1, 1 if recovered else self.in_a_row + 1, error=reason
        )

    def stopped(self, now_s: float) -> StageState:
        return replace(self, state=STOPPED, since_s=now_s)

    @property
    def wait_s(self) -> float:
        """The delay before the restart: doubles with each failure in a row."""
        return min(WAIT_MAX_S, FIRST_WAIT_S * float(2 ** max(0, self.in_a_row - 1)))


def failure_reason(failure: BaseException) -> str:
    """The cause in one line. Spark wraps a Python error in pages of stack traces."""
    text = _CALLING.sub("", str(failure).partition(_DESCRIPTION)[0].strip())
    raised = [line for line in text.splitlines() if _RAISED.match(line)]
    python = [line for line in raised if not line.startswith(("org.", "java.", "Caused by"))]
    line = (python or raised or text.splitlines() or [""])[-1 if python else 0].strip()
    reason = _INTRODUCTION.sub("", line) or type(failure).__name__
    return reason if len(reason) <= REASON_CHARS_MAX else f"{reason[:REASON_CHARS_MAX]}..."


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage after its last batch, with the keys of status.json. Rates are rows per second."""

    batch: int | None = None
    rows: int = 0  # of that batch
    input_rate: float = 0.0
    processed_rate: float = 0.0
    batch_ms: int = 0
    phases_ms: Mapping[str, int] = field(default_factory=dict)  # Spark's durationMs of that batch
    # By hub, the number of events processed since the hub's first event. The number of events sent
    # to the hub, minus this number, is the backlog.
    taken: Mapping[str, int] = field(default_factory=dict)
    lag_events: int | None = None  # lag_events and lag_s are of the time when the batch was planned
    lag_s: float | None = None
    state_rows: int = 0
    state_bytes: int = 0
    # The stage's own counters. `ProgressReader` leaves them empty; stage_runner.py adds them.
    counts: Mapping[str, Any] = field(default_factory=dict)


class ProgressReader:
    """Reads the progress of one stage; keeps the positions of its sources to compute the lag."""

    def __init__(self) -> None:
        self._positions: dict[str, PositionHistory] = {}

    def read(self, progress: Mapping[str, Any]) -> StageProgress:
        lags: list[PartitionLag] = []
        taken: dict[str, int] = {}
        for source in progress_of_sources(progress):
            taken[source.hub] = sum(source.end.values())
            positions = self._positions.setdefault(source.hub, PositionHistory())
            positions.add(source.positions)
            lags += partition_lags(source, positions)
        seconds = [lag.seconds for lag in lags if lag.seconds is not None]
        operators = progress.get("stateOperators", ())
        phases_ms = {name: int(ms) for name, ms in progress.get("durationMs", {}).items()}
        return StageProgress(
            batch=int(progress["batchId"]),
            rows=int(progress.get("numInputRows") or 0),
            input_rate=rate(progress, "inputRowsPerSecond"),
            processed_rate=rate(progress, "processedRowsPerSecond"),
            batch_ms=phases_ms.get(TRIGGER_MS, 0),
            phases_ms=phases_ms,
            taken=taken,
            lag_events=sum(lag.events for lag in lags) if lags else None,
            lag_s=round(max(seconds), 3) if lags and len(seconds) == len(lags) else None,
            state_rows=sum(int(operator.get("numRowsTotal", 0)) for operator in operators),
            state_bytes=sum(int(operator.get("memoryUsedBytes", 0)) for operator in operators),
        )


def rate(progress: Mapping[str, Any], name: str) -> float:
    """A rate of the progress; 0 for NaN and Infinity, which Spark writes for x / 0."""
    value = progress.get(name)
    number = float(value) if isinstance(value, int | float) else 0.0
    return round(number, 1) if 0 <= number < 1e12 else 0.0


def stage_report(state: StageState, progress: StageProgress) -> dict[str, Any]:
    """One stage in the status file."""
    fields = {"state": state.state, "restarts": state.restarts, "error": state.error}
    return {**fields, **asdict(progress)}


def status_report(
    stages: Mapping[str, tuple[StageState, StageProgress]], now_ms: int, **more: object
) -> dict[str, Any]:
    """The contents of the status file."""
    reports = {name: stage_report(*stage) for name, stage in stages.items()}
    return {"v": VERSION, "at": now_ms, **more, "stages": reports}


def status_line(name: str, state: StageState, progress: StageProgress) -> str:
    """A stage in one line: `sift running batch=12 in=8,333/s ... took=812ms lag=0`."""
    words = [name, state.state]
    if progress.batch is not None:
        words += [f"batch={progress.batch}", f"in={progress.input_rate:,.0f}/s"]
        words += [f"capacity={progress.processed_rate:,.0f}/s", f"took={progress.batch_ms}ms"]
    if progress.lag_events is not None:
        words.append(f"lag={progress.lag_events:,}")
    if progress.lag_s:
        words.append(f"({progress.lag_s:.1f}s)")
    if state.restarts:
        words.append(f"restarts={state.restarts}")
    return " ".join(words)
