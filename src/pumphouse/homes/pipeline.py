"""All three stages in one Spark application, or some of them; kept running.

Each stage has a thread that starts its query, waits for its end, and starts it again. The main
thread tells how they are, every second, into a file that others read, and stops them.

    Pipeline.run -> StageRunner.serve (one thread each) -> sift.start, watch.start, record.start
                 -> stage_status.report -> DATA/status.json
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumphouse.client.base import RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import ConnectionFailed, OptionError, PumphouseError
from pumphouse.homes import stage_start, stage_status
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, DEADLETTER_HUB, SENSORS_HUB
from pumphouse.homes.stage_status import ProgressReader, StageProgress, StageState
from pumphouse.homes.watch.sharing import Sharing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pumphouse.homes")

STAGES = ("sift", "watch", "record")
HUBS = {
    "sift": (SENSORS_HUB, ACTIVITY_HUB, DEADLETTER_HUB),
    "watch": (ACTIVITY_HUB, ALERTS_HUB),
    "record": (ACTIVITY_HUB, ALERTS_HUB),
}
MASTER = re.compile(r"local(\[[^]]+\])?|local-cluster\[[^]]+\]|spark://.+:\d+|yarn|k8s://.+")
STATUS = "status.json"
LOOK_EVERY_S = 1.0
TELL_EVERY_S = 5.0
ANSWER_S = 60.0  # for all hubs, before anything is started
SOURCES_S = 60.0
BATCH_S = 15.0  # how long a stop waits for the batch in hand
STOP_S = 60.0

# For three queries on a few cores.
SETTINGS = {
    # Batches of the stages take turns: a long one of sift would else hold up the alerts.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
    # Rows pass through and do not stay: state lies in RocksDB, outside of the heap.
    "spark.driver.memory": "1g",
    # Two cores gain nothing from collecting beside the work.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.streaming.numRecentProgressUpdates": "8",
    "spark.log.level": "ERROR",
}
# For checkpoints on a disk. Spark's usual way starts a process to ask whether a file is a link,
# several times for each that it renames: dozens of processes for every batch.
LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
}


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What runs where. `data` holds checkpoints and the status; on a cluster `checkpoints` must be
    a namespace that all its machines reach."""

    data: Path
    stages: tuple[str, ...] = STAGES
    master: str | None = None
    storage: str | None = field(default=None, repr=False)  # DATA/records unless given
    database: str | None = field(default=None, repr=False)  # DATA/homes.db unless given
    checkpoints: str | None = None  # DATA/checkpoints unless given
    settings: Mapping[str, str] = field(default_factory=dict)  # of Spark
    trigger: Mapping[str, Any] | None = None  # of every stage; each has its own unless given
    accelerated: bool = False  # event time runs faster than the clock, or is of another day
    sharing: Sharing | None = None  # of the partitions of `watch`, with other applications

    def __post_init__(self) -> None:
        unknown = [name for name in self.stages if name not in STAGES]
        if unknown or not self.stages:
            found = ", ".join(unknown) or "nothing"
            raise OptionError(f"the stages are {', '.join(STAGES)} (got {found})")
        if self.master is not None and not MASTER.fullmatch(self.master):
            raise OptionError(
                f"{self.master!r} is no master of Spark; write local[2], spark://HOST:7077, yarn "
                "or k8s://HOST:PORT"
            )
        if self.sharing is not None and self.stages != ("watch",):
            # The others would read everything in each of the applications.
            raise OptionError(
                "only the stage watch shares its partitions: run the others once, elsewhere "
                f"(got {', '.join(self.stages)} with assignment={self.sharing.assignment})"
            )

    def checkpoint(self, stage: str) -> str:
        return f"{self.checkpoints or self.data / 'checkpoints'}/{stage}"


