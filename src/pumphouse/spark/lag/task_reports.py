"""What tasks tell the planner: how much they read, how long it took, and which event was the last.

Tasks run in other processes, often on other machines. Each sends one line of JSON over TCP to the
driver's process, with a token in it that only the query's own tasks know. It is best effort: a
report that is lost changes nothing but the next guess. No task waits for it: a thread of the worker
process carries the reports.

    task -> courier.post -> socket -> Feedback -> Experience, Marks -> Planner, progress
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Any

from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.planner import ReadStatistics

LINE_BYTES_MAX = 1 << 20  # a task may read a thousand partitions
SEND_S, LINE_S = 2.0, 5.0
DEAD_S = 60.0  # a driver that could not be reached is left alone for so long
WAITING_MAX = 64  # reports that a worker holds for its courier
KEEP = 0.8  # of the old mean, when a new batch comes in
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One partition of one task, read."""

    partition: str
    events: int
    bytes: int
    seconds: float  # spent on waiting for the hub and decoding, not on whoever takes the rows
    last: KnownPosition | None = None  # the last event of it


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where reports go; travels with the work to the tasks."""

    host: str
    port: int
    token: str = field(repr=False)


# -- pure -----------------------------------------------------------------------------------------


def mean_bytes(before: float | None, report: TaskReport) -> float | None:
    """The mean size of an event, moving with what is read."""
    if not report.events:
        return before
    now = report.bytes / report.events
    return now if before is None else KEEP * before + (1 - KEEP) * now


def slow_partition_factors(
    reports: Mapping[str, TaskReport], partitions: int, acceptable_s: float
) -> dict[str, float]:
    """How much less slow partitions get, from the last report of each.

    Slow is what takes longer per event than the mean and a standard deviation, in a batch that took
    longer than is acceptable; it gets the mean's part of its own time. Less than half of the
    partitions say nothing about what is usual.
    """
    costs = {one: told.seconds / told.events for one, told in reports.items() if told.events}
    if 2 * len(costs) < partitions or len(costs) < 2:
        return {}
    usual = fmean(costs.values())
    slow = usual + pstdev(costs.values())
    return {
        one: usual / cost
        for one, cost in costs.items()
        if cost > slow and reports[one].seconds > acceptable_s
    }


def to_line(token: str, reports: Sequence[TaskReport]) -> bytes:
    told = {"token": token, "reports": [asdict(report) for report in reports]}
    return json.dumps(told).encode() + b"\n"


def from_line(token: str, line: bytes) -> list[TaskReport]:
    """The reports in a line; none if it is not of one of our own tasks."""
    told = json.loads(line)
    if not secrets.compare_digest(str(told["token"]).encode(), token.encode()):
        return []
    return [read_report(one) for one in told["reports"]]


def read_report(told: dict[str, Any]) -> TaskReport:
    last = told.pop("last")
    return TaskReport(**told, last=KnownPosition(**last) if last is not None else None)


# -- the driver's side ----------------------------------------------------------------------------


class ReportListener:
    """Listens for reports, in a thread of its own."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self._token = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self.address = DriverAddress(host, self._socket.getsockname()[1], self._token)
        self._reports: dict[str, TaskReport] = {}
        self._event_bytes: float | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="feedback", daemon=True)
        self._thread.start()

    def statistics(self, partitions: int, acceptable_s: float) -> ReadStatistics:
        with self._lock:
            factors = slow_partition_factors(self._reports, partitions, acceptable_s)
            return ReadStatistics(self._event_bytes, factors)

    def marks(self) -> dict[str, KnownPosition]:
        """The last event that was read of each partition."""
        with self._lock:
            return {one: told.last for one, told in self._reports.items() if told.last is not None}

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SEND_S)

    def _listen(self) -> None:
        while True:
            try:
                task, _ = self._socket.accept()
            except OSError:
                return  # closed
            # Whoever finds the port may send anything: it must not end this thread.
            with task, suppress(Exception):
                self._take(from_line(self._token, read_line(task)))

    def _take(self, reports: Sequence[TaskReport]) -> None:
        with self._lock:
            for report in reports:
                self._reports[report.partition] = report
                self._event_bytes = mean_bytes(self._event_bytes, report)


def read_line(task: socket.socket) -> bytes:
    """A line, if it comes in time."""
    line, deadline_s = b"", time.monotonic() + LINE_S
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        task.settimeout(max(0.001, deadline_s - time.monotonic()))
        chunk = task.recv(LINE_BYTES_MAX - len(line))
        if not chunk:
            break
        line += chunk
    return line


def reachable_host(hub_host: str, hub_port: int) -> str:
    """Our own address as tasks may see it: the one from which we reach the hub, as they do.

    A hub on this machine is reached over loopback, and then so are we. Nothing is sent.
    """
    if told := os.environ.get("SPARK_LOCAL_IP"):
        return told
    with suppress(OSError):
        found = socket.getaddrinfo(hub_host, hub_port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    return LOOPBACK


# -- the tasks' side ------------------------------------------------------------------------------


class ReportSender:
    """Carries reports to drivers, so that no task waits for it. One for each worker process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = -1
        self._waiting: queue.Queue[tuple[DriverAddress, Sequence[TaskReport]]] = queue.Queue(
            WAITING_MAX
        )
        self._dead: dict[DriverAddress, float] = {}  # until when they are left alone

    def post(self, address: DriverAddress, reports: Sequence[TaskReport]) -> None:
        """Take reports along; if there are too many already, these are lost."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has the memory, but not the thread
                self._process, self._waiting = os.getpid(), queue.Queue(WAITING_MAX)
                threading.Thread(target=self._carry, name="courier", daemon=True).start()
        with suppress(queue.Full):
            self._waiting.put_nowait((address, reports))

    def _carry(self) -> None:
        while True:
            address, reports = self._waiting.get()
            if self._dead.get(address, 0.0) > time.monotonic():
                continue
            try:
                send(address, reports)
            except OSError:
                self._dead = {address: time.monotonic() + DEAD_S}


def send(address: DriverAddress, reports: Sequence[TaskReport]) -> None:
    with socket.create_connection((address.host, address.port), SEND_S) as there:
        there.sendall(to_line(address.token, reports))


report_sender = ReportSender()
