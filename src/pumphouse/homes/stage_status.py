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
WELL_AFTER_S: Final = 60.0  # who ran for so long has got over the last failure
WHY_MAX: Final = 300  # characters of an error
# Here Spark goes on to describe the query, with words of its own.
_DESCRIPTION = "=== Streaming Query ==="
_CALLING = re.compile(r"^An error occurred while calling \S+\n: ")
_INTRODUCTION = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
_RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Timeout|\w)\w*: \S", re.MULTILINE)

STARTING, RUNNING, WAITING, STOPPED = "starting", "running", "waiting", "stopped"


@dataclass(frozen=True, slots=True)
class StageState:
    """What a stage has been through."""

    state: str = STARTING
    since_s: float = 0.0  # when it came into this state
    restarts: int = 0
    in_a_row: int = 0  # failures since it was last well
    error: str | None = None

    def started(self, now_s: float) -> StageState:
        return replace(self, state=RUNNING, since_s=now_s)

    def failed(self, why: str, now_s: float) -> StageState:
        well = self.state == RUNNING and now_s - self.since_s >= WELL_AFTER_S
        return StageState(
            WAITING, now_s, self.restarts + 1, 1 if well else self.in_a_row + 1, error=why
        )

    def stopped(self, now_s: float) -> StageState:
        return replace(self, state=STOPPED, since_s=now_s)

    @property
    def wait_s(self) -> float:
        """Before the next start: twice as long each time."""
        return min(WAIT_MAX_S, FIRST_WAIT_S * float(2 ** max(0, self.in_a_row - 1)))


def why(failed: BaseException) -> str:
    """The reason in a line. Spark wraps a Python error in pages of where it passed."""
    text = _CALLING.sub("", str(failed).partition(_DESCRIPTION)[0].strip())
    raised = [line for line in text.splitlines() if _RAISED.match(line)]
    python = [line for line in raised if not line.startswith(("org.", "java.", "Caused by"))]
    line = (python or raised or text.splitlines() or [""])[-1 if python else 0].strip()
    told = _INTRODUCTION.sub("", line) or type(failed).__name__
    return told if len(told) <= WHY_MAX else f"{told[:WHY_MAX]}..."


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage after its last batch. Rates are rows per second."""

    batch: int | None = None
    rows: int = 0  # of that batch
    input_rate: float = 0.0
    processed_rate: float = 0.0
    batch_ms: int = 0
    # Of each hub, how many events of all time it has behind it: the hub's own count less this is
    # what waits now. The lag is of the moment at which the batch was planned.
    taken: Mapping[str, int] = field(default_factory=dict)
    lag_events: int | None = None
    lag_s: float | None = None
    state_rows: int = 0
    state_bytes: int = 0
    counts: Mapping[str, Any] = field(default_factory=dict)


class ProgressReader:
    """Follows the progress of one stage: what its sources told is remembered, to know the lag."""

    def __init__(self) -> None:
        self._memories: dict[str, PositionHistory] = {}

    def seen(self, progress: Mapping[str, Any]) -> StageProgress:
        lags: list[PartitionLag] = []
        taken: dict[str, int] = {}
        for source in progress_of_sources(progress):
            taken[source.hub] = sum(source.end.values())
            memory = self._memories.setdefault(source.hub, PositionHistory())
            memory.learn(source.marks)
            lags += partition_lags(source, memory)
        seconds = [one.seconds for one in lags if one.seconds is not None]
        states = progress.get("stateOperators", ())
        return StageProgress(
            batch=int(progress["batchId"]),
            rows=int(progress.get("numInputRows") or 0),
            input_rate=rate(progress, "inputRowsPerSecond"),
            processed_rate=rate(progress, "processedRowsPerSecond"),
            batch_ms=int(progress.get("durationMs", {}).get("triggerExecution", 0)),
            taken=taken,
            lag_events=sum(one.events for one in lags) if lags else None,
            lag_s=round(max(seconds), 3) if lags and len(seconds) == len(lags) else None,
            state_rows=sum(int(one.get("numRowsTotal", 0)) for one in states),
            state_bytes=sum(int(one.get("memoryUsedBytes", 0)) for one in states),
        )


def rate(progress: Mapping[str, Any], name: str) -> float:
    """Spark writes NaN and Infinity where it has divided by nothing."""
    found = progress.get(name)
    number = float(found) if isinstance(found, int | float) else 0.0
    return round(number, 1) if 0 <= number < 1e12 else 0.0


def stage_report(past: StageState, look: StageProgress) -> dict[str, Any]:
    """What the status says of one stage."""
    told = {"state": past.state, "restarts": past.restarts, "error": past.error}
    return {**told, **asdict(look)}


def report(
    stages: Mapping[str, tuple[StageState, StageProgress]], now_ms: int, **more: object
) -> dict[str, Any]:
    """The status as a whole."""
    told = {name: stage_report(*one) for name, one in stages.items()}
    return {"v": VERSION, "at": now_ms, **more, "stages": told}


def line(name: str, past: StageState, look: StageProgress) -> str:
    """A stage in a line: `sift running batch=12 in=8,333/s done=21,000/s 812ms behind=0`."""
    words = [name, past.state]
    if look.batch is not None:
        words += [f"batch={look.batch}", f"in={look.input_rate:,.0f}/s"]
        words += [f"able={look.processed_rate:,.0f}/s", f"took={look.batch_ms}ms"]
    if look.lag_events is not None:
        words.append(f"behind={look.lag_events:,}")
    if look.lag_s:
        words.append(f"({look.lag_s:.1f}s)")
    if past.restarts:
        words.append(f"restarts={past.restarts}")
    return " ".join(words)
