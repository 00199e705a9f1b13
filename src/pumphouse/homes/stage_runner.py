"""Runs one stage in a thread: starts its Spark query, waits for its end, and restarts it.

StageStarter.start -> StageRunner.run (a thread) -> StageState, StageProgress -> pipeline.py
                      ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from warnings import warn

from pumphouse.clock import Clock
from pumphouse.errors import PumphouseError
from pumphouse.homes.stage_status import (
    ProgressReader,
    StageProgress,
    StageState,
    failure_reason,
)
from pumphouse.logs import is_power_of_ten, line

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pumphouse.homes")

SOURCES_S = 60.0  # how long a start waits for the sources of the query
BATCH_S = 15.0  # how long a stop waits for the running batch


class StageRunner:
    """One query, restarted after every failure until `stop`."""

    def __init__(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        clock: Clock,
        counts: Callable[[Any], Mapping[str, Any]] = lambda progress: {},
        report: Callable[[str], object] = lambda text: None,
        start_lock: threading.Lock | None = None,
    ) -> None:
        self.name = name
        self.state = StageState(since_s=clock.monotonic())
        self._start, self._clock, self._counts, self._report = start, clock, counts, report
        self._start_lock = start_lock or threading.Lock()
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._progress_reader = ProgressReader()
        self._progress = StageProgress()
        self.responded_s: float | None = None  # when its hubs have last responded
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def run(self) -> None:
        """Run the query until `stop`."""
        while not self._stopping.is_set():
            try:
                self._query = self._start_query()
                self._query.awaitTermination()
                failure: Exception = PumphouseError("the query ended by itself")
            except Exception as error:
                failure = error
            if self._stopping.is_set():
                break
            self._wait_after(failure)
        self.state = self.state.stopped(self._clock.monotonic())

    def _start_query(self) -> StreamingQuery:
        # One stage at a time: Spark gives a source ten seconds to start its process, and on a small
        # machine three processes that start at once take longer.
        with self._start_lock:
            query = self._start()
            if self._stopping.is_set():  # `stop` was called during the start
                query.stop()
            await_sources(query, self._clock)
        self.state = self.state.started(self._clock.monotonic())
        self._report(f"{self.name} started")
        log.info("%s", line("stage_started", stage=self.name, restarts=self.state.restarts))
        return query

    def _wait_after(self, failure: Exception) -> None:
        state = self.state.failed(failure_reason(failure), self._clock.monotonic())
        self.state = state
        self._report(
            f"{self.name} failed: {state.error}; restart {state.restarts} in {state.wait_s:g} s"
        )
        logged = line(
            "stage_failed",
            stage=self.name,
            error=state.error,
            count=state.in_a_row,
            restart_in_s=state.wait_s,
            todo="nothing if it recovers; else read the traceback (-v)",
        )
        level = logging.WARNING if is_power_of_ten(state.in_a_row) else logging.DEBUG
        log.log(level, "%s", logged)
        log.info("%s", line("stage_traceback", stage=self.name), exc_info=failure)
        self._stopping.wait(state.wait_s)

    def progress(self) -> StageProgress:
        """The progress after the last batch."""
        query = self._query
        progress = None if query is None else query.lastProgress
        before = self._progress.batch
        if progress is not None:
            read = self._progress_reader.read(json.loads(progress.json))
            self._progress = replace(read, counts=self._counts(progress))
        if self._progress.batch != before or is_waiting(query):
            self.responded_s = self._clock.monotonic()
        return self._progress

    def look(self) -> StageProgress:
        warn("look() is now progress()", DeprecationWarning, stacklevel=2)
        return self.progress()

    def stop(self) -> None:
        """Stop the query, after the running batch if it ends soon."""
        self._stopping.set()
        query = self._query
        if query is None:
            return
        with suppress(Exception):  # a query that has failed meanwhile has stopped too
            await_batch(query, self._clock)
            query.stop()


def is_waiting(query: StreamingQuery | None) -> bool:
    """Whether a query waits for its next batch. Before that it has asked its hubs for new events,
    and they have responded."""
    return query is not None and query.isActive and not query.status["isTriggerActive"]


def await_sources(query: StreamingQuery, clock: Clock) -> None:
    """Wait until the sources run, the query has failed, or SOURCES_S have passed."""
    deadline = clock.monotonic() + SOURCES_S
    waiting = threading.Event()
    while query.isActive and clock.monotonic() < deadline:
        if not query.status["message"].startswith("Initializing"):
            return
        waiting.wait(0.05)


def await_batch(query: StreamingQuery, clock: Clock) -> None:
    """Wait for the running batch, because the next start would send its events a second time."""
    deadline = clock.monotonic() + BATCH_S
    waiting = threading.Event()
    while query.isActive and query.status["isTriggerActive"] and clock.monotonic() < deadline:
        waiting.wait(0.01)
