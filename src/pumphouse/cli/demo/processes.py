"""Child processes of the demonstration: start them, watch them, stop them with all descendants.

Each process runs in its own session. Ctrl-C in the terminal therefore reaches only the parent,
which stops its children in order. Spark starts a Java process, which starts Python workers, which
change their process group but not their session: the session id finds every descendant.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pumphouse.errors import PumphouseError
from pumphouse.private_files import append_private, create_private

PROC = Path("/proc")
POLL_S = 0.05
KILL_S = 5.0  # the kernel needs a moment to end a killed process
TAIL_LINES = 12
END_WITH_PARENT_VAR = "PUMPHOUSE_TETHER"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The command of one process."""

    name: str
    arguments: Sequence[str]  # without the program name
    env: Mapping[str, str] = field(default_factory=dict)


class DemoProcess:
    """A running `pumphouse` process with its output files."""

    def __init__(
        self, spec: ProcessSpec, process: asyncio.subprocess.Process, folder: Path
    ) -> None:
        self.spec = spec
        self.process = process
        self.output, self.log = output_files(spec, folder)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def log_tail(self) -> str:
        """The last lines of its log, for the error message if it ends unexpectedly."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    async def first_line(self, within_s: float) -> str:
        """Wait for the first line on stdout, which a command prints when it is ready."""
        if not await true_within(within_s, lambda: self._first_line() or self.has_ended):
            raise PumphouseError(
                f"{self.name} was not ready after {within_s:g} s; its log is {self.log}"
            )
        if not (line := self._first_line()):
            raise PumphouseError(f"{self.name} ended before it was ready:\n{self.log_tail()}")
        return line

    def _first_line(self) -> str:
        line, end, _ = self.output.read_text(errors="replace").partition("\n")
        return line if end else ""


def output_files(spec: ProcessSpec, folder: Path) -> tuple[Path, Path]:
    """The files for stdout and stderr of a process."""
    # Files, not pipes: a surviving descendant would keep a pipe open and block the reader.
    return folder / f"{spec.name}.out", folder / f"{spec.name}.log"


@contextlib.contextmanager
def open_outputs(output: Path, log: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The files for stdout and stderr: private, because the hub prints the key of its root rule."""
    with open(create_private(output), "wb") as stdout, open(append_private(log), "ab") as stderr:
        yield stdout, stderr


async def start(spec: ProcessSpec, folder: Path) -> DemoProcess:
    with open_outputs(*output_files(spec, folder)) as (stdout, stderr):
        process = await asyncio.create_subprocess_exec(
            *command(spec.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, END_WITH_PARENT_VAR: "1", **spec.env},
            start_new_session=True,
        )
    return DemoProcess(spec, process, folder)


async def true_within(within_s: float, condition: Callable[[], object]) -> bool:
    """Poll a condition until it is true or the time is over; returns its last value.

    Polling is necessary: a change in another process cannot wake this event loop.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while not (met := bool(condition())) and loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return met


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pumphouse", *arguments]


async def stop(processes: Iterable[DemoProcess], within_s: float) -> list[str]:
    """Send SIGTERM to all processes, then kill the sessions that are alive after `within_s`.

    Returns the names of the processes whose session was killed.
    """
    stopping = [process for process in processes if not process.has_ended or pids_in(process.pid)]
    for process in stopping:
        if not process.has_ended:
            process.process.terminate()
    await true_within(within_s, lambda: not any_alive(stopping))
    late = [process for process in stopping if pids_in(process.pid)]
    for process in late:
        kill_session(process.pid)
    await true_within(
        KILL_S, lambda: not any_alive(stopping) and all(p.has_ended for p in stopping)
    )
    return [process.name for process in late]


def any_alive(processes: Iterable[DemoProcess]) -> bool:
    return any(pids_in(process.pid) for process in processes)


def kill_session(session: int) -> None:
    """Send SIGKILL to every process of a session."""
    for pid in pids_in(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids_in(session: int) -> list[int]:
    """The process ids of a session, without zombies."""
    return [
        int(entry.name)
        for entry in PROC.iterdir()
        if entry.name.isdecimal() and _session_of(entry) == session
    ]


def _session_of(entry: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        # "pid (name) state ppid pgrp session ...": the name may hold spaces and brackets.
        state, _, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(session)
    return None


def end_with_parent() -> None:
    """In a child: receive SIGTERM when the parent process ends, even if it is killed."""
    if sys.platform != "linux" or os.environ.pop(END_WITH_PARENT_VAR, None) is None:
        return
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:  # the parent ended before prctl took effect
        os.kill(os.getpid(), signal.SIGTERM)
