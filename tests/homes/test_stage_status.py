"""The delays before restarts, and the status of a stage."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.homes import stage_status
from pumphouse.homes.pipeline import PipelineOptions, write_status
from pumphouse.homes.stage_runner import StageRunner
from pumphouse.homes.stage_status import (
    ProgressReader,
    StageProgress,
    StageState,
    failure_reason,
)
from tests.growth import assert_linear


@pytest.mark.parametrize("unit", ["a", "a.", "Error", ": ", "a: "])
def test_the_reason_of_a_long_failure_is_found_in_linear_time(unit: str) -> None:
    """The text comes from Spark, and may have the content of a record."""
    assert_linear(failure_reason, lambda size: ValueError(unit * (size // len(unit))), 5000)


def test_the_delay_doubles_with_each_failure() -> None:
    state, waits = StageState(), []
    for number in range(8):
        state = state.started(number).failed("why", number + 1)
        waits.append(state.wait_s)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert (state.restarts, state.error, state.state) == (8, "why", "waiting")


def test_a_stage_that_ran_for_long_restarts_soon() -> None:
    state = StageState()
    for _ in range(3):
        state = state.started(0.0).failed("why", 1.0)
    assert state.wait_s == 4
    recovered = state.started(10.0).failed("again", 10.0 + stage_status.RECOVERED_AFTER_S)
    assert (recovered.wait_s, recovered.restarts) == (1, 4)
    not_started = state.failed("not even started", 1000.0)
    assert not_started.wait_s == 8


SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
org.apache.spark.SparkException: Job aborted due to stage: Traceback (most recent call last):
  File "worker.py", line 1, in main
pumphouse.errors.ConnectionFailed: cannot connect to 127.0.0.1:1

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: java.lang.RuntimeException: something else
=== Streaming Query ===
Identifier: sift [id = 1, runId = 2]"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SPARK, "pumphouse.errors.ConnectionFailed: cannot connect to 127.0.0.1:1"),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker "
            "failed to connect back. SQLSTATE: XXKST",
            "Python worker failed to connect back. SQLSTATE: XXKST",
        ),
        (
            "An error occurred while calling o7.start.\n: org.apache.spark.SomeException: no such\n"
            "\tat org.apache.spark.sql\nCaused by: java.lang.ClassNotFoundException: x",
            "org.apache.spark.SomeException: no such",
        ),
        ("database is locked", "database is locked"),
        ("", "ValueError"),
        ("x" * 1000, "x" * stage_status.REASON_CHARS_MAX + "..."),
    ],
)
def test_the_failure_reason_is_one_line(text: str, reason: str) -> None:
    assert stage_status.failure_reason(ValueError(text)) == reason


def progress(**more: Any) -> dict[str, Any]:
    ends, latest = {"sensors": {"0": 90}}, {"sensors": {"0": 100}}
    positions = {"0/99/5000/9": 0, "0/89/3000/8": 0}
    source = {"endOffset": ends, "latestOffset": {**latest, "@positions": positions}}
    fields = {"batchId": 7, "numInputRows": 90, "sources": [source], "inputRowsPerSecond": 45.04}
    operators = [{"numRowsTotal": 3, "memoryUsedBytes": 10}, {"numRowsTotal": 4}]
    return {**fields, "stateOperators": operators, "durationMs": {"triggerExecution": 12}, **more}


def test_the_progress_of_spark_is_read() -> None:
    assert ProgressReader().read(progress()) == StageProgress(
        batch=7,
        rows=90,
        input_rate=45.0,
        batch_ms=12,
        phases_ms={"triggerExecution": 12},
        taken={"sensors": 90},
        lag_events=10,
        lag_s=2.0,
        state_rows=7,
        state_bytes=10,
    )


def test_nan_and_infinity_are_rate_zero() -> None:
    rates = {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": float("inf")}
    read = ProgressReader().read(progress(**rates, sources=[]))
    assert (read.input_rate, read.processed_rate, read.lag_events) == (0, 0, None)
    json.dumps(stage_status.status_report({"sift": (StageState(), read)}, 1), allow_nan=False)


def test_the_status_line_of_a_stage() -> None:
    read = ProgressReader().read(progress())
    text = stage_status.status_line("sift", StageState("running", restarts=2), read)
    assert text == "sift running batch=7 in=45/s capacity=0/s took=12ms lag=10 (2.0s) restarts=2"
    assert stage_status.status_line("sift", StageState(), StageProgress()) == "sift starting"


def test_the_status_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_status(path, {"a": 1})
    write_status(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


# -- a stage --------------------------------------------------------------------------------------


class Hours:
    """A clock that moves an hour with every call, so that no delay lasts."""

    def __init__(self) -> None:
        self.hours = 0

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        self.hours += 1
        return self.hours * 3600.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


class Query:
    """A query that ends on `stop`, or with an error."""

    lastProgress = None
    isActive = True

    def __init__(self, fails: Exception | None = None) -> None:
        self.ended, self.fails = threading.Event(), fails
        self.status = {"isTriggerActive": False, "message": "Waiting for data to arrive"}

    def awaitTermination(self) -> None:
        if self.fails:
            raise self.fails
        assert self.ended.wait(60)

    def stop(self) -> None:
        self.ended.set()


def test_a_failed_stage_is_reported_and_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_status, "FIRST_WAIT_S", 0.01)
    running = threading.Event()
    starts: list[Callable[[], Query]] = [
        lambda: Query(fails=ValueError("the first reason")),
        lambda: 1 / 0,  # type: ignore[list-item,return-value]
    ]

    def start() -> Any:
        if starts:
            return starts.pop(0)()
        running.set()
        return Query()

    lines: list[str] = []
    stage = StageRunner("sift", start, Hours(), report=lines.append)
    stage.thread.start()
    assert running.wait(60)
    stage.stop()
    stage.thread.join(60)
    assert not stage.thread.is_alive()
    assert lines[:4] == [
        "sift started",
        "sift failed: the first reason; restart 1 in 0.01 s",
        "sift failed: division by zero; restart 2 in 0.02 s",
        "sift started",
    ]
    assert (stage.state.state, stage.state.restarts) == ("stopped", 2)
    assert stage.state.error == "division by zero"


def test_a_stage_stopped_while_waiting_does_not_restart() -> None:
    failed = threading.Event()
    stage = StageRunner("sift", lambda: 1 / 0, Hours(), report=lambda text: failed.set())  # type: ignore[arg-type,return-value]
    stage.thread.start()
    assert failed.wait(60)
    stage.stop()
    stage.thread.join(60)
    assert stage.state.state == "stopped"


@pytest.mark.parametrize("stages", [(), ("sift", "shift")])
def test_unknown_stages_are_refused(stages: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="use sift, watch, record"):
        PipelineOptions(tmp_path, stages)


def test_repr_omits_secrets(tmp_path: Path) -> None:
    options = PipelineOptions(tmp_path, storage="AccountKey=k", database="postgresql://u:p@h/d")
    assert "AccountKey" not in repr(options)
    assert "u:p" not in repr(options)
