"""Runs all three stages, or some of them, in one Spark application, and restarts them on failure.

Each stage has a thread that starts its query, waits for its end, and restarts it. The main thread
writes their status to a file every second, and stops them.

    Pipeline.run -> StageRunner.run (one thread each) -> sift.start, watch.start, record.start
                 -> status_report -> DATA/status.json
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumphouse.client.base import RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import ConnectionFailed, OptionError, PumphouseError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.kinds.state_order import keep_state_order
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.options import STAGES, PipelineOptions
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, DEADLETTER_HUB, SENSORS_HUB
from pumphouse.homes.stage_health import DatabaseProbe, PipelineHealth
from pumphouse.homes.stage_runner import StageRunner
from pumphouse.homes.stage_start import check_stores, stage_starters
from pumphouse.homes.stage_status import (
    StageProgress,
    failure_reason,
    status_line,
    status_report,
)
from pumphouse.private_files import private_opener, replace_private
from pumphouse.telemetry.meter import is_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HUBS", "STAGES", "Pipeline", "PipelineOptions"]

HUBS = {
    "sift": (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB, DEADLETTER_HUB),
    "watch": (ACTIVITY_HUB, ALERTS_HUB),
    "record": (ACTIVITY_HUB, ALERTS_HUB),
}
STATUS = "status.json"
STATUS_EVERY_S = 1.0
REPORT_EVERY_S = 5.0
HUBS_S = 60.0  # timeout for the properties of all hubs, requested before the start
STOP_S = 40.0  # how long to wait for all stages to end

# For three queries on a few cores.
SETTINGS = {
    # The stages share the cores: a long batch of sift would otherwise delay the alerts.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
    # Rows only pass through: state is in RocksDB, outside of the heap.
    "spark.driver.memory": "1g",
    # A concurrent collector does not help on two cores.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.streaming.numRecentProgressUpdates": "8",
    "spark.log.level": "ERROR",
}
# For checkpoints on a disk. Spark's default starts a process to check whether a file is a link,
# several times for each rename: dozens of processes for every batch.
LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
}


class Pipeline:
    """The stages of one application."""

    def __init__(
        self,
        namespace: HomesNamespace,
        options: PipelineOptions,
        report: Callable[[str], object] = lambda text: None,
        clock: Clock | None = None,
    ) -> None:
        self.namespace, self.options = namespace, options
        self._report, self._clock = report, clock or SystemClock()
        self._stop = threading.Event()
        self.stages: list[StageRunner] = []
        self.health = PipelineHealth(self._clock)

    def stop(self) -> None:
        """End `run`; callable from any thread and from a signal handler."""
        self.health.stops()
        self._stop.set()

    def run(self) -> None:
        """Run the stages until `stop`. Invalid options and unreachable hubs raise at once."""
        check_spark()
        with stopped_by_signals(self.stop):
            asyncio.run(check_hubs(self.namespace, self.options.stages))
            check_stores(self.options)
            with locked_folder(self.options.data):
                if "sift" in self.options.stages:
                    keep_state_order(self.options.data, self.options.kinds)
                with spark_session(self.options) as spark:
                    self._run_on(spark)

    def _run_on(self, spark: SparkSession) -> None:
        # Starting Spark has replaced the handler of Ctrl-C.
        with (
            stopped_by_signals(self.stop),
            recording_metrics(spark, self.options.kinds),
            self._runners(spark),
        ):
            for stage in self.stages:
                stage.thread.start()
            try:
                self._write_statuses(spark)
            finally:
                self._stop_stages()

    @contextmanager
    def _runners(self, spark: SparkSession) -> Iterator[None]:
        with stage_starters(spark, self.namespace, self.options) as starters:
            start_lock = threading.Lock()
            self.stages = [
                StageRunner(
                    starter.name,
                    starter.start,
                    self._clock,
                    starter.counts,
                    self._report,
                    start_lock,
                )
                for starter in starters
            ]
            self.health.stages = self.stages
            with probing([starter.probe for starter in starters], self.health, self._clock):
                yield

    def _write_statuses(self, spark: SparkSession) -> None:
        reported_s = self._clock.monotonic()
        while not self._stop.wait(STATUS_EVERY_S):
            self.health.turned()
            progress = self._checked_status(spark)
            if self._clock.monotonic() - reported_s >= REPORT_EVERY_S:
                reported_s = self._clock.monotonic()
                for stage in self.stages:
                    self._report(status_line(stage.name, stage.state, progress[stage.name]))

    def _checked_status(self, spark: SparkSession) -> dict[str, StageProgress]:
        try:
            if is_alive(spark):
                return self._write_status()
        except Exception:
            if is_alive(spark):
                raise
        raise PumphouseError(
            "Spark has stopped: start the pipeline again, it resumes where it stopped"
        )

    def _write_status(self) -> dict[str, StageProgress]:
        progress = {stage.name: stage.progress() for stage in self.stages}
        status = status_report(
            {stage.name: (stage.state, progress[stage.name]) for stage in self.stages},
            now_ms(self._clock),
            pid=os.getpid(),
        )
        write_status(self.options.data / STATUS, status)
        return progress

    def _stop_stages(self) -> None:
        stopping = [threading.Thread(target=stage.stop, daemon=True) for stage in self.stages]
        for thread in stopping:
            thread.start()
        join_all((*stopping, *(stage.thread for stage in self.stages)), STOP_S, self._clock)
        with suppress(Exception):  # the JVM may have ended
            self._write_status()


def join_all(threads: Iterable[threading.Thread], within_s: float, clock: Clock) -> None:
    """Wait for the end of all threads, together not longer than this."""
    deadline_s = clock.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - clock.monotonic()))


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM. Only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous_handlers = [signal.signal(number, lambda *_: stop()) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous_handlers, strict=True):
            signal.signal(number, handler)


def check_spark() -> None:
    """SparkTooOld if Spark lacks what the stages need."""
    from pumphouse.spark.versions.features import STATE, require

    require(STATE, "the homes pipeline (transformWithState)")


@contextmanager
def recording_metrics(spark: SparkSession, kinds: Kinds = DEFAULT) -> Iterator[None]:
    """Record metrics if they can be read: they are served, or a MeterProvider is set."""
    if not is_on():
        yield
        return
    from pumphouse.homes.stage_metrics import StageMetricsListener

    listener = StageMetricsListener(kinds)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM may have ended
            spark.streams.removeListener(listener)
        listener.close()


@contextmanager
def probing(
    probes: Sequence[Callable[[], None] | None], health: PipelineHealth, clock: Clock
) -> Iterator[None]:
    """Ask the database of the stages from time to time."""
    running = [DatabaseProbe(ask, clock) for ask in probes if ask is not None]
    health.database = running[0] if running else None
    for probe in running:
        probe.start()
    try:
        yield
    finally:
        for probe in running:
            probe.stop()


@contextmanager
def locked_folder(data: Path) -> Iterator[None]:
    """Allow one pipeline per folder: two would overwrite each other's status and state."""
    with open(data / ".lock", "w", opener=private_opener) as lock:
        try:
            # The kernel unlocks the file if this process dies.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OptionError(
                f"{data} is in use by another pipeline: use another folder (--data)"
            ) from None
        yield


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace the file atomically: other processes read it at any time."""
    replace_private(path, json.dumps(status).encode())


def spark_settings(options: PipelineOptions) -> dict[str, str]:
    """The settings of Spark; those of the options override the defaults."""
    local = options.checkpoints is None or "://" not in options.checkpoints
    return {**SETTINGS, **(LOCAL_FILES if local else {}), **options.settings}


@contextmanager
def spark_session(options: PipelineOptions) -> Iterator[SparkSession]:
    from pumphouse.spark import session

    try:
        # Its own listener measures more, see recording_metrics.
        spark = session("homes", options.master, spark_settings(options), metrics=False)
    except PumphouseError:
        raise
    except Exception as failure:  # of Spark, of its bridge to Python, or of the JVM
        where = options.master or "this machine"
        reason = failure_reason(failure)
        raise PumphouseError(
            f"cannot start Spark on {where}: {reason}. Check --master, --conf and the Java version"
        ) from failure
    try:
        yield spark
    finally:
        with suppress(Exception):  # it may have ended already
            spark.stop()


def is_alive(spark: SparkSession) -> bool:
    """Whether the JVM runs and its Spark context is not stopped. Spark stops the context itself
    when its cluster has been unreachable for long."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return False
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # any error of the bridge means that the JVM does not respond
        return False


async def check_hubs(namespace: HomesNamespace, stages: Sequence[str]) -> None:
    """Request the properties of every hub in use: a wrong name or key raises now."""
    try:
        async with asyncio.timeout(HUBS_S):
            for hub in dict.fromkeys(hub for stage in stages for hub in HUBS[stage]):
                connection = namespace.hub_options(hub)["connectionString"]
                await check_hub(connection, hub, namespace.options.get("caFile"))
    except TimeoutError:
        raise ConnectionFailed(
            f"no response from the hubs within {HUBS_S:g} s: check the connection string"
        ) from None


async def check_hub(connection: str, hub: str, ca_file: str | None) -> None:
    no_retries = RetryOptions(attempts=1)
    async with open_client(connection, hub, ca_file=ca_file, retry=no_retries) as client:
        await client.properties()