class StageRunner:
    """One query, started as often as it takes."""

    def __init__(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        clock: Clock,
        counts: Callable[[Any], Mapping[str, Any]] = lambda progress: {},
        tell: Callable[[str], object] = log.info,
        turn: threading.Lock | None = None,
    ) -> None:
        self.name = name
        self._turn = turn or threading.Lock()
        self.past = StageState(since_s=clock.monotonic())
        self._start, self._clock, self._counts, self._tell = start, clock, counts, tell
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._eye = ProgressReader()
        self._look = StageProgress()
        self.thread = threading.Thread(target=self.serve, name=name, daemon=True)

    def serve(self) -> None:
        """Until it is told to stop."""
        while not self._stopping.is_set():
            try:
                self._query = self._begin()
                self._query.awaitTermination()
                failed: Exception = PumphouseError("the query ended by itself")
            except Exception as error:
                failed = error
            if self._stopping.is_set():
                break
            self._fail(failed)
        self.past = self.past.stopped(self._clock.monotonic())

    def _begin(self) -> StreamingQuery:
        # One at a time: Spark gives a source ten seconds to start its process, and three stages
        # that start theirs at once keep a small machine busy for longer than that.
        with self._turn:
            query = self._start()
            if self._stopping.is_set():  # which came while it started
                query.stop()
            await_sources(query, self._clock)
        self.past = self.past.started(self._clock.monotonic())
        self._tell(f"{self.name} started")
        return query

    def _fail(self, failed: Exception) -> None:
        self.past = self.past.failed(stage_status.why(failed), self._clock.monotonic())
        self._tell(
            f"{self.name} failed for the {ordinal(self.past.restarts)} time: {self.past.error};"
            f" again in {self.past.wait_s:g} s"
        )
        log.info("stage=%s failed", self.name, exc_info=failed)
        self._stopping.wait(self.past.wait_s)

    def look(self) -> StageProgress:
        """How it is, after its last batch."""
        query = self._query
        progress = None if query is None else query.lastProgress
        if progress is not None:
            told = json.loads(progress.json)
            self._look = replace(self._eye.seen(told), counts=self._counts(progress))
        return self._look

    def stop(self) -> None:
        """Let it end, between two batches if one comes to its end soon."""
        self._stopping.set()
        query = self._query
        if query is None:
            return
        with suppress(Exception):  # a query that has failed meanwhile is what we want: ended
            await_batch(query, self._clock)
            query.stop()


def await_sources(query: StreamingQuery, clock: Clock) -> None:
    """Until its sources run, or it has failed, or it takes too long to wait for."""
    deadline = clock.monotonic() + SOURCES_S
    waiting = threading.Event()
    while query.isActive and clock.monotonic() < deadline:
        if not query.status["message"].startswith("Initializing"):
            return
        waiting.wait(0.05)


def await_batch(query: StreamingQuery, clock: Clock) -> None:
    """What a batch in hand has sent already would be sent again by the next start."""
    deadline = clock.monotonic() + BATCH_S
    waiting = threading.Event()
    while query.isActive and query.status["isTriggerActive"] and clock.monotonic() < deadline:
        waiting.wait(0.01)


