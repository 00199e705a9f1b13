"""Whether a pipeline can work: the sentences of its health checks.

    status loop, stages, database -> PipelineHealth -> /livez, /readyz
                                     ^^^^^^^^^^^^^^ this module

The checks run in the thread of the HTTP server and only read values. A thread of its own asks the
database, because a batch without rows does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from pumphouse.clock import Clock
from pumphouse.homes.stage_status import RUNNING, StageState
from pumphouse.telemetry.health import BLOCKED_S

# A batch of a stage that catches up takes up to a minute on a small machine.
RESPONSE_MAX_S = 60.0
PROBE_EVERY_S = 10.0


class Stage(Protocol):
    """What is known of a stage."""

    name: str
    state: StageState
    responded_s: float | None  # when its hubs have last responded; None: not yet


class PipelineHealth:
    """The checks of one pipeline. Times are monotonic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_s: float | None = None
        self._stops = False
        self.stages: Sequence[Stage] = ()
        self.database: DatabaseProbe | None = None

    def turned(self) -> None:
        """Called by the status loop in each turn."""
        self._turned_s = self._clock.monotonic()

    def stops(self) -> None:
        """Called when the pipeline is asked to stop. The status loop then ends."""
        self._stops = True

    def not_live(self) -> str | None:
        """What is wrong with the status loop, which calls Spark's JVM in every turn."""
        if self._turned_s is None or self._stops:
            return None  # Spark is starting, or the stages end their batches
        blocked_s = self._clock.monotonic() - self._turned_s
        if blocked_s < BLOCKED_S:
            return None
        return f"the status loop has not run for {blocked_s:.0f} s: Spark does not respond"

    def not_ready(self) -> str | None:
        """The stages that do not run, and what does not respond."""
        if self._stops:
            return "the pipeline stops"
        if self._turned_s is None:
            return "Spark is starting"
        now_s = self._clock.monotonic()
        failures = [failure_of(stage, now_s) for stage in self.stages]
        if self.database is not None:
            failures.append(self.database.failure())
        return "; ".join(filter(None, failures)) or None


def failure_of(stage: Stage, now_s: float) -> str | None:
    if stage.state.state != RUNNING:
        error = f": {stage.state.error}" if stage.state.error else ""
        return f"{stage.name} is {stage.state.state}{error}"
    since_s = max(stage.state.since_s, stage.responded_s or stage.state.since_s)
    if now_s - since_s < RESPONSE_MAX_S:
        return None
    return f"{stage.name}: no batch has ended for {now_s - since_s:.0f} s; check its hub"


class DatabaseProbe:
    """Asks the database every PROBE_EVERY_S, in a thread."""

    def __init__(self, ask: Callable[[], object], clock: Clock) -> None:
        self._ask, self._clock = ask, clock
        self._responded_s = clock.monotonic()
        self._error: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The thread ends after its current request; it is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(PROBE_EVERY_S):
            self.probe()

    def probe(self) -> None:
        try:
            self._ask()
        except Exception as error:
            self._error = str(error).partition("\n")[0] or type(error).__name__
        else:
            self._error, self._responded_s = None, self._clock.monotonic()

    def failure(self) -> str | None:
        if self._error is not None:
            return f"the database has failed: {self._error}"
        silent_s = self._clock.monotonic() - self._responded_s
        if silent_s < RESPONSE_MAX_S:
            return None
        return f"no response from the database for {silent_s:.0f} s"
