"""A soak: real processes are killed, suspended and restarted while events flow; then checked.

    python -m tests.soak.run --minutes 30 --seed 7 [--store postgres] [--hosts 5] [--partitions 16]
                             [--apis pull class functions keys | --apis fixed]

The seed determines the faults; their timing depends on the machine, so two runs of a seed are not
identical. If an invariant is violated it exits with status 1 and keeps the records.

    steps -> Soak -> Fleet -> records -> verify -> Verdict
             ^^^^ this module
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from random import Random

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from tests.azurite.server import Azurite
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer
from tests.soak import script
from tests.soak.fleet import AzuriteStore, Fleet, ServerStore, SqliteFile, Store, suspended
from tests.soak.host import CLASS, FIXED, FUNCTIONS, KEYS, LEASE_S, PULL
from tests.soak.script import Step
from tests.soak.verify import Evidence, Verdict, verify

HOSTS, PARTITIONS = 5, 16
APIS = (PULL, CLASS, FUNCTIONS, KEYS)  # in turn; fixed hosts do not share with others
STORES = ("blob", "sqlite", "postgres", "redis")
HOSTS_MIN = 2  # never fewer than these
TAKES_ONE = ("kill", "leave")
RECEIVE_S = 30.0

Report = Callable[[str], None]


class Soak:
    """One fleet, and the faults injected into it."""

    def __init__(
        self,
        fleet: Fleet,
        rng: Random,
        report: Report,
        lease_s: float = LEASE_S,
        apis: Sequence[str] = APIS,
    ) -> None:
        self.fleet, self.rng, self.report, self.lease_s = fleet, rng, report, lease_s
        self._apis = cycle(apis)
        self.moves = FIXED not in apis
        self.done: Counter[str] = Counter()
        self.frozen: list[str] = []  # hosts that were suspended for longer than a lease

    def start(self, hosts: int) -> None:
        for _ in range(hosts):
            self.join()
        self.fleet.start_sender()
        self.fleet.until_all_move("the fleet to start")

    def apply(self, step: Step) -> None:
        """Inject a fault, and wait for recovery unless the next step is to follow at once."""
        if step.kind in TAKES_ONE and len(self.fleet.hosts) <= HOSTS_MIN:
            return self.report(f"{step.kind}: skipped, there are {len(self.fleet.hosts)} hosts")
        self.done[step.kind] += 1
        self.report(f"{step.kind}{' (hurried)' if step.hurried else ''}: {self.state()}")
        getattr(self, f"_{step.kind}")(step)
        if not step.hurried:
            self.fleet.until_all_move(f"all partitions to continue after {step.kind}")

    def state(self) -> str:
        handled = sum(reached + 1 for reached in self.fleet.reached().values())
        return f"{len(self.fleet.hosts)} hosts, {handled} events handled"

    def join(self) -> str:
        times = {"renew_s": self.lease_s / 4, "interval_s": self.lease_s / 6}
        api, partitions = next(self._apis), len(self.fleet.partitions)
        host = self.fleet.join(lease_s=self.lease_s, **times, api=api, partitions=partitions)
        return host.name

    def _any_host(self) -> str:
        return self.rng.choice(sorted(self.fleet.hosts))

    def _host_at_work(self) -> str:
        """A host that has handled the last batch of some partition."""
        self.fleet.reader.read_new()
        recent = {r.partition: r.host for r in self.fleet.reader.records if r.event == "in"}
        return self.rng.choice(sorted(set(recent.values()) & self.fleet.hosts.keys()))

    def _join(self, step: Step) -> None:
        name = self.join()
        if not step.hurried and self.moves:  # a fixed host gets only what is free
            self.fleet.until(lambda: self.works(name), f"{name} to get its share")

    def works(self, name: str) -> bool:
        return any(
            record.host == name and record.event == "in" for record in self.fleet.reader.records
        )

    def _leave(self, step: Step) -> None:
        self.fleet.leave(self._any_host())

    def _kill(self, step: Step) -> None:
        self.fleet.kill(self._any_host())

    def _freeze(self, step: Step) -> None:
        """Suspend a host while it handles a batch; after a lease, other hosts take over."""
        name = self._any_host() if self.moves else self._host_at_work()
        process = self.fleet.hosts[name].process
        self.fleet.until(lambda: bool(self.fleet.in_hand(name)), f"{name} to be at work")
        while True:
            with suspended(process):
                if held := self.fleet.in_hand(name):
                    self.fleet.pass_time(step.leases * self.lease_s)
                    if step.leases > 1:
                        self.fleet.until_all_move("others to take over from a suspended host")
                    break
        if step.leases > 1:
            self.frozen.append(name)
            self.fleet.until(lambda: held <= self.refused(name), f"{name} to be refused")

    def refused(self, name: str) -> set[str]:
        records = self.fleet.reader.records
        return {
            record.partition for record in records if record.event == "lost" and record.host == name
        }

    def _hub(self, step: Step) -> None:
        self.fleet.hub.kill()
        self.fleet.hub.start()

    def _store(self, step: Step) -> None:
        with self.fleet.store.outage():
            self.fleet.pass_time(step.leases * self.lease_s)

    def finish(self) -> Evidence:
        """Without faults: wait until all is handled, stop all hosts, collect the evidence."""
        self.report(f"finish: {self.state()}")
        self.fleet.until_all_move("the fleet to recover")
        self.fleet.stop_sender()
        ends = asyncio.run(read_ends(self.fleet.hub.connection))
        self.fleet.until(lambda: self.fleet.reached() == ends, "everything to be handled")
        for name in sorted(self.fleet.hosts):
            self.fleet.leave(name)
        self.fleet.reader.read_new()
        return asyncio.run(evidence_of(self.fleet, ends))


async def read_ends(connection: str) -> dict[str, int]:
    async with open_client(connection) as client:
        partitions = (await client.properties()).partitions
        return {p: (await client.partition_properties(p)).last_sequence for p in partitions}


async def evidence_of(fleet: Fleet, ends: Mapping[str, int]) -> Evidence:
    """The records, and what hub and store have kept. All hosts have stopped."""
    async with open_client(fleet.hub.connection) as client:
        events = {p: await read_log(client, p, end) for p, end in ends.items()}
        group = Group(client.namespace, client.hub)
    async with open_store(fleet.store.url) as store:
        stored = await store.list_checkpoints(group)
    checkpoints = {checkpoint.partition: checkpoint.sequence for checkpoint in stored}
    log = {p: [event.body for event in series] for p, series in events.items()}
    keys = {p: [event.partition_key or "" for event in series] for p, series in events.items()}
    return Evidence(fleet.reader.records, log, keys, checkpoints)


async def read_log(client: HubClient, partition: str, end: int) -> list[Event]:
    """Every event of a partition, read by a plain reader."""
    reader = await client.reader(ReaderOptions(partition))
    log: list[Event] = []
    while len(log) <= end:
        events = await reader.receive(1000, RECEIVE_S)
        assert events, f"partition {partition} ends before {end}"
        assert events[0].sequence == len(log), f"the log of partition {partition} has a gap"
        log += events
    await reader.close()
    return log


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[Store]:
    if kind == "sqlite":
        yield SqliteFile(folder / "leases.db")
    elif kind == "postgres":
        with PostgresServer(fsync="on") as database:
            yield ServerStore(database.shared(), database.stop, database.restart)
    elif kind == "redis":
        with RedisServer() as server:
            yield ServerStore(server.url(), server.stop, server.start)
    else:
        with Azurite() as azurite:
            yield AzuriteStore(azurite)


def soak(
    seed: int,
    kind: str,
    folder: Path,
    *,
    seconds: float = 0.0,
    hosts: int = HOSTS,
    partitions: int = PARTITIONS,
    lease_s: float = LEASE_S,
    first: Sequence[str] = script.BAG,
    apis: Sequence[str] = APIS,
    report: Report = lambda text: None,
) -> tuple[Soak, Verdict]:
    """At least one bag of faults, more until the time is up, then recovery and the verdict."""
    rng = Random(seed)
    with store_of(kind, folder) as store, Fleet(folder, store, partitions) as fleet:
        run = Soak(fleet, rng, report, lease_s, apis)
        ends_s = time.monotonic() + seconds
        run.start(hosts)
        for number, step in enumerate(script.steps(rng, first=first)):
            if number >= len(first) and time.monotonic() > ends_s:
                break
            run.apply(step)
        return run, verify(run.finish())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--store", choices=STORES, default="blob")
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--apis", nargs="+", choices=[*APIS, FIXED], default=list(APIS))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{options.seed}-"))
    began_s = time.monotonic()

    def report(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:7.1f} s  {text}\n")
        sys.stderr.flush()

    try:
        run, verdict = soak(
            options.seed,
            options.store,
            folder,
            seconds=options.minutes * 60,
            hosts=options.hosts,
            partitions=options.partitions,
            apis=options.apis,
            report=report,
        )
        violations = verdict.violations
        report(f"{dict(run.done)}")
        report(f"{verdict}")
    except AssertionError as failed:
        violations = (str(failed),)
    if not violations:
        shutil.rmtree(folder)
        return 0
    for violation in violations:
        report(violation)
    report(f"seed {options.seed} violated an invariant with {options.store}; records: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