class Pipeline:
    """The stages of one application."""

    def __init__(
        self,
        namespace: HomesNamespace,
        options: PipelineOptions,
        tell: Callable[[str], object] = log.info,
        clock: Clock | None = None,
    ) -> None:
        self.namespace, self.options = namespace, options
        self._tell, self._clock = tell, clock or SystemClock()
        self._stop = threading.Event()
        self.stages: list[StageRunner] = []

    def stop(self) -> None:
        """From any thread, or a signal: `run` then ends."""
        self._stop.set()

    def run(self) -> None:
        """Run the stages until `stop`. What is wrong from the start raises at once."""
        with told_by_signals(self.stop):
            asyncio.run(check_hubs(self.namespace, self.options.stages))
            stage_start.check_stores(self.options)
            with alone_in(self.options.data), spark_for(self.options) as spark:
                self._run_on(spark)

    # -- how

    def _run_on(self, spark: SparkSession) -> None:
        # Spark has taken Ctrl-C for itself meanwhile.
        with told_by_signals(self.stop), self.opened(spark):
            for stage in self.stages:
                stage.thread.start()
            try:
                self._watch_over(spark)
            finally:
                self._end()

    @contextmanager
    def opened(self, spark: SparkSession) -> Iterator[None]:
        with stage_start.stages_of(spark, self.namespace, self.options) as starts:
            turn = threading.Lock()
            self.stages = [
                StageRunner(one.name, one.start, self._clock, one.counts, self._tell, turn)
                for one in starts
            ]
            yield

    def _watch_over(self, spark: SparkSession) -> None:
        told_s = self._clock.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            looks = self._look(spark)
            if self._clock.monotonic() - told_s >= TELL_EVERY_S:
                told_s = self._clock.monotonic()
                for stage in self.stages:
                    self._tell(stage_status.line(stage.name, stage.past, looks[stage.name]))

    def _look(self, spark: SparkSession) -> dict[str, StageProgress]:
        try:
            if is_alive(spark):
                return self._report()
        except Exception:
            if is_alive(spark):
                raise
        raise PumphouseError("Spark has ended; start again to go on from here")

    def _report(self) -> dict[str, StageProgress]:
        looks = {stage.name: stage.look() for stage in self.stages}
        told = stage_status.report(
            {stage.name: (stage.past, looks[stage.name]) for stage in self.stages},
            now_ms(self._clock),
            pid=os.getpid(),
        )
        write_status(self.options.data / STATUS, told)
        return looks

    def _end(self) -> None:
        stopping = [threading.Thread(target=stage.stop, daemon=True) for stage in self.stages]
        for thread in stopping:
            thread.start()
        for thread in (*stopping, *(stage.thread for stage in self.stages)):
            thread.join(STOP_S)
        with suppress(Exception):  # the JVM may be what has ended
            self._report()


@contextmanager
def told_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a clean end. Only the main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def alone_in(data: Path) -> Iterator[None]:
    """One pipeline in a folder: two would write one status, and take each other's state away."""
    with open(data / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go if we die
        except BlockingIOError:
            raise OptionError(
                f"{data} is in use by another pipeline; give this one a folder of its own (--data)"
            ) from None
        yield


def write_status(path: Path, told: Mapping[str, Any]) -> None:
    """As a whole or not at all: others read it at any time."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(told))
    os.replace(draft, path)


def settings_of(options: PipelineOptions) -> dict[str, str]:
    """Of Spark; what was given goes before what we know better."""
    here = options.checkpoints is None or "://" not in options.checkpoints
    return {**SETTINGS, **(LOCAL_FILES if here else {}), **options.settings}


@contextmanager
def spark_for(options: PipelineOptions) -> Iterator[SparkSession]:
    from pumphouse.spark import session

    try:
        spark = session("homes", options.master, settings_of(options))
    except PumphouseError:
        raise
    except Exception as failed:  # of Spark, of its bridge to Python, or of the JVM
        where = options.master or "this machine"
        raise PumphouseError(
            f"Spark does not start on {where}: {stage_status.why(failed)}"
        ) from failed
    try:
        yield spark
    finally:
        with suppress(Exception):  # it may be what has ended
            spark.stop()


def is_alive(spark: SparkSession) -> bool:
    """Whether the JVM is still there, whoever has started it, and Spark in it has not ended: it
    does if it is told to, or if its cluster is gone for long."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return False
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # whatever the bridge raises: nobody answers
        return False


async def check_hubs(namespace: HomesNamespace, stages: Sequence[str]) -> None:
    """Every hub that the stages want, asked for its partitions: an error now and not in a loop."""
    try:
        async with asyncio.timeout(ANSWER_S):
            for hub in dict.fromkeys(hub for stage in stages for hub in HUBS[stage]):
                await check_hub(
                    namespace.hub_options(hub)["connectionString"],
                    hub,
                    namespace.options.get("caFile"),
                )
    except TimeoutError:
        raise ConnectionFailed(
            f"no hub answered within {ANSWER_S:g} s; is the connection string right?"
        ) from None


async def check_hub(connection: str, hub: str, ca_file: str | None) -> None:
    once = RetryOptions(attempts=1)
    async with open_client(connection, hub, ca_file=ca_file, retry=once) as client:
        await client.properties()


def ordinal(number: int) -> str:
    """>>> [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 112)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '21st', '112th']
    """
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
