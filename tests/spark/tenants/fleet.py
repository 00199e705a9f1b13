"""Spark applications, a hub and a sender as processes of their own; and what came out of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.leases.model import Group
from pumphouse.spark.deduplication import BATCH, QUERY, ROW, TASK
from pumphouse.spark.tenancy.journal import Stretch, from_offset

from .gates import FOLDER, Gate

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
APP = Path(__file__).parent / "app.py"
UNTIL_S = 900
ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYTHONPATH": str(ROOT),  # what is pickled by name is found by workers
}
RUNNER, DAEMON, JAVA = "python_streaming_source_runner", "pyspark.daemon", "java"


def until(done: Callable[[], bool], what: str = "", every_s: float = 0.1) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(every_s)


# -- processes ------------------------------------------------------------------------------------


def children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def descendants(process: int) -> list[int]:
    return [one for child in children(process) for one in (*descendants(child), child)]


def command_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return ""


def send_signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


class App:
    """One Spark application."""

    def __init__(self, folder: Path, job: dict[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.checkpoint = folder, Path(str(job["checkpoint"]))
        self.log, self.gate = folder / "said.txt", Gate(folder / "gate")
        self._left: list[int] = []  # by a driver that was killed
        (folder / "job.json").write_text(json.dumps(job))
        with self.log.open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(APP), str(folder / "job.json")], stdout=said, stderr=said,
                env=ENVIRONMENT | {FOLDER: str(self.gate.folder)}, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def whole(self) -> list[int]:
        """All its processes; the application itself last."""
        return [*descendants(self.process.pid), self.process.pid]

    def of_kind(self, kind: str) -> list[int]:
        """The processes of a kind: the runner, the JVM, or workers that run tasks."""
        every = self.whole()
        if kind == DAEMON:
            daemons = [one for one in every if DAEMON in command_of(one)]
            return [one for one in daemons if not any(child in daemons for child in children(one))]
        return [one for one in every if kind in command_of(one).split(" -")[0] or
                (kind == RUNNER and kind in command_of(one))]  # fmt: skip

    def kill(self) -> None:
        """kill -9, of everything at once."""
        for one in [*self.whole(), *self.left()]:
            send_signal(one, signal.SIGKILL)
        self.process.wait(60)

    def kill_driver(self) -> None:
        """kill -9 of the JVM and of the script that started it; what they leave sees to itself."""
        self._left = descendants(self.process.pid)
        for one in [self.process.pid, *self.of_kind(JAVA)]:
            send_signal(one, signal.SIGKILL)
        self.process.wait(60)

    def left(self) -> list[int]:
        """Who has not noticed yet that the driver is gone."""
        return [one for one in self._left if "pyspark" in command_of(one)]

    def hold_at(self, stage: str) -> int:
        """Until a batch is held at that stage; by which process."""
        self.gate.shut(stage)
        until(lambda: self.gate.holder is not None, f"nothing comes to {stage}: {self.said()}")
        holder = self.gate.holder
        assert holder is not None
        return holder

    def pause(self) -> None:
        for one in self.whole():
            send_signal(one, signal.SIGSTOP)

    def go_on(self) -> None:
        for one in reversed(self.whole()):
            send_signal(one, signal.SIGCONT)

    def batches(self, kind: str) -> set[int]:
        """The batches that Spark has planned (offsets) or done (commits)."""
        with suppress(OSError):
            names = [one.name for one in (self.checkpoint / kind).iterdir()]
            return {int(name) for name in names if name.isdecimal()}
        return set()

    def in_flight(self) -> set[int]:
        """The batch that is planned and not done, if there is one."""
        return {one for one in self.batches("offsets") if one > max(self.batches("commits") | {-1})}

    def journal(self) -> dict[str, Stretch]:
        """What the newest batch reads, of each partition."""
        newest = max(self.batches("offsets"))
        last = (self.checkpoint / "offsets" / str(newest)).read_text().splitlines()[-1]
        return dict(from_offset("sensors", last).stretches)


# -- the hub --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hubs:
    """A hub to read and a hub to write, on disk, in a process of their own."""

    namespace: str
    partitions: int

    def connection(self, hub: str) -> str:
        return f"{self.namespace};EntityPath={hub}"

    def group(self) -> Group:
        async def ask() -> Group:
            async with open_client(self.connection("sensors")) as client:
                return Group(client.namespace, client.hub)

        return asyncio.run(ask())


@contextmanager
def hubs_up(folder: Path, partitions: int) -> Iterator[Hubs]:
    named = f"sensors:{partitions},activity:{partitions}"
    up = subprocess.Popen(
        [BIN / "pumphouse", "up", "--hubs", named, "--port", "0", "--data", folder / "data",
         "-o", "json"], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert up.stdout is not None
    try:
        yield Hubs(json.loads(up.stdout.readline())["namespace_connection_string"], partitions)
    finally:
        up.terminate()
        up.wait(60)
        up.stdout.close()


@dataclass
class Sender:
    """Sends a few events to every partition all the time, until it is told to stop."""

    hubs: Hubs
    each: int = 5
    every_s: float = 0.2
    sent: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    async def _run(self) -> None:
        async with open_client(self.hubs.connection("sensors")) as client:
            names = [str(number) for number in range(self.hubs.partitions)]
            senders = {one: await client.sender(one) for one in names}
            while not self._stop.is_set():
                for one, sender in senders.items():
                    await sender.send([Event(b"reading")] * self.each)
                    self.sent[one] += self.each
                await asyncio.sleep(self.every_s)


# -- what came out --------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Copied:
    """One event of the target: which event of the source it is a copy of, and its identity."""

    number: int
    identity: tuple[object, ...]


def copied(hubs: Hubs) -> dict[str, list[Copied]]:
    """Everything in the target hub, in its order, by partition."""

    async def read() -> dict[str, list[Copied]]:
        found: dict[str, list[Copied]] = {}
        async with open_client(hubs.connection("activity")) as client:
            for partition in (await client.properties()).partitions:
                last = (await client.partition_properties(partition)).last_sequence
                reader = await client.reader(ReaderOptions(partition, prefetch=2000))
                rows: list[Copied] = []
                while len(rows) <= last:
                    rows += [copy_of(partition, each) for each in await reader.receive(2000, 60)]
                await reader.close()
                found[partition] = rows
        return found

    return asyncio.run(read())


def copy_of(partition: str, event: Event) -> Copied:
    source, number = event.body.decode().split(":")
    assert source == partition
    identity = tuple(event.properties[name] for name in (QUERY, BATCH, TASK, ROW))
    return Copied(int(number), identity)


@dataclass(frozen=True)
class Verdict:
    gaps: dict[str, list[int]]  # events that never arrived
    disorder: dict[str, list[int]]  # events whose first arrival came before that of an earlier one
    repeated: dict[str, list[Copied]]  # what arrived of events that had arrived before

    @property
    def sound(self) -> bool:
        return not self.gaps and not self.disorder

    @property
    def batches(self) -> set[int]:
        """The batches that wrote something for a second time."""
        return {int(str(row.identity[1])) for rows in self.repeated.values() for row in rows}

    @property
    def events(self) -> set[tuple[str, int]]:
        return {(one, row.number) for one, rows in self.repeated.items() for row in rows}

    def __str__(self) -> str:
        count = sum(map(len, self.repeated.values()))
        return f"gaps {self.gaps}, disorder {self.disorder}, {count} repeats in {self.batches}"


def judge(found: dict[str, list[Copied]], sent: Counter[str]) -> Verdict:
    """No gap, order of first arrivals, and what came more than once."""
    gaps, disorder, repeated = {}, {}, {}
    for one, count in sent.items():
        rows = found.get(one, [])
        firsts = list(dict.fromkeys(row.number for row in rows))
        if missing := sorted(set(range(count)) - set(firsts)):
            gaps[one] = missing[:20]
        if wrong := [b for a, b in pairwise(firsts) if b < a]:
            disorder[one] = wrong[:20]
        if again := firsts_and_others(rows, lambda row: row.number)[1]:
            repeated[one] = again
    return Verdict(gaps, disorder, repeated)


def firsts_and_others(
    rows: list[Copied], key: Callable[[Copied], object]
) -> tuple[list[Copied], list[Copied]]:
    """The first row of each key, and all others."""
    firsts: list[Copied] = []
    others: list[Copied] = []
    seen: set[object] = set()
    for row in rows:
        (others if key(row) in seen else firsts).append(row)
        seen.add(key(row))
    return firsts, others


def without_repeats(found: dict[str, list[Copied]]) -> dict[str, list[Copied]]:
    """What is left if each identity counts once, as the recipe of the sink has it."""
    return {
        one: firsts_and_others(rows, lambda row: row.identity)[0] for one, rows in found.items()
    }


def arrived(hubs: Hubs) -> int:
    """How many events are in the target."""

    async def ask() -> int:
        async with open_client(hubs.connection("activity")) as client:
            names = (await client.properties()).partitions
            found = [await client.partition_properties(one) for one in names]
        return sum(one.last_sequence + 1 for one in found)

    return asyncio.run(ask())


def all_copied(hubs: Hubs, sent: Counter[str]) -> bool:
    if arrived(hubs) < sum(sent.values()):
        return False
    return not judge(copied(hubs), sent).gaps
