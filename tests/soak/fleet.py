"""The processes of a soak: a hub on disk, a store, hosts and a sender.

Fleet -> pumphouse up, Azurite, tests.soak.host, tests.soak.sender -> record files
^^^^^ this module
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

from tests.azurite.server import Azurite
from tests.soak import host, sender
from tests.soak.records import RecordReader

ROOT = Path(__file__).parents[2]
PUMPHOUSE = Path(sys.executable).with_name("pumphouse")
HUB = "sensors"
LIMIT_S = 240.0  # for every wait; a busy machine is slow
POLL_S = 0.1


class Store(Protocol):
    """The store of the rows, and how to make an outage of it."""

    @property
    def url(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def outage(self) -> AbstractContextManager[None]: ...


class AzuriteStore:
    """Blobs in Azurite; an outage suspends its process."""

    def __init__(self, azurite: Azurite, container: str = "soak") -> None:
        self._azurite, self._container = azurite, container
        self.options: dict[str, Any] = {"create_container": True}

    @property
    def url(self) -> str:
        return f"{self._azurite.connection_string()};Container={self._container}"

    @contextmanager
    def outage(self) -> Iterator[None]:
        process = self._azurite._process
        assert process is not None
        with suspended(process):
            yield


class SqliteFile:
    """A SQLite file; an outage holds its write lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.options: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"sqlite://{self._path}"

    @contextmanager
    def outage(self) -> Iterator[None]:
        db = sqlite3.connect(self._path, timeout=LIMIT_S, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")
        finally:
            db.close()


class ServerStore:
    """PostgreSQL or Redis; an outage ends the server, and starts it again with its data."""

    def __init__(self, url: str, stop: Callable[[], None], restart: Callable[[], None]) -> None:
        self.url, self._stop, self._restart = url, stop, restart
        self.options: dict[str, Any] = {}

    @contextmanager
    def outage(self) -> Iterator[None]:
        self._stop()
        try:
            yield
        finally:
            self._restart()


@contextmanager
def suspended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Suspend a process, and continue it at the end."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


class HubProcess:
    """`pumphouse up` with a data directory; a restart uses the same port."""

    def __init__(self, data: Path, partitions: int) -> None:
        self.data, self.partitions = data, partitions
        self.port, self.connection = 0, ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        options = ["--hubs", f"{HUB}:{self.partitions}", "--port", str(self.port)]
        options += ["--data", str(self.data), "--sync", "always", "-o", "json"]
        command = [str(PUMPHOUSE), "up", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self.port, self.connection = ready["port"], ready["connection_strings"][HUB]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            end(self._process)


class HostProcess:
    """A host process, ours or an official one, by its module."""

    def __init__(self, name: str, module: str, job: dict[str, Any], err: Path) -> None:
        self.name = name
        with err.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
            )
        assert self.process.stdin is not None
        with self.process.stdin as job_fields:
            job_fields.write(json.dumps(job).encode())

    def leave(self) -> int:
        self.process.terminate()
        return end(self.process)

    def kill(self) -> None:
        self.process.kill()
        end(self.process)


def end(process: subprocess.Popen[Any]) -> int:
    code = process.wait(LIMIT_S)
    if process.stdout is not None:
        process.stdout.close()
    return code


class Fleet:
    """Hub, hosts and sender with one store; `reader` has their records so far."""

    def __init__(self, folder: Path, store: Store, partitions: int) -> None:
        self.folder, self.store = folder, store
        self.partitions = [str(number) for number in range(partitions)]
        self.hub = HubProcess(folder / "data", partitions)
        self.hosts: dict[str, HostProcess] = {}
        self.reader = RecordReader(folder)
        self.sender: HostProcess | None = None
        self._hosts_started = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self._end_all)
        self.hub.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _end_all(self) -> None:
        for process in [*self.hosts.values(), *([self.sender] if self.sender else [])]:
            process.process.send_signal(signal.SIGCONT)
            process.kill()
        self.hub.kill()

    # -- hosts and sender -------------------------------------------------------------------------

    def join(self, **job: Any) -> HostProcess:
        """Start another host of ours."""
        name, records = self._new_name("host")
        job_fields = host.Job(
            name, self.hub.connection, self.store.url, records, **self.store.options
        )
        return self._start(name, "tests.soak.host", {**asdict(job_fields), **job})

    def join_official(self, **job: Any) -> HostProcess:
        """Start another host, with the official client and its own store."""
        name, records = self._new_name("sdk")
        job_fields = {"name": name, "connection": self.hub.connection, "records": records}
        return self._start(
            name, "tests.soak.official", {**job_fields, "store": self.store.url, **job}
        )

    def _new_name(self, kind: str) -> tuple[str, str]:
        self._hosts_started += 1
        name = f"{kind}-{self._hosts_started}"
        return name, str(self.folder / f"{name}.records")

    def _start(self, name: str, module: str, job: dict[str, Any]) -> HostProcess:
        self.hosts[name] = HostProcess(name, module, job, self.folder / f"{name}.err")
        return self.hosts[name]

    def start_sender(self, **job: Any) -> None:
        job_fields = asdict(sender.Job(self.hub.connection, str(self.folder / "sender.records")))
        self.sender = HostProcess(
            "sender", "tests.soak.sender", {**job_fields, **job}, self.folder / "sender.err"
        )

    def stop_sender(self) -> None:
        assert self.sender is not None
        self.check(self.sender.leave() == 0, "the sender ended with an error")
        self.sender = None

    def leave(self, name: str) -> None:
        code = self.hosts.pop(name).leave()
        # A host that is stopped while it starts owns nothing, and may end by the signal.
        came_up = (self.folder / f"{name}.records").exists()
        clean = code == 0 or (not came_up and code == -signal.SIGTERM)
        self.check(clean, f"{name} ended with {code}")

    def kill(self, name: str) -> None:
        self.hosts.pop(name).kill()

    # -- waiting ----------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], expected: str, limit_s: float = LIMIT_S) -> None:
        """Wait for a condition, and read new records meanwhile."""
        ends_s = time.monotonic() + limit_s
        while True:
            self.reader.read_new()
            if condition():
                return
            self._all_live()
            self.check(
                time.monotonic() < ends_s,
                f"waited {limit_s:.0f} s for {expected}, and it did not come",
            )
            time.sleep(POLL_S)

    def _all_live(self) -> None:
        for name, process in self.hosts.items():
            self.check(process.process.poll() is None, f"{name} ended by itself")

    def check(self, condition: bool, expected: str) -> None:
        if not condition:
            tails = [f"{path.name}: {path.read_text()[-2000:]}" for path in self._errors()]
            raise AssertionError("\n".join([expected, *tails]))

    def _errors(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("*.err")) if path.stat().st_size]

    def pass_time(self, seconds: float) -> None:
        """Let a fault last."""
        time.sleep(seconds)

    def until_all_move(self, expected: str) -> None:
        """Wait until every partition has handled events that were sent after now."""
        since_s = time.monotonic()
        self.until(lambda: self.moved_since(since_s) == set(self.partitions), expected)

    def moved_since(self, since_s: float) -> set[str]:
        recent = (record for record in reversed(self.reader.records) if record.event == "in")
        return {record.partition for record in recent if record.at_s > since_s}

    def in_hand(self, name: str) -> set[str]:
        """The partitions of which this host has a batch that is being handled."""
        self.reader.read_new()
        hand: set[tuple[str, int]] = set()
        for record in self.reader.records:
            if record.host == name and record.event == "in":
                hand.add((record.partition, record.first))
            elif record.host == name and record.event == "out":
                hand.discard((record.partition, record.first))
        return {partition for partition, _ in hand}

    def reached(self) -> dict[str, int]:
        """The highest handled sequence number by partition."""
        reached = dict.fromkeys(self.partitions, -1)
        for record in self.reader.records:
            if record.event == "out":
                reached[record.partition] = max(reached[record.partition], record.last)
        return reached
