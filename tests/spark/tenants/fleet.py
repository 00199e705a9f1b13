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
from pumphouse.client.opening import open_client
from pumphouse.events import Event
from pumphouse.leases.model import Group, Ownership
from pumphouse.leases.opening import open_store
from pumphouse.spark.identities import BATCH, QUERY, ROW, TASK

BIN = Path(sys.executable).parent
APP = Path(__file__).parent / "app.py"
UNTIL_S = 900
ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
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
        self.log = folder / "said.txt"
        (folder / "job.json").write_text(json.dumps(job))
        with self.log.open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(APP), str(folder / "job.json")], env=ENVIRONMENT, stdout=said,
                stderr=said, start_new_session=True,
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
        for one in self.whole():
            send_signal(one, signal.SIGKILL)
        self.process.wait(60)

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


# -- the hub --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hubs:
    """A hub to read and a hub to write, on disk, in a process of their own."""

    namespace: str
    partitions: int

    def connection(self, hub: str) -> str:
        return f"{self.namespace};EntityPath={hub}"

    @property
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
    repeats: int  # events that arrived again
    unexplained: int  # events that arrived again under another identity

    @property
    def sound(self) -> bool:
        return not self.gaps and not self.disorder


def judge(found: dict[str, list[Copied]], sent: Counter[str]) -> Verdict:
    """No gap, order of first arrivals, and how much came more than once."""
    gaps, disorder, repeats, unexplained = {}, {}, 0, 0
    for one, count in sent.items():
        rows = found.get(one, [])
        firsts = list(dict.fromkeys(row.number for row in rows))
        if missing := sorted(set(range(count)) - set(firsts)):
            gaps[one] = missing[:20]
        if wrong := [b for a, b in pairwise(firsts) if b < a]:
            disorder[one] = wrong[:20]
        repeats += len(rows) - len(firsts)
        unexplained += len({(row.number, row.identity) for row in rows}) - len(firsts)
    return Verdict(gaps, disorder, repeats, unexplained)


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


def rows_of(store: str, group: Group) -> dict[str, Ownership]:
    async def look() -> dict[str, Ownership]:
        async with open_store(store) as opened:
            rows = (await opened.list_ownership(group)).ownerships
        return {row.partition: row for row in rows}

    return asyncio.run(look())


def shares(store: str, group: Group, lease_s: float) -> Counter[str]:
    """How many partitions each host has, by live rows."""
    rows = rows_of(store, group).values()
    return Counter(row.owner for row in rows if row.owner and not row.expired(lease_s))
