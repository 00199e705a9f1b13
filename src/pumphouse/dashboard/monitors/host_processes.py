"""Host processes that the page can start, stop and kill.

    button -> Fleet.add, stop, kill -> python -m pumphouse.dashboard.monitors.host -> leases -> page
              ^^^^^ this module

A host gets the connection string and the store from its environment, which other users cannot
read. Its standard input is a pipe from the dashboard process: when that process ends, the pipe
closes and the host stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, Self

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import OptionError

FACES = ("pull", "push", "fixed")  # the processor APIs that a host can use
RUNNING, STOPPING, STOPPED, KILLED, FAILED = "running", "stopping", "stopped", "killed", "failed"
ENDED_SHOWN = 4  # ended hosts that are still listed
STDERR_BYTES_MAX, STDERR_CHARS_SHOWN = 4096, 300
STOP_S = 8.0  # from SIGTERM to SIGKILL
KILL_S = 5.0  # from SIGKILL to the end of the process

CONNECTION_VAR = "PUMPHOUSE_HOST_CONNECTION"
STORE_VAR = "PUMPHOUSE_HOST_STORE"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One host process as the page lists it."""

    name: str
    pid: int
    state: str
    since_ms: int  # time of the last state change
    error: str = ""  # the last line on stderr of a failed host
    metrics_port: int | None = None  # where it serves metrics; None: not, or not yet


class Fleet(Protocol):
    """The hosts of one consumer group. `async with` starts the first hosts and stops all."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def hosts(self) -> tuple[HostProcess, ...]:
        """The running hosts, and the last few that have ended."""

    async def add(self) -> str:
        """Start a host; returns its name. Raises OptionError at the maximum number of hosts."""

    async def stop(self, name: str) -> None:
        """Ask a host to finish its batches, release its partitions and end."""

    async def kill(self, name: str) -> None:
        """Kill a host and wait until it is gone. Its leases stay until they expire."""


@dataclass(slots=True)
class RunningHost:
    name: str
    process: asyncio.subprocess.Process
    state: str
    since_ms: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    metrics_port: int | None = None

    def snapshot(self) -> HostProcess:
        return HostProcess(
            self.name, self.process.pid, self.state, self.since_ms, metrics_port=self.metrics_port
        )


class ProcessFleet:
    """A fleet of host processes on this machine."""

    def __init__(
        self,
        connection: str,
        hub: str,
        group: str,
        store: str,
        *,
        face: str = "pull",
        hosts: int = 0,  # at the start
        hosts_max: int = 8,
        lease_s: float = 10.0,
        prefix: str = "host",
        partitions: int = 4,  # per host of the fixed API
        work_ms: float = 0.0,  # simulated work per batch
        metrics: bool = False,  # whether each host serves its metrics, on a free port
        clock: Clock | None = None,
    ) -> None:
        if face not in FACES:
            raise OptionError(f"invalid processor API {face!r}: use {', '.join(FACES)}")
        if not 0 <= hosts <= hosts_max:
            raise OptionError(f"hosts must be from 0 to {hosts_max} (got {hosts})")
        self.arguments = [
            *("--hub", hub, "--group", group, "--face", face, "--lease", f"{lease_s:g}"),
            *("--partitions", str(partitions), "--work-ms", f"{work_ms:g}"),
        ]
        self._metrics = metrics
        if metrics:
            self.arguments.append("--metrics")
        self._secrets = {CONNECTION_VAR: connection, STORE_VAR: store}
        self.hosts_at_start, self.hosts_max, self.prefix = hosts, hosts_max, prefix
        self.clock: Clock = clock or SystemClock()
        self._running: dict[str, RunningHost] = {}
        self._ended: deque[HostProcess] = deque(maxlen=ENDED_SHOWN)
        self._last_number = 0
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<ProcessFleet {self.prefix} | {' '.join(self._running) or 'no host'}>"

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        for _ in range(self.hosts_at_start):
            await self.add()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop all hosts concurrently, and kill those that do not end in time."""
        for name in list(self._running):
            await self.stop(name)
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        await tasks.__aexit__(None, None, None)

    def hosts(self) -> tuple[HostProcess, ...]:
        # Copies, because the thread that serves metrics calls it too.
        running, ended = list(self._running.values()), list(self._ended)
        return (*(host.snapshot() for host in running), *reversed(ended))

    async def add(self) -> str:
        if self._tasks is None:
            raise OptionError("the fleet is not running: use it in an `async with` block")
        if len(self._running) >= self.hosts_max:
            raise OptionError(
                f"cannot add a host: {self.hosts_max} hosts are running, which is the maximum"
            )
        self._last_number += 1
        name = f"{self.prefix}-{self._last_number}"
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "pumphouse.dashboard.monitors.host",
                "--name",
                name,
                *self.arguments,
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if self._metrics else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._secrets},
            # Ctrl-C in the terminal reaches only the dashboard process, which stops its hosts.
            start_new_session=True,
        )
        running = RunningHost(name, process, RUNNING, now_ms(self.clock))
        self._running[name] = running
        self._tasks.create_task(self._wait_for_end(running))
        return name

    async def _wait_for_end(self, host: RunningHost) -> None:
        """Wait until a host has ended, and record how."""
        host.metrics_port = await read_port(host.process.stdout)
        error = await last_line(host.process.stderr)
        code = await host.process.wait()
        self._running.pop(host.name, None)
        state = KILLED if code == -signal.SIGKILL else FAILED
        if host.state == STOPPING and code == 0:
            state = STOPPED
        error = error if state == FAILED else ""
        self._ended.append(
            HostProcess(host.name, host.process.pid, state, now_ms(self.clock), error)
        )
        host.ended.set()

    def _find(self, name: str) -> RunningHost:
        if name not in self._running:
            known = ", ".join(self._running) or "none"
            raise OptionError(f"unknown host {name!r:.60}: running hosts are {known}")
        return self._running[name]

    async def stop(self, name: str) -> None:
        host = self._find(name)
        if host.state == RUNNING:
            host.state, host.since_ms = STOPPING, now_ms(self.clock)
            self._send(host, signal.SIGTERM)
            assert self._tasks is not None
            self._tasks.create_task(self._kill_if_late(host))

    async def _kill_if_late(self, host: RunningHost) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await host.ended.wait()
                return
        self._send(host, signal.SIGKILL)

    async def kill(self, name: str) -> None:
        host = self._find(name)
        self._send(host, signal.SIGKILL)
        with suppress(TimeoutError):  # a process that waits for a disk ends later
            async with asyncio.timeout(KILL_S):
                await host.ended.wait()

    def _send(self, host: RunningHost, signal_number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            host.process.send_signal(signal_number)


async def read_port(stdout: asyncio.StreamReader | None) -> int | None:
    """The port that a host prints at its start; None if it serves no metrics, or has ended."""
    line = b"" if stdout is None else await stdout.readline()
    return int(line) if line.strip().isdigit() else None


async def last_line(stderr: asyncio.StreamReader | None) -> str:
    """Read stderr until its end; returns the last line that is not empty."""
    last = b""
    while stderr is not None and (piece := await stderr.read(STDERR_BYTES_MAX)):
        last = (last + piece)[-STDERR_BYTES_MAX:]
    lines = last.decode("utf-8", "replace").split("\n")
    return next((line.strip()[:STDERR_CHARS_SHOWN] for line in reversed(lines) if line.strip()), "")
