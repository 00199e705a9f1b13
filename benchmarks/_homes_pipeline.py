"""A hub, senders and a pipeline in processes, started as users start them, and their measurement.

start_pipeline(...) -> RunningPipeline, sending(...) -> observe(...) -> Observation
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._figures import progress
from benchmarks._homes_clock import HOUR, SimulatedTime, measure_shift_ms, sent_ms
from benchmarks._homes_observation import BatchTimes, Observation, batch_times
from benchmarks._processes import ROOT, start_child
from benchmarks._spark import JVM, OTHER, TICKS, WORKERS, Meter, memory_mb
from pumphouse.cli.demo.gauges import Stage, count_events, read_stages
from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    SENSORS_HUB,
    Alert,
    decode_alert,
)

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")
WATCHED = (SENSORS_HUB, ACTIVITY_HUB, ALERTS_HUB)
LIMIT_S = 300.0
TIMEOUT_S = 30.0
MEASURE_EVERY_S = 1.0
HUB, SENDERS, DRIVER = "hub", "senders", "Python driver"
PROCESS_KINDS = (HUB, SENDERS, JVM, WORKERS, DRIVER, OTHER)
# Incidents that one reading reveals, enough for percentiles; 100,000 homes have 17 a minute.
INCIDENTS = "break-in=100,fire=400"
IDLE, IO_WAIT = 3, 4  # columns of /proc/stat
AT_ONCE = ("break-in", "fire")


@dataclass(slots=True)
class RunningPipeline:
    """The processes of a hub, a pipeline and its senders."""

    connection: str
    hub: int
    job: subprocess.Popen[bytes]
    data: Path
    beside: Sequence[int] = ()  # ids of the processes of a cluster
    program: Path = PUMPHOUSE
    simulated_time: SimulatedTime = field(default_factory=SimulatedTime)
    senders: list[int] = field(default_factory=list)

    def stages(self) -> dict[str, Stage]:
        if self.job.poll() is not None:
            raise RuntimeError(f"the pipeline ended: {tail(self.data / 'run.log')}")
        return {stage.name: stage for stage in read_stages(self.data / "status.json")}

    def until(self, done: Callable[[dict[str, Stage]], bool], limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not done(stages := self.stages()):
            if time.monotonic() > deadline:
                log = tail(self.data / "run.log")
                raise TimeoutError(f"after {limit_s:g} s the stages are still {stages}: {log}")
            time.sleep(0.2)

    def phases_ms(self) -> dict[str, tuple[int | None, Mapping[str, int]]]:
        """The number of the last batch of each stage, and the time of each of its phases."""
        status = json.loads((self.data / "status.json").read_text())
        return {
            name: (stage["batch"], stage.get("phases_ms", {}))
            for name, stage in status["stages"].items()
        }

    def restarts(self) -> int:
        return (self.data / "run.log").read_text().count("; restart ")

    @property
    def database(self) -> Path:
        return self.data / "homes.db"


def tail(log: Path) -> str:
    return log.read_text()[-2000:]


# -- starting -------------------------------------------------------------------------------------


@contextmanager
def process(
    connection: str, *arguments: object, log: Path, program: Path = PUMPHOUSE
) -> Iterator[subprocess.Popen[bytes]]:
    """A pumphouse command that runs for the block and is stopped with SIGTERM."""
    with open(log, "a") as output:
        child = subprocess.Popen(
            [str(program), *map(str, arguments)],
            env={**os.environ, "PUMPHOUSE_CONNECTION": connection, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=ROOT, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield child
        if child.poll() is not None:
            raise RuntimeError(f"{' '.join(map(str, arguments))} ended: {tail(log)}")
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def start_pipeline(
    stages: str,
    master: str = "local[2]",
    *arguments: object,
    beside: Sequence[int] = (),
    program: Path = PUMPHOUSE,
    hour: int = HOUR,
) -> Iterator[RunningPipeline]:
    """A hub and a running pipeline without senders. `program` is the command `pumphouse`, which may
    be that of another version; then the hub and the senders are of that version too."""
    interpreter = program.with_name("python")
    with (
        tempfile.TemporaryDirectory() as folder,
        start_child("_homes_hub", interpreter=interpreter) as hub,
    ):
        data, connection = Path(folder), str(hub.result["connection"])
        command = (
            "homes",
            "run",
            "--stages",
            stages,
            "--master",
            master,
            "--data",
            data,
            *arguments,
        )
        progress(f"starting {stages} on {master}")
        with process(connection, *command, log=data / "run.log", program=program) as job:
            running = RunningPipeline(
                connection, hub.pid, job, data, beside, program, SimulatedTime(hour)
            )
            names = set(stages.split(","))
            running.until(
                lambda states: names == {n for n, s in states.items() if s.state == "running"}
            )
            yield running


@contextmanager
def sending(pipeline: RunningPipeline, homes: int, *arguments: object) -> Iterator[None]:
    """A sender of simulated homes that runs for the block."""
    start = ("--from", pipeline.simulated_time.start_ms())
    command = ("homes", "send", "--homes", homes, "--incidents", INCIDENTS, *start)
    log, program = pipeline.data / "send.log", pipeline.program
    with process(pipeline.connection, *command, *arguments, log=log, program=program) as sender:
        pipeline.senders.append(sender.pid)
        yield
    pipeline.senders.remove(sender.pid)


# -- measuring -----------------------------------------------------------------------------------


def observe(pipeline: RunningPipeline, homes: int, settle_s: float, seconds: float) -> Observation:
    """Measure for some seconds, after a warm-up."""
    asyncio.run(settle(pipeline, settle_s))
    shift_ms = asyncio.run(measure_shift_ms(pipeline.connection))
    from_ms, restarts = int(time.time() * 1000), pipeline.restarts()
    names = {pipeline.hub: HUB, pipeline.job.pid: DRIVER} | dict.fromkeys(pipeline.senders, SENDERS)
    with Meter([*names, *pipeline.beside], names, MEASURE_EVERY_S) as meter:
        worked = machine_s()
        measured = asyncio.run(measure(pipeline, seconds, shift_ms))
        worked = machine_s() - worked
        memory = memory_mb([*names, *pipeline.beside], names)
    others = (worked - sum(meter.spent().values())) / measured.seconds
    alerts = asyncio.run(alerts_in(pipeline.connection, from_ms))
    delays = [ms - shift_ms - sent_ms(alert.at) for alert, ms in alerts if alert.kind in AT_ONCE]
    return Observation(
        homes=homes,
        seconds=measured.seconds,
        came=measured.came(),
        waits=measured.waits,
        cpu_s=meter.spent(),
        restarts=pipeline.restarts() - restarts,
        others=others,
        stored_ms=measured.stored_ms,
        alert_ms=delays,
        batches=measured.batches(),
        memory_mb=memory,
    )


async def settle(pipeline: RunningPipeline, seconds: float) -> None:
    """Wait until every stage has processed events, and then for some seconds."""
    await asyncio.to_thread(
        pipeline.until, lambda stages: all(stage.taken for stage in stages.values())
    )
    await asyncio.sleep(seconds)


@dataclass(slots=True)
class Measurements:
    """The measurements of a period."""

    counts: list[Mapping[str, int]] = field(default_factory=list)
    waits: dict[str, list[int]] = field(default_factory=dict)
    stored_ms: list[int] = field(default_factory=list)
    phases_ms: dict[str, dict[int, Mapping[str, int]]] = field(default_factory=dict)
    seconds: float = 0.0

    def add_phases(self, stages: Mapping[str, tuple[int | None, Mapping[str, int]]]) -> None:
        for name, (batch, phases) in stages.items():
            if batch is not None:
                self.phases_ms.setdefault(name, {})[batch] = phases

    def batches(self) -> dict[str, BatchTimes]:
        return {name: batch_times(seen) for name, seen in self.phases_ms.items()}

    def add(self, counts: Mapping[str, int], stages: Mapping[str, Stage]) -> None:
        self.counts.append(counts)
        for name, stage in stages.items():
            self.waits.setdefault(name, []).append(stage.lag(counts) or 0)

    def came(self) -> dict[str, int]:
        return {hub: self.counts[-1][hub] - self.counts[0][hub] for hub in WATCHED}


async def measure(pipeline: RunningPipeline, seconds: float, shift_ms: int) -> Measurements:
    measured, rows = Measurements(), StoredRows(pipeline.database, shift_ms)
    async with clients_of(pipeline.connection) as clients:
        started = time.monotonic()
        measured.add(await counts_of(clients), pipeline.stages())
        while (passed := time.monotonic() - started) < seconds:
            if passed >= len(measured.counts) * MEASURE_EVERY_S:
                measured.add(await counts_of(clients), pipeline.stages())
            measured.stored_ms += rows.new()
            measured.add_phases(pipeline.phases_ms())
            await asyncio.sleep(MEASURE_EVERY_S / 10)
        measured.add(await counts_of(clients), pipeline.stages())
        measured.seconds = time.monotonic() - started
    rows.close()
    return measured


@asynccontextmanager
async def clients_of(connection: str) -> AsyncIterator[dict[str, HubClient]]:
    async with AsyncExitStack() as stack:
        yield {
            hub: await stack.enter_async_context(open_client(connection, hub)) for hub in WATCHED
        }


async def counts_of(clients: Mapping[str, HubClient]) -> dict[str, int]:
    counts = await asyncio.gather(*(count_events(client, TIMEOUT_S) for client in clients.values()))
    return dict(zip(clients, counts, strict=True))


class StoredRows:
    """Reads new rows of activities in the database, and computes their age. `shift_ms` is how far
    their time is behind the clock."""

    def __init__(self, path: Path, shift_ms: int) -> None:
        self._shift_ms = shift_ms
        self._file = sqlite3.connect(f"file:{path}?mode=ro", uri=True) if path.exists() else None
        self._last = 0
        if self._file is not None:
            (self._last,) = self._file.execute(
                "SELECT coalesce(max(rowid), 0) FROM activity"
            ).fetchone()

    def new(self) -> list[int]:
        if self._file is None:
            return []
        rows = self._file.execute(
            "SELECT rowid, at FROM activity WHERE rowid > ? ORDER BY rowid", [self._last]
        ).fetchall()
        now_ms = int(time.time() * 1000)
        if rows:
            self._last = rows[-1][0]
        return [now_ms - self._shift_ms - sent_ms(at) for _, at in rows]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


async def alerts_in(connection: str, from_ms: int = 0) -> list[tuple[Alert, int]]:
    """The alerts that the hub has received since a time, and when."""
    alerts: list[tuple[Alert, int]] = []
    async with open_client(connection, ALERTS_HUB) as client:
        for partition in (await client.properties()).partitions:
            last = (await client.partition_properties(partition)).last_sequence
            reader = await client.reader(ReaderOptions(partition, prefetch=2000))
            following = 0
            while following <= last:
                events = await reader.receive(2000, TIMEOUT_S)
                if not events:
                    raise TimeoutError(f"no event from partition {partition} of {ALERTS_HUB}")
                alerts += [(decode_alert(event.body), event.enqueued_ms or 0) for event in events]
                following = (events[-1].sequence or 0) + 1
    return [(alert, ms) for alert, ms in alerts if ms >= from_ms]


def machine_s() -> float:
    """Busy seconds of all cores of the machine."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(ticks) - ticks[IDLE] - ticks[IO_WAIT]) / TICKS
