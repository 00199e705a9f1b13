"""Reports of tasks to the driver: how much they read, how long it took, and the last event.

Tasks run in other processes, often on other machines. Each sends one line of JSON over TCP to the
process of the driver, with a token that only the tasks of the query have. It is best effort: a lost
report only makes the next estimate worse. No task waits: a thread of the worker process sends the
reports.

    task -> report_sender.post -> socket -> ReportListener -> ReadStatistics, positions -> Planner
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
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
UNREACHABLE_S = 60.0  # the pause after a driver could not be reached
QUEUE_MAX = 64  # reports that wait in a worker process
OLD_WEIGHT = 0.8  # of the old mean, when a new batch is reported
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one task read of one partition."""

    partition: str
    events: int
    bytes: int
    # Waiting for the hub and decoding, without the time that Spark needs for the rows.
    seconds: float
    last: KnownPosition | None = None  # the last event read


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where a task reaches the driver; it is sent to the tasks."""

    host: str
    port: int
    token: str = field(repr=False)


# -- pure -----------------------------------------------------------------------------------------


def mean_bytes(before: float | None, report: TaskReport) -> float | None:
    """The moving mean size of an event."""
    if not report.events:
        return before
    new = report.bytes / report.events
    return new if before is None else OLD_WEIGHT * before + (1 - OLD_WEIGHT) * new


def slow_partition_factors(
    reports: Mapping[str, TaskReport], partitions: int, acceptable_s: float
) -> dict[str, float]:
    """The factor by which slow partitions are read less, from the last report of each.

    A partition is slow if its time per event exceeds the mean by a standard deviation and its time
    exceeds `acceptable_s`. Its factor is the mean divided by its own time per event. Reports of
    fewer than half of the partitions give no mean.
    """
    if all(report.seconds <= acceptable_s for report in reports.values()):
        return {}  # nearly always: computing the deviation takes a fifth of a small plan
    costs = {
        name: report.seconds / report.events for name, report in reports.items() if report.events
    }
    if 2 * len(costs) < partitions or len(costs) < 2:
        return {}
    mean = fmean(costs.values())
    slow_cost = mean + pstdev(costs.values())
    return {
        name: mean / cost
        for name, cost in costs.items()
        if cost > slow_cost and reports[name].seconds > acceptable_s
    }


def to_line(token: str, reports: Sequence[TaskReport]) -> bytes:
    message = {"token": token, "reports": [asdict(report) for report in reports]}
    return json.dumps(message).encode() + b"\n"


def from_line(token: str, line: bytes) -> list[TaskReport]:
    """The reports in a line; none if the token is wrong."""
    message = json.loads(line)
    if not secrets.compare_digest(str(message["token"]).encode(), token.encode()):
        return []
    return [read_report(fields) for fields in message["reports"]]


def read_report(fields: dict[str, Any]) -> TaskReport:
    last = fields.pop("last")
    return TaskReport(**fields, last=KnownPosition(**last) if last is not None else None)


# -- the driver's side ----------------------------------------------------------------------------


class ReportListener:
    """Receives the reports of the tasks, in a thread of its own."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self._token = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self.address = DriverAddress(host, self._socket.getsockname()[1], self._token)
        self._reports: dict[str, TaskReport] = {}
        self._event_bytes: float | None = None
        self._received_s: float | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="task reports", daemon=True)
        self._thread.start()

    def statistics(self, partitions: int, acceptable_s: float) -> ReadStatistics:
        with self._lock:
            factors = slow_partition_factors(self._reports, partitions, acceptable_s)
            return ReadStatistics(self._event_bytes, factors)

    @property
    def received_s(self) -> float | None:
        """When the last report arrived, on the monotonic clock."""
        with self._lock:
            return self._received_s

    def positions(self) -> dict[str, KnownPosition]:
        """The last event read of each partition."""
        with self._lock:
            return {
                name: report.last
                for name, report in self._reports.items()
                if report.last is not None
            }

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SEND_S)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            # Any process may connect and send anything: it must not end this thread.
            with connection, suppress(Exception):
                self._record(from_line(self._token, read_line(connection)))

    def _record(self, reports: Sequence[TaskReport]) -> None:
        with self._lock:
            self._received_s = time.monotonic() if reports else self._received_s
            for report in reports:
                self._reports[report.partition] = report
                self._event_bytes = mean_bytes(self._event_bytes, report)


def read_line(connection: socket.socket) -> bytes:
    """One line, or what arrives of it before the deadline."""
    line, deadline_s = b"", time.monotonic() + LINE_S
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        chunk = connection.recv(LINE_BYTES_MAX - len(line))
        if not chunk:
            break
        line += chunk
    return line


def reachable_host(hub_host: str, hub_port: int) -> str:
    """The address of this machine that tasks can reach: the one that connects to the hub.

    A hub on this machine is reached over loopback, and then so is the driver. Nothing is sent.
    """
    if local_ip := os.environ.get("SPARK_LOCAL_IP"):
        return local_ip
    with suppress(OSError):
        family, *_, address = socket.getaddrinfo(hub_host, hub_port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return LOOPBACK


# -- the tasks' side ------------------------------------------------------------------------------


class ReportSender:
    """Sends reports to drivers, so that no task waits. One for each worker process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = -1
        self._queue: queue.Queue[tuple[DriverAddress, Sequence[TaskReport]]] = queue.Queue(
            QUEUE_MAX
        )
        self._unreachable: dict[DriverAddress, float] = {}  # when to try again

    def post(self, address: DriverAddress, reports: Sequence[TaskReport]) -> None:
        """Queue reports for sending; they are dropped if the queue is full."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has no copy of the thread
                self._process, self._queue = os.getpid(), queue.Queue(QUEUE_MAX)
                threading.Thread(target=self._run, name="report sender", daemon=True).start()
        with suppress(queue.Full):
            self._queue.put_nowait((address, reports))

    def _run(self) -> None:
        while True:
            address, reports = self._queue.get()
            if self._unreachable.get(address, 0.0) > time.monotonic():
                continue
            try:
                send(address, reports)
            except OSError:
                self._unreachable = {address: time.monotonic() + UNREACHABLE_S}


def send(address: DriverAddress, reports: Sequence[TaskReport]) -> None:
    with socket.create_connection((address.host, address.port), SEND_S) as connection:
        connection.sendall(to_line(address.token, reports))


report_sender = ReportSender()
