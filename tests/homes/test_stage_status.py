"""When a stage is started again, and what is told of it."""

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
from pumphouse.homes.stage_status import ProgressReader, StageProgress, StageState


def test_it_waits_twice_as_long_each_time() -> None:
    past, waits = StageState(), []
    for number in range(8):
        past = past.started(number).failed("why", number + 1)
        waits.append(past.wait_s)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert (past.restarts, past.error, past.state) == (8, "why", "waiting")


def test_who_ran_for_long_has_got_over_it() -> None:
    past = StageState()
    for _ in range(3):
        past = past.started(0.0).failed("why", 1.0)
    assert past.wait_s == 4
    well = past.started(10.0).failed("again", 10.0 + stage_status.RECOVERED_AFTER_S)
    assert (well.wait_s, well.restarts) == (1, 4)
    never = past.failed("not even started", 1000.0)
    assert never.wait_s == 8


SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
org.apache.spark.SparkException: Job aborted due to stage: Traceback (most recent call last):
  File "worker.py", line 1, in main
pumphouse.errors.ConnectionFailed: cannot connect to 127.0.0.1:1

\tat org.apache.spark.api.python.BasePythonRunner
Caused by: java.lang.RuntimeException: something else
=== Streaming Query ===
Identifier: sift [id = 1, runId = 2]"""


@pytest.mark.parametrize(
    ("said", "told"),
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
def test_the_reason_is_a_line(said: str, told: str) -> None:
    assert stage_status.failure_reason(ValueError(said)) == told


def progress(**more: Any) -> dict[str, Any]:
    ends, latest = {"sensors": {"0": 90}}, {"sensors": {"0": 100}}
    marks = {"0": {"newest": [99, "9", 5000], "read": [89, "8", 3000]}}
    source = {"endOffset": ends, "latestOffset": {**latest, "@marks": marks}}
    told = {"batchId": 7, "numInputRows": 90, "sources": [source], "inputRowsPerSecond": 45.04}
    state = [{"numRowsTotal": 3, "memoryUsedBytes": 10}, {"numRowsTotal": 4}]
    return {**told, "stateOperators": state, "durationMs": {"triggerExecution": 12}, **more}


def test_what_is_seen_in_the_progress() -> None:
    assert ProgressReader().read(progress()) == StageProgress(
        batch=7,
        rows=90,
        input_rate=45.0,
        batch_ms=12,
        taken={"sensors": 90},
        lag_events=10,
        lag_s=2.0,
        state_rows=7,
        state_bytes=10,
    )


def test_no_number_is_no_rate() -> None:
    odd = {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": float("inf")}
    look = ProgressReader().read(progress(**odd, sources=[]))
    assert (look.input_rate, look.processed_rate, look.lag_events) == (0, 0, None)
    json.dumps(stage_status.status_report({"sift": (StageState(), look)}, 1), allow_nan=False)


def test_a_stage_in_a_line() -> None:
    look = ProgressReader().read(progress())
    told = stage_status.status_line("sift", StageState("running", restarts=2), look)
    assert told == "sift running batch=7 in=45/s capacity=0/s took=12ms lag=10 (2.0s) restarts=2"
    assert stage_status.status_line("sift", StageState(), StageProgress()) == "sift starting"


def test_the_status_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_status(path, {"a": 1})
    write_status(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [one.name for one in tmp_path.iterdir()] == ["status.json"]


# -- a stage --------------------------------------------------------------------------------------


class Hours:
    """A clock of which every look takes an hour: no back-off lasts."""

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
    """What a stage knows of a query: it ends when told, with an error perhaps."""

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


def test_a_stage_that_dies_is_started_again_and_told_of() -> None:
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

    told: list[str] = []
    stage = StageRunner("sift", start, Hours(), report=told.append)
    stage.thread.start()
    assert running.wait(60)
    stage.stop()
    stage.thread.join(60)
    assert not stage.thread.is_alive()
    assert told[:4] == [
        "sift started",
        "sift failed: the first reason; restart 1 in 1 s",
        "sift failed: division by zero; restart 2 in 2 s",
        "sift started",
    ]
    assert (stage.state.state, stage.state.restarts) == ("stopped", 2)
    assert stage.state.error == "division by zero"


def test_who_is_stopped_while_waiting_does_not_start_again() -> None:
    told = threading.Event()
    stage = StageRunner("sift", lambda: 1 / 0, Hours(), report=lambda text: told.set())  # type: ignore[arg-type,return-value]
    stage.thread.start()
    assert told.wait(60)
    stage.stop()
    stage.thread.join(60)
    assert stage.state.state == "stopped"


@pytest.mark.parametrize("stages", [(), ("sift", "shift")])
def test_unknown_stages(stages: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="use sift, watch, record"):
        PipelineOptions(tmp_path, stages)


def test_secrets_are_in_no_repr(tmp_path: Path) -> None:
    options = PipelineOptions(tmp_path, storage="AccountKey=k", database="postgresql://u:p@h/d")
    assert "AccountKey" not in repr(options)
    assert "u:p" not in repr(options)
