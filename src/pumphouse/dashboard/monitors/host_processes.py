"""Hosts that the page may start, stop and kill: real processes of a plain processor.

    button -> Fleet.add, stop, kill -> python -m pumphouse.dashboard.monitors.host -> leases -> page
              ^^^^^ this module

A host gets the connection string and the store by its environment, which other users cannot read,
and holds on to our end of its standard input: if we die, it notices and stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import OptionError

FACES = ("pull", "push", "fixed")
RUNNING, STOPPING, STOPPED, KILLED, FAILED = "running", "stopping", "stopped", "killed", "failed"
LEFT_SHOWN = 4  # hosts that have ended and are still listed
SAID_MAX, SAID_SHOWN = 4096, 300
STOP_S = 8.0  # until a host that was told to stop is killed

CONNECTION_VAR = "PUMPHOUSE_HOST_CONNECTION"
STORE_VAR = "PUMPHOUSE_HOST_STORE"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One host, as the page lists it."""

    name: str
    pid: int
    state: str
    since_ms: int  # when it came into this state
    said: str = ""  # its last words, if it failed


class Fleet(Protocol):
    """The hosts of one consumer group. `async with` starts those it begins with, and ends all."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def hosts(self) -> tuple[HostProcess, ...]:
        """Those that run, and the last few that have ended."""

    async def add(self) -> str:
        """Start one more; its name. OptionError if there are enough."""

    async def stop(self, name: str) -> None:
        """Tell a host to finish what it has in hand, release its partitions and go."""

    async def kill(self, name: str) -> None:
        """End a host without a word: its leases have to run out."""


@dataclass(slots=True)
class RunningHost:
    name: str
    process: asyncio.subprocess.Process
    state: str
    since_ms: int

    def shown(self) -> HostProcess:
        return HostProcess(self.name, self.process.pid, self.state, self.since_ms)


class ProcessFleet:
    """A fleet of processes on this machine."""

    def __init__(
        self,
        connection: str,
        hub: str,
        group: str,
        store: str,
        *,
        face: str = "pull",
        hosts: int = 0,  # to begin with
        hosts_max: int = 8,
        lease_s: float = 10.0,
        prefix: str = "host",
        partitions: int = 4,  # of a host of the fixed face
        work_ms: float = 0.0,  # what a batch costs it, beside the reading
        clock: Clock | None = None,
    ) -> None:
        if face not in FACES:
            raise OptionError(f"a host's face must be one of {', '.join(FACES)} (got {face!r})")
        if not 0 <= hosts <= hosts_max:
            raise OptionError(f"hosts must be from 0 to {hosts_max} (got {hosts})")
        self.arguments = [
            *("--hub", hub, "--group", group, "--face", face, "--lease", f"{lease_s:g}"),
            *("--partitions", str(partitions), "--work-ms", f"{work_ms:g}"),
        ]
        self._secrets = {CONNECTION_VAR: connection, STORE_VAR: store}
        self.first, self.hosts_max, self.prefix = hosts, hosts_max, prefix
        self.clock: Clock = clock or SystemClock()
        self._running: dict[str, RunningHost] = {}
        self._left: deque[HostProcess] = deque(maxlen=LEFT_SHOWN)
        self._number = 0
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<ProcessFleet {self.prefix} | {' '.join(self._running) or 'no host'}>"

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        for _ in range(self.first):
            await self.add()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop all at once; whoever has not gone in time is killed."""
        for name in list(self._running):
            await self.stop(name)
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        await tasks.__aexit__(None, None, None)

    def hosts(self) -> tuple[HostProcess, ...]:
        return (*(one.shown() for one in self._running.values()), *reversed(self._left))

    async def add(self) -> str:
        if self._tasks is None:
            raise OptionError("this fleet is not open")
        if len(self._running) >= self.hosts_max:
            raise OptionError(f"{self.hosts_max} hosts run already, which is the most here")
        self._number += 1
        name = f"{self.prefix}-{self._number}"
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
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._secrets},
            # Ctrl-C in a terminal is for us; we then stop our hosts in order.
            start_new_session=True,
        )
        running = RunningHost(name, process, RUNNING, now_ms(self.clock))
        self._running[name] = running
        self._tasks.create_task(self._see_off(running))
        return name

    async def _see_off(self, one: RunningHost) -> None:
        """Wait until a host has ended, and write down how."""
        said = await last_words(one.process.stderr)
        code = await one.process.wait()
        self._running.pop(one.name, None)
        state = {STOPPING: STOPPED}.get(one.state, one.state)
        if state == RUNNING or (state == STOPPED and code):
            state = KILLED if code == -signal.SIGKILL else FAILED
        said = said if state == FAILED else ""
        self._left.append(HostProcess(one.name, one.process.pid, state, now_ms(self.clock), said))

    def _find(self, name: str) -> RunningHost:
        if name not in self._running:
            known = ", ".join(self._running) or "none"
            raise OptionError(f"no host {name!r:.60} runs here; these do: {known}")
        return self._running[name]

    async def stop(self, name: str) -> None:
        one = self._find(name)
        if one.state == RUNNING:
            self._mark(one, STOPPING)
            self._send(one, signal.SIGTERM)
            assert self._tasks is not None
            self._tasks.create_task(self._insist(one))

    async def _insist(self, one: RunningHost) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await one.process.wait()
                return
        self._mark(one, KILLED)
        self._send(one, signal.SIGKILL)

    async def kill(self, name: str) -> None:
        one = self._find(name)
        self._mark(one, KILLED)
        self._send(one, signal.SIGKILL)

    def _mark(self, one: RunningHost, state: str) -> None:
        one.state, one.since_ms = state, now_ms(self.clock)

    def _send(self, one: RunningHost, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended in this very moment
            one.process.send_signal(number)


async def last_words(stderr: asyncio.StreamReader | None) -> str:
    """The last line that a process wrote before it ended; what it wrote before is forgotten."""
    last = b""
    while stderr is not None and (piece := await stderr.read(SAID_MAX)):
        last = (last + piece)[-SAID_MAX:]
    lines = last.decode("utf-8", "replace").split("\n")
    return next((line.strip()[:SAID_SHOWN] for line in reversed(lines) if line.strip()), "")
