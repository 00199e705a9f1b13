"""A Spark session and a filled hub for benchmarks, and the time and CPU cost of a job."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from benchmarks._figures import progress
from benchmarks._processes import ROOT, cpu_s
from benchmarks._spark_start import start_query
from pumphouse.client.factory import open_client
from pumphouse.events import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_S, US_PER_ROW, MS = "rows/s", "cpu-us/row", "ms"
CORES = 2
TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S, LOOK_S = 300.0, 0.05
WORKERS, JVM, OTHER, HUB = "Python workers", "JVM", "other", "hub"


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    # Workers import the peers from here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    from benchmarks._spark_peers import Hop, Naive
    from pumphouse.spark import session

    progress("starting Spark")
    spark = session("benchmark", f"local[{CORES}]", {"spark.log.level": "OFF"})
    spark.dataSource.register(Naive)
    spark.dataSource.register(Hop)
    try:
        yield spark
    finally:
        spark.stop()


def fill(connection: str, partitions: int, rows: int, size: int) -> None:
    """Send `rows` events of `size` bytes to each partition."""
    progress(f"filling {partitions} partitions with {rows:,} events of {size:,} bytes")

    async def work() -> None:
        async with open_client(connection) as client:
            for partition in range(partitions):
                sender = await client.sender(str(partition))
                await sender.send(Event(bytes(size)) for _ in range(rows))

    asyncio.run(work())


# -- streams --------------------------------------------------------------------------------------


def drain(frame: DataFrame) -> list[dict[str, Any]]:
    """Read all rows into the noop sink; return the progress of the batches that had rows."""
    with started(frame, availableNow=True) as query:
        if not query.awaitTermination(int(WAIT_S)):
            raise TimeoutError(f"the query did not end in {WAIT_S:g} s")
        return batches_of(query)


def catching_up(frame: DataFrame, rows: int) -> list[dict[str, Any]]:
    """Read `rows` rows into the noop sink, with the default trigger; return the progress of their
    batches."""
    with started(frame) as query:
        deadline = time.monotonic() + WAIT_S
        while rows_and_seconds(batches_of(query))[0] < rows:
            check_progress(query, deadline)
        return batches_of(query)


def ticking(frame: DataFrame, triggers: int, warm: int = 3) -> float:
    """The median duration of a trigger in ms, after `warm` triggers."""
    with started(frame, processingTime="0 seconds") as query:
        deadline = time.monotonic() + WAIT_S
        while (query.lastProgress or {"batchId": 0})["batchId"] < triggers + warm:
            check_progress(query, deadline)
        return float(median(map(trigger_ms, batches_of(query)[warm:])))


def check_progress(query: StreamingQuery, deadline: float) -> None:
    """Pause; raise if the query has failed or the deadline has passed."""
    if query.exception() is not None or time.monotonic() > deadline:
        raise RuntimeError("the query failed or makes no progress") from query.exception()
    time.sleep(LOOK_S)


@contextmanager
def started(frame: DataFrame, **trigger: Any) -> Iterator[StreamingQuery]:
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = start_query((writer.trigger(**trigger) if trigger else writer).start)
        try:
            yield query
        finally:
            query.stop()


def batches_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Rows and durations of the batches that had rows."""
    batches: list[Any] = list(query.recentProgress)
    return [
        {"rows": batch["numInputRows"], "took": dict(batch["durationMs"])}
        for batch in batches
        if batch["numInputRows"]
    ]


def trigger_ms(batch: dict[str, Any]) -> float:
    return float(batch["took"]["triggerExecution"])


# -- what it cost ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """The duration of a job and the CPU seconds of all processes that took part."""

    rows: int
    seconds: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    def per_row(self, *who: str) -> float:
        """CPU microseconds per row; above zero, since it may be a divisor."""
        return max(sum(self.cpu[name] for name in who) / self.rows * 1e6, 1e-3)


def cost_of(job: Callable[[], tuple[int, float]], hub: int) -> Cost:
    """Run a job that returns its rows and seconds, and measure its CPU cost."""
    with Meter() as meter:
        before = cpu_s(hub)
        rows, seconds = job()
        spent = cpu_s(hub) - before
    return Cost(rows, seconds, {**meter.spent(), HUB: spent})


def drained(make: Callable[[], DataFrame]) -> tuple[int, float]:
    """Rows, and the seconds of their batches from planning to commit."""
    return rows_and_seconds(drain(make()))


def rows_and_seconds(batches: Sequence[dict[str, Any]]) -> tuple[int, float]:
    return sum(batch["rows"] for batch in batches), sum(map(trigger_ms, batches)) / 1000


class Meter:
    """CPU seconds of all descendants of this process, or of `roots` and theirs, inside a block.

    Spark ends idle workers after a minute, and their CPU time is then lost, so a thread samples all
    processes. `who` names the kind of some processes.
    """

    def __init__(
        self,
        roots: Sequence[int] = (),
        who: Mapping[int, str] = MappingProxyType({}),
        every_s: float = LOOK_S * 5,
    ) -> None:
        self._roots, self._who, self._every_s = tuple(roots), dict(who), every_s
        self._first: dict[int, float] = {}
        self._last: dict[int, tuple[str, float]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._first = {process: seconds for process, (_, seconds) in self._last.items()}
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def spent(self) -> dict[str, float]:
        totals = dict.fromkeys((WORKERS, JVM, OTHER, *self._who.values()), 0.0)
        for process, (kind, seconds) in self._last.items():
            totals[kind] += seconds - self._first.get(process, 0.0)
        return totals

    def _watch(self) -> None:
        while not self._done.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        given = [process for root in self._roots for process in (root, *below(root))]
        for process in given or below(os.getpid()):
            with suppress(OSError):
                stat = Path(f"/proc/{process}/stat").read_text()
                command = Path(f"/proc/{process}/cmdline").read_text()
                kind = self._who.get(process) or kind_of(stat, command)
                # A JVM runs short commands that end before they are sampled: count their time too.
                last = 15 if kind == JVM else 13
                ticks = stat.rpartition(")")[2].split()[11:last]
                self._last[process] = (kind, sum(map(int, ticks)) / TICKS)


def memory_mb(roots: Sequence[int], who: Mapping[int, str]) -> dict[str, float]:
    """The memory of processes and their descendants by kind, as in Meter. A page that several
    processes share counts in equal parts (PSS)."""
    totals: dict[str, float] = {}
    for process in (process for root in roots for process in (root, *below(root))):
        with suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_text()
            command = Path(f"/proc/{process}/cmdline").read_text()
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            kib = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            kind = who.get(process) or kind_of(stat, command)
            totals[kind] = totals.get(kind, 0.0) + kib / 1024
    return totals


def kind_of(stat: str, command: str) -> str:
    if "(java)" in stat:
        return JVM
    # Spark forks its workers from this process.
    return WORKERS if "pyspark.daemon" in command else OTHER


def below(process: int) -> list[int]:
    """All descendants of a process."""
    children: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, thread.read_text().split())
    return [descendant for child in children for descendant in (child, *below(child))]
