"""When a pipeline counts as live and as ready."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pumphouse.clock import MovableClock
from pumphouse.homes.stage_health import (
    PROBE_EVERY_S,
    RESPONSE_MAX_S,
    DatabaseProbe,
    PipelineHealth,
)
from pumphouse.homes.stage_status import StageState
from pumphouse.telemetry.health import BLOCKED_S


@dataclass
class Stage:
    name: str
    state: StageState
    responded_s: float | None = None


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


def running(clock: MovableClock, name: str = "sift") -> Stage:
    return Stage(name, StageState().started(clock.monotonic()))


def health_of(clock: MovableClock, *stages: Stage) -> PipelineHealth:
    health = PipelineHealth(clock)
    health.stages = stages
    health.turned()
    return health


def test_a_starting_pipeline_is_live_and_not_ready(clock: MovableClock) -> None:
    health = PipelineHealth(clock)
    clock.advance(10 * BLOCKED_S)
    assert (health.not_live(), health.not_ready()) == (None, "Spark is starting")


def test_a_blocked_status_loop_is_not_live(clock: MovableClock) -> None:
    health = health_of(clock, running(clock))
    clock.advance(BLOCKED_S - 1)
    assert health.not_live() is None
    clock.advance(1)
    assert health.not_live() == ("the status loop has not run for 15 s: Spark does not respond")
    health.turned()
    assert health.not_live() is None


def test_a_pipeline_that_stops_is_live_and_not_ready(clock: MovableClock) -> None:
    """Its stages end their batches, which may take longer than a turn of the status loop."""
    health = health_of(clock, running(clock))
    assert health.not_ready() is None
    health.stops()
    clock.advance(BLOCKED_S + 1)
    assert (health.not_live(), health.not_ready()) == (None, "the pipeline stops")


def test_every_stage_must_run(clock: MovableClock) -> None:
    sift, record = running(clock), running(clock, "record")
    health = health_of(clock, sift, record)
    assert health.not_ready() is None
    sift.state = sift.state.failed("no hub sensors", clock.monotonic())
    record.state = record.state.stopped(clock.monotonic())
    assert health.not_ready() == "sift is waiting: no hub sensors; record is stopped"


def test_the_hubs_must_have_responded_recently(clock: MovableClock) -> None:
    sift = running(clock)
    health = health_of(clock, sift)
    clock.advance(RESPONSE_MAX_S - 1)
    assert health.not_ready() is None
    clock.advance(1)
    assert health.not_ready() == "sift: no batch has ended for 60 s; check its hub"
    sift.responded_s = clock.monotonic()
    assert health.not_ready() is None
    # A restarted stage has the time of a new one.
    clock.advance(2 * RESPONSE_MAX_S)
    sift.state = sift.state.started(clock.monotonic())
    assert health.not_ready() is None


def test_the_database_must_have_responded_recently(clock: MovableClock) -> None:
    errors = [OSError("connection refused\nmore"), None, None]

    def ask() -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    health = health_of(clock)
    health.database = DatabaseProbe(ask, clock)
    assert health.not_ready() is None
    health.database.probe()
    assert health.not_ready() == "the database has failed: connection refused"
    health.database.probe()
    assert health.not_ready() is None
    clock.advance(RESPONSE_MAX_S)  # a request has not returned
    assert health.not_ready() == "no response from the database for 60 s"
    assert RESPONSE_MAX_S > 3 * PROBE_EVERY_S
