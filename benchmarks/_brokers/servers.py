"""Starts, kills and restarts the process of a broker on loopback, with a data folder of its own.

A broker ends with its block, and also if the benchmark is killed: the kernel kills it then.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

from benchmarks._brokers.model import Broker, Launch
from benchmarks._processes import ROOT

LOOPBACK = "127.0.0.1"
STOP_S, LOOK_S = 10.0, 0.002
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class NotReady(Exception):
    """A broker did not start."""


@contextmanager
def data_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pumphouse-brokers-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """A running broker."""

    def __init__(self, broker: Broker, folder: Path, mode: str, start_s: float) -> None:
        launch = broker.launch(folder, mode)
        self.log = folder / "output.txt"
        self.processes: list[Popen[bytes]] = []
        started = time.perf_counter()
        try:
            for command in launch.commands:
                self.processes.append(self.spawn(command, launch))
            self.address = launch.ready(self.process, time.monotonic() + start_s)
        except BaseException as error:
            self.end(signal.SIGKILL)
            if isinstance(error, NotReady | OSError):  # OSError: a program is missing
                print(self.last_output(), file=sys.stderr)
                raise NotReady(f"{error} (it had {start_s:g} s)") from None
            raise
        self.start_s = time.perf_counter() - started

    @property
    def process(self) -> Popen[bytes]:
        return self.processes[-1]

    @property
    def pid(self) -> int:
        return self.process.pid

    def spawn(self, command: Sequence[str], launch: Launch) -> Popen[bytes]:
        with self.log.open("ab") as log:
            return Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **launch.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if launch.prints_address else log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def end(self, number: signal.Signals) -> None:
        """Signal the broker, and kill what is left of it and of its helpers after a while."""
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            with suppress(ProcessLookupError):  # also processes that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def last_output(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-3:])


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def running(broker: Broker, folder: Path, mode: str, start_s: float) -> Iterator[Server]:
    """The broker for the length of the block; it has `start_s` seconds to be ready."""
    server = Server(broker, folder, mode, start_s)
    try:
        yield server
    finally:
        server.end(signal.SIGTERM)


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    listening = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in listening]
    for each in listening:
        each.close()
    return ports


def greets(port: int, says: bytes, expects: bytes, address: str) -> Callable[..., str]:
    """Waits until a server responds to a greeting as its protocol demands."""

    def ready(process: Popen[bytes], until: float) -> str:
        while not responds(port, says, expects):
            if process.poll() is not None:
                raise NotReady(f"it ended with status {process.returncode}")
            if time.monotonic() > until:
                raise NotReady("not ready")
            time.sleep(LOOK_S)
        return address

    return ready


def responds(port: int, says: bytes, expects: bytes) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(says)
            return connection.recv(len(expects)) == expects
    except OSError:
        return False
