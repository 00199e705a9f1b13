"""The processes of a soak: a hub on disk, a store, hosts and a sender, each to be ended by its id.

Fleet -> pumphouse up, Azurite, tests.soak.host, tests.soak.sender -> books
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
from tests.soak.records import Pages

ROOT = Path(__file__).parents[2]
PUMPHOUSE = Path(sys.executable).with_name("pumphouse")
HUB = "sensors"
LIMIT_S = 240.0  # for anything that must come; a busy machine may take its time
LOOK_S = 0.1


class Store(Protocol):
    """Where the rows are, and how to make it fall silent."""

    @property
    def place(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def silent(self) -> AbstractContextManager[None]: ...


class AzuriteStore:
    """Blobs; silent while the process of the emulator is stopped."""

    def __init__(self, azurite: Azurite, container: str = "soak") -> None:
        self._azurite, self._container = azurite, container
        self.options: dict[str, Any] = {"create_container": True}

    @property
    def place(self) -> str:
        return f"{self._azurite.connection_string()};Container={self._container}"

    @contextmanager
    def silent(self) -> Iterator[None]:
        process = self._azurite._process
        assert process is not None
        with stopped(process):
            yield


class SqliteFile:
    """A file; silent to writers while we hold its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.options: dict[str, Any] = {}

    @property
    def place(self) -> str:
        return f"sqlite://{self._path}"

    @contextmanager
    def silent(self) -> Iterator[None]:
        db = sqlite3.connect(self._path, timeout=LIMIT_S, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")
        finally:
            db.close()


@contextmanager
def stopped(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A process in its tracks, and on again."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


class HubProcess:
    """`pumphouse up` on a data directory; after a crash it comes back on the same port."""

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
    """A host, ours or an official one, by its module."""

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
        with self.process.stdin as told:
            told.write(json.dumps(job).encode())

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
    """Hub, hosts and sender over one store; `pages` is what they have written down so far."""

    def __init__(self, folder: Path, store: Store, partitions: int) -> None:
        self.folder, self.store = folder, store
        self.partitions = [str(number) for number in range(partitions)]
        self.hub = HubProcess(folder / "data", partitions)
        self.hosts: dict[str, HostProcess] = {}
        self.pages = Pages(folder)
        self.sender: HostProcess | None = None
        self._named = 0
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

    # -- who takes part ---------------------------------------------------------------------------

    def join(self, **job: Any) -> HostProcess:
        """One host more, of ours."""
        name, book = self._new_name("host")
        told = host.Job(name, self.hub.connection, self.store.place, book, **self.store.options)
        return self._start(name, "tests.soak.host", {**asdict(told), **job})

    def join_official(self, **job: Any) -> HostProcess:
        """One host more, with the official client and its own store."""
        name, book = self._new_name("sdk")
        told = {"name": name, "connection": self.hub.connection, "book": book}
        return self._start(name, "tests.soak.official", {**told, "store": self.store.place, **job})

    def _new_name(self, kind: str) -> tuple[str, str]:
        self._named += 1
        name = f"{kind}-{self._named}"
        return name, str(self.folder / f"{name}.book")

    def _start(self, name: str, module: str, job: dict[str, Any]) -> HostProcess:
        self.hosts[name] = HostProcess(name, module, job, self.folder / f"{name}.err")
        return self.hosts[name]

    def start_sender(self, **job: Any) -> None:
        told = asdict(sender.Job(self.hub.connection, str(self.folder / "sender.book")))
        self.sender = HostProcess(
            "sender", "tests.soak.sender", {**told, **job}, self.folder / "sender.err"
        )

    def stop_sender(self) -> None:
        assert self.sender is not None
        self.check(self.sender.leave() == 0, "the sender ended badly")
        self.sender = None

    def leave(self, name: str) -> None:
        code = self.hosts.pop(name).leave()
        # One that was told before it had come up owned nothing, and had nothing to put in order.
        came_up = (self.folder / f"{name}.book").exists()
        clean = code == 0 or (not came_up and code == -signal.SIGTERM)
        self.check(clean, f"{name} ended with {code}")

    def kill(self, name: str) -> None:
        self.hosts.pop(name).kill()

    # -- waiting ----------------------------------------------------------------------------------

    def until(self, happens: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Until it is so, reading what is written meanwhile."""
        ends_s = time.monotonic() + limit_s
        while True:
            self.pages.turn()
            if happens():
                return
            self._all_live()
            self.check(time.monotonic() < ends_s, f"waited {limit_s:.0f} s in vain for {what}")
            time.sleep(LOOK_S)

    def _all_live(self) -> None:
        for name, one in self.hosts.items():
            self.check(one.process.poll() is None, f"{name} ended by itself")

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            tails = [f"{path.name}: {path.read_text()[-2000:]}" for path in self._errors()]
            raise AssertionError("\n".join([what, *tails]))

    def _errors(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("*.err")) if path.stat().st_size]

    def pass_time(self, seconds: float) -> None:
        """Let a fault last."""
        time.sleep(seconds)

    def until_all_move(self, what: str) -> None:
        """Until events that came after this moment were handled in every partition."""
        since_s = time.monotonic()
        self.until(lambda: self.moved_since(since_s) == set(self.partitions), what)

    def moved_since(self, since_s: float) -> set[str]:
        recent = (line for line in reversed(self.pages.lines) if line.word == "in")
        return {line.partition for line in recent if line.at_s > since_s}

    def in_hand(self, name: str) -> set[str]:
        """Partitions of which this host has a batch in hand."""
        self.pages.turn()
        hand: set[str] = set()
        for line in self.pages.lines:
            if line.host == name and line.word == "in":
                hand.add(line.partition)
            elif line.host == name and line.word == "out":
                hand.discard(line.partition)
        return hand

    def reached(self) -> dict[str, int]:
        """By partition the highest sequence number that was handled."""
        reached = dict.fromkeys(self.partitions, -1)
        for line in self.pages.lines:
            if line.word == "out":
                reached[line.partition] = max(reached[line.partition], line.last)
        return reached
