"""A hub, senders and a pipeline as processes, as users start them; and what is seen of them.

plant(...) -> Plant, sending(...) -> observe(...) -> Span
"""

from __future__ import annotations

import asyncio
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
from benchmarks._homes_span import Span
from benchmarks._processes import ROOT, start_child
from benchmarks._spark import JVM, OTHER, TICKS, WORKERS, Meter
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
LOOK_S = 1.0
HUB, SENDERS, DRIVER = "hub", "senders", "Python driver"
WHO = (HUB, SENDERS, JVM, WORKERS, DRIVER, OTHER)
# Enough of those that one reading raises, for percentiles; 100,000 homes have some 17 a minute.
INCIDENTS = "break-in=100,fire=400"
IDLE, IO_WAIT = 3, 4  # columns of /proc/stat
AT_ONCE = ("break-in", "fire")


@dataclass(slots=True)
class Plant:
    """All of it, running."""

    connection: str
    hub: int
    job: subprocess.Popen[bytes]
    data: Path
    beside: Sequence[int] = ()  # processes of a cluster
    senders: list[int] = field(default_factory=list)

    def stages(self) -> dict[str, Stage]:
        if self.job.poll() is not None:
            raise RuntimeError(f"the pipeline ended: {tail(self.data / 'run.log')}")
        return {stage.name: stage for stage in read_stages(self.data / "status.json")}

    def until(self, done: Callable[[dict[str, Stage]], bool], limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not done(stages := self.stages()):
            if time.monotonic() > deadline:
                said = tail(self.data / "run.log")
                raise TimeoutError(f"the pipeline did not get there: {stages} {said}")
            time.sleep(0.2)

    def restarts(self) -> int:
        return (self.data / "run.log").read_text().count("; restart ")

    @property
    def database(self) -> Path:
        return self.data / "homes.db"


def tail(log: Path) -> str:
    return log.read_text()[-2000:]


# -- starting -------------------------------------------------------------------------------------


@contextmanager
def process(connection: str, *words: object, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours for the length of the block; it is asked to end, and must."""
    with open(log, "a") as said:
        child = subprocess.Popen(
            [str(PUMPHOUSE), *map(str, words)],
            env={**os.environ, "PUMPHOUSE_CONNECTION": connection, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=ROOT, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        yield child
        if child.poll() is not None:
            raise RuntimeError(f"{' '.join(map(str, words))} ended: {tail(log)}")
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def plant(
    stages: str, master: str = "local[2]", *words: object, beside: Sequence[int] = ()
) -> Iterator[Plant]:
    """A hub and a pipeline, with nothing to do yet."""
    with tempfile.TemporaryDirectory() as folder, start_child("_homes_hub") as hub:
        data, connection = Path(folder), str(hub.result["connection"])
        command = ("homes", "run", "--stages", stages, "--master", master, "--data", data, *words)
        progress(f"starting {stages} on {master}")
        with process(connection, *command, log=data / "run.log") as job:
            running = Plant(connection, hub.pid, job, data, beside)
            names = set(stages.split(","))
            running.until(
                lambda found: names == {n for n, s in found.items() if s.state == "running"}
            )
            yield running


@contextmanager
def sending(plant: Plant, homes: int, *words: object) -> Iterator[None]:
    """A town that sends for the length of the block."""
    command = ("homes", "send", "--homes", homes, "--incidents", INCIDENTS, *words)
    with process(plant.connection, *command, log=plant.data / "send.log") as sender:
        plant.senders.append(sender.pid)
        yield
    plant.senders.remove(sender.pid)


# -- seeing ---------------------------------------------------------------------------------------


def observe(plant: Plant, homes: int, settle_s: float, seconds: float) -> Span:
    """What happens in so many seconds, after some that nobody counts."""
    asyncio.run(settle(plant, settle_s))
    from_ms, restarts = int(time.time() * 1000), plant.restarts()
    who = {plant.hub: HUB, plant.job.pid: DRIVER} | dict.fromkeys(plant.senders, SENDERS)
    with Meter([*who, *plant.beside], who, LOOK_S) as meter:
        worked = machine_s()
        seen = asyncio.run(look_for(plant, seconds))
        worked = machine_s() - worked
    others = (worked - sum(meter.spent().values())) / seen.seconds
    delays = [ms - sent_ms(one.at) for one, ms in asyncio.run(alerts_in(plant.connection, from_ms))
              if one.kind in AT_ONCE]  # fmt: skip
    return Span(
        homes=homes,
        seconds=seen.seconds,
        came=seen.came(),
        waits=seen.waits,
        cpu_s=meter.spent(),
        restarts=plant.restarts() - restarts,
        others=others,
        stored_ms=seen.stored_ms,
        alert_ms=delays,
    )


async def settle(plant: Plant, seconds: float) -> None:
    """Until every stage has taken something in, and then for a while."""
    await asyncio.to_thread(plant.until, lambda found: all(one.taken for one in found.values()))
    await asyncio.sleep(seconds)


@dataclass(slots=True)
class Seen:
    """What looks have found."""

    counts: list[Mapping[str, int]] = field(default_factory=list)
    waits: dict[str, list[int]] = field(default_factory=dict)
    stored_ms: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, counts: Mapping[str, int], stages: Mapping[str, Stage]) -> None:
        self.counts.append(counts)
        for name, stage in stages.items():
            self.waits.setdefault(name, []).append(stage.lag(counts) or 0)

    def came(self) -> dict[str, int]:
        return {hub: self.counts[-1][hub] - self.counts[0][hub] for hub in WATCHED}


async def look_for(plant: Plant, seconds: float) -> Seen:
    seen, rows = Seen(), Rows(plant.database)
    async with clients_of(plant.connection) as clients:
        started = time.monotonic()
        seen.add(await counts_of(clients), plant.stages())
        while (passed := time.monotonic() - started) < seconds:
            if passed >= len(seen.counts) * LOOK_S:
                seen.add(await counts_of(clients), plant.stages())
            seen.stored_ms += rows.new()
            await asyncio.sleep(LOOK_S / 10)
        seen.add(await counts_of(clients), plant.stages())
        seen.seconds = time.monotonic() - started
    rows.close()
    return seen


@asynccontextmanager
async def clients_of(connection: str) -> AsyncIterator[dict[str, HubClient]]:
    async with AsyncExitStack() as stack:
        yield {
            hub: await stack.enter_async_context(open_client(connection, hub)) for hub in WATCHED
        }


async def counts_of(clients: Mapping[str, HubClient]) -> dict[str, int]:
    found = await asyncio.gather(*(count_events(client, TIMEOUT_S) for client in clients.values()))
    return dict(zip(clients, found, strict=True))


class Rows:
    """The rows of activities as another program sees them come, and how old they are then."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(f"file:{path}?mode=ro", uri=True) if path.exists() else None
        self._last = 0
        if self._file is not None:
            (self._last,) = self._file.execute(
                "SELECT coalesce(max(rowid), 0) FROM activity"
            ).fetchone()

    def new(self) -> list[int]:
        if self._file is None:
            return []
        found = self._file.execute(
            "SELECT rowid, at FROM activity WHERE rowid > ? ORDER BY rowid", [self._last]
        ).fetchall()
        now_ms = int(time.time() * 1000)
        if found:
            self._last = found[-1][0]
        return [now_ms - sent_ms(at) for _, at in found]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def sent_ms(at: int) -> int:
    """When a reading was sent: in real time the town sends every full second what is due by then.

    >>> sent_ms(1_000_250)
    1001000
    """
    return (at // 1000 + 1) * 1000


async def alerts_in(connection: str, from_ms: int = 0) -> list[tuple[Alert, int]]:
    """The alerts that the hub has taken in since, and when."""
    found: list[tuple[Alert, int]] = []
    async with open_client(connection, ALERTS_HUB) as client:
        for partition in (await client.properties()).partitions:
            last = (await client.partition_properties(partition)).last_sequence
            reader = await client.reader(ReaderOptions(partition, prefetch=2000))
            following = 0
            while following <= last:
                events = await reader.receive(2000, TIMEOUT_S)
                if not events:
                    raise TimeoutError(f"partition {partition} of {ALERTS_HUB} says nothing")
                found += [(decode_alert(one.body), one.enqueued_ms or 0) for one in events]
                following = (events[-1].sequence or 0) + 1
    return [one for one in found if one[1] >= from_ms]


def machine_s() -> float:
    """Seconds that all cores of the machine have worked."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(ticks) - ticks[IDLE] - ticks[IO_WAIT]) / TICKS
