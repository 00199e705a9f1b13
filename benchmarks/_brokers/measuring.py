"""Measures brokers: starts one, lets workers use it, and collects what they report.

A peer that cannot be started, or whose worker fails, is left out for the rest of the run, and the
reason is kept. A failure of ours is an error.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks._brokers.hub import Hub
from benchmarks._brokers.kafka_mock import KafkaMock
from benchmarks._brokers.model import DURABLE, MEMORY, Broker, Kind, stream_name
from benchmarks._brokers.nats_jetstream import Nats
from benchmarks._brokers.rabbitmq import RabbitMq
from benchmarks._brokers.redis_streams import Redis
from benchmarks._brokers.servers import NotReady, Server, data_folder, running
from benchmarks._figures import progress
from benchmarks._processes import ROOT, memory_bytes

BROKERS: tuple[Broker, ...] = (Hub(), Redis(), Nats(), KafkaMock(), RabbitMq())
OURS = BROKERS[0].name
WORKER_S = 270.0
LOAD_EVENTS = 1_000_000  # the slowest client sends them within the time of a worker
OURS_START_S = 90.0
FLOOD_S = 15  # a client that does not notice the loss of its broker ends after this time
PUBLISH, CONSUME = "publish", "consume"


class WorkerFailed(Exception):
    """A worker of a peer failed."""


class Rates(NamedTuple):
    """Events per second: of CPU time of the broker, of CPU time of the client, of wall time."""

    broker: float
    client: float
    wall: float


class Case(NamedTuple):
    """What was measured with which kind of client."""

    kind: str
    size: int
    task: str


class Crash(NamedTuple):
    acknowledged: int
    missing: int
    ready_s: float  # from the restart


@dataclass(slots=True)
class Run:
    """What is known in one run of the benchmark."""

    start_s: float  # how long a peer may take to start
    absent: dict[str, str] = field(default_factory=dict)  # reasons by broker or by kind

    def __post_init__(self) -> None:
        for broker in BROKERS:
            if reason := broker.absent():
                self.leave_out(broker.name, reason)

    def limit_s(self, broker: Broker) -> float:
        """How long a broker may take to start; ours may not be absent."""
        return OURS_START_S if broker.name == OURS else self.start_s

    def leave_out(self, name: str, reason: str) -> None:
        progress(f"absent: {name}: {reason}")
        self.absent[name] = reason

    def brokers(self, names: frozenset[str] | None) -> Iterator[Broker]:
        """The brokers that are there; with names, only these of them and ours."""
        for broker in BROKERS:
            wanted = names is None or broker.name in names or broker.name == OURS
            if wanted and broker.name not in self.absent:
                yield broker

    def kinds(self, broker: Broker, mode: str) -> list[Kind]:
        return [k for k in broker.kinds if mode in k.modes and k.name not in self.absent]

    def reason(self, kind: Kind) -> str:
        """Why a kind is absent; empty if it is not."""
        of_broker = [b.name for b in BROKERS if kind in b.kinds]
        return next((self.absent[n] for n in (kind.name, *of_broker) if n in self.absent), "")

    @contextmanager
    def tolerating(self, broker: Broker, kind: Kind | None = None) -> Iterator[None]:
        """Leaves a peer out that fails in the block."""
        try:
            yield
        except (NotReady, WorkerFailed) as error:
            if broker.name == OURS:
                raise
            self.leave_out(kind.name if kind else broker.name, str(error))


def work(server: Server, task: str, kind: Kind, stream: str, mode: str, *rest: int) -> Any:
    """Run a worker to its end and return its result."""
    try:
        done = subprocess.run(
            command(server, task, kind, stream, mode, *rest),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WORKER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerFailed(f"{kind.title} failed to {task}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorkerFailed(f"{kind.title} failed to {task}: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def command(server: Server, task: str, kind: Kind, stream: str, mode: str, *rest: int) -> list[str]:
    module = "benchmarks._brokers.worker"
    fixed = [str(kind.python), "-m", module, task, kind.name, server.address, stream, mode]
    return [*fixed, *map(str, rest)]


# -- costs ----------------------------------------------------------------------------------------


def rates(result: dict[str, float]) -> Rates:
    return Rates(*(result["events"] / result[f"{name}_s"] for name in Rates._fields))


def costs(
    run: Run, mode: str, sizes: dict[int, int], rounds: int, passes: int,
    names: frozenset[str] | None = None,
) -> dict[Case, list[Rates]]:  # fmt: skip
    """The rates of every round; `sizes` has the number of events of each size."""
    found: dict[Case, list[Rates]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for broker in run.brokers(names):
            progress(f"round {number} of {rounds}, {mode}: {broker.name}")
            if not run.kinds(broker, mode):
                continue
            with (
                run.tolerating(broker),
                data_folder() as folder,
                running(broker, folder, mode, run.limit_s(broker)) as server,
            ):
                for size, events in sizes.items():
                    for case, measured in exchange(run, broker, server, mode, size, events, passes):
                        found[case].append(measured)
    return found


def exchange(
    run: Run, broker: Broker, server: Server, mode: str, size: int, events: int, passes: int
) -> Iterator[tuple[Case, Rates]]:
    """Fill the streams of a size, read them, and publish with the clients that share a stream."""
    filled: dict[str, int] = {}
    kinds = run.kinds(broker, mode)
    fillers = [k for k in kinds if k.publishes and not shares_stream(k, kinds)]
    tasks = [(PUBLISH, k) for k in fillers] + [(CONSUME, k) for k in kinds]
    tasks += [(PUBLISH, k) for k in kinds if k.publishes and k not in fillers]
    for task, kind in tasks:
        stream, count = stream_name(kind.name, size), amount(kind, size, events, mode)
        if task == CONSUME and (stream not in filled or few_are_left(kind, mode)):
            continue
        with run.tolerating(broker, kind):
            if task == PUBLISH:
                result = work(server, task, kind, stream, mode, server.pid, size, count)
                filled.setdefault(stream, count)
            else:
                times = passes_of(kind, events, filled[stream], passes)
                result = work(server, task, kind, stream, mode, server.pid, filled[stream], times)
            yield Case(kind.name, size, task), rates(result)


def few_are_left(kind: Kind, mode: str) -> bool:
    """Whether so few events were published that reading them would mostly measure connecting."""
    return mode == DURABLE and kind.durable_share < 1


def shares_stream(kind: Kind, kinds: list[Kind]) -> bool:
    """Whether a kind before it in the list uses the same stream."""
    names = [stream_name(each.name, 0) for each in kinds[: kinds.index(kind)]]
    return stream_name(kind.name, 0) in names


def amount(kind: Kind, size: int, events: int, mode: str) -> int:
    """The number of events for a kind: fewer if it is slow, or if its broker keeps few."""
    most = events if kind.keeps_bytes is None else kind.keeps_bytes // (size + 100)
    share = kind.share * (kind.durable_share if mode == DURABLE else 1)
    return min(int(events * share), most)


def passes_of(kind: Kind, events: int, filled: int, passes: int) -> int:
    """How often a stream is read. A small one is read more often."""
    if not kind.rereads:
        return 1
    if kind.share < 1:
        return max(1, int(passes * kind.share))
    return min(passes * max(1, events // filled), 4 * passes)


# -- delays, starts, memory -----------------------------------------------------------------------


def delays(
    run: Run, events: int, rate: int, rounds: int, names: frozenset[str] | None = None
) -> dict[str, list[list[float]]]:
    """The delays of every round in milliseconds, by kind."""
    size, found = 100, defaultdict[str, list[list[float]]](list)
    for number in range(1, rounds + 1):
        for broker in run.brokers(names):
            progress(f"round {number} of {rounds}, delays: {broker.name}")
            kinds = run.kinds(broker, MEMORY)
            for kind in [each for each in kinds if not shares_stream(each, kinds)]:
                with (
                    run.tolerating(broker, kind),
                    data_folder() as folder,
                    running(broker, folder, MEMORY, run.limit_s(broker)) as server,
                ):
                    stream = stream_name(kind.name, size)
                    result = work(server, "delays", kind, stream, MEMORY, events, rate)
                    found[kind.name].append(result["delays_ms"])
    return found


def starts(run: Run, rounds: int, names: frozenset[str] | None = None) -> dict[str, list[float]]:
    """Seconds from starting the process until it responds, by broker."""
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}, cold starts")
        for broker in run.brokers(names):
            with (
                run.tolerating(broker),
                data_folder() as folder,
                running(broker, folder, MEMORY, run.limit_s(broker)) as server,
            ):
                found[broker.name].append(server.start_s)
    return found


def footprints(run: Run, events: int, size: int) -> dict[str, float]:
    """MiB by which the memory of a broker grows with a number of events, by kind."""
    found = {}
    for broker in run.brokers(None):
        kinds = [k for k in run.kinds(broker, MEMORY) if k.keeps_bytes is None and k.share == 1]
        for kind in kinds[:1]:
            progress(f"memory of {events:,} events of {size} B: {kind.title}")
            with (
                run.tolerating(broker, kind),
                data_folder() as folder,
                running(broker, folder, MEMORY, run.limit_s(broker)) as server,
            ):
                before = memory_bytes(server.pid)
                for sent in range(0, events, LOAD_EVENTS):
                    count, stream = min(LOAD_EVENTS, events - sent), stream_name(kind.name, size)
                    work(server, "load", kind, stream, MEMORY, size, count)
                # A broker that keeps events in files may have less than before.
                found[kind.name] = max(0.0, (memory_bytes(server.pid) - before) / 2**20)
    return found


# -- a crash --------------------------------------------------------------------------------------


def crashes(run: Run, after_s: float, names: frozenset[str] | None = None) -> dict[str, Crash]:
    """What is left after `kill -9` while a client publishes, by kind."""
    found = {}
    for broker in run.brokers(names):
        for kind in broker.kinds:
            if not (kind.publishes and kind.survives) or shares_stream(kind, list(broker.kinds)):
                continue
            progress(f"kill -9: {kind.title}")
            with run.tolerating(broker, kind):
                found[kind.name] = crash(run, broker, kind, after_s)
    return found


def crash(run: Run, broker: Broker, kind: Kind, after_s: float) -> Crash:
    mode = DURABLE if DURABLE in kind.modes else MEMORY
    stream = stream_name(kind.name, 100)
    with data_folder() as folder:
        with running(broker, folder, mode, run.limit_s(broker)) as server:
            acknowledged = flood_and_kill(server, kind, stream, mode, after_s)
        with running(broker, folder, mode, run.limit_s(broker)) as server:
            left = work(server, "find", kind, stream, mode, acknowledged)
            return Crash(acknowledged, left["missing"], server.start_s)


def flood_and_kill(server: Server, kind: Kind, stream: str, mode: str, after_s: float) -> int:
    """The number of acknowledged events of a client whose broker is killed."""
    flooding = subprocess.Popen(
        command(server, "flood", kind, stream, mode, FLOOD_S),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert flooding.stdout is not None
        flooding.stdout.readline()  # its first events are acknowledged
        time.sleep(after_s)
        server.end(signal.SIGKILL)
        output, errors = flooding.communicate(timeout=FLOOD_S + WORKER_S)
    finally:
        flooding.kill()
        flooding.wait()
    if not output:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise WorkerFailed(f"{kind.title} failed to flood: {last}")
    acknowledged: int = json.loads(output.splitlines()[-1])["acknowledged"]
    if not acknowledged:
        raise WorkerFailed(f"{kind.title}: no event was acknowledged before the crash: {errors}")
    return acknowledged
