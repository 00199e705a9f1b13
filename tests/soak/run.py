"""A soak: real processes, killed, stopped and restarted while events flow; then they are judged.

    python -m tests.soak.run --minutes 30 --seed 7 [--store sqlite] [--hosts 5] [--partitions 16]

The seed decides what happens; how long things take is the machine's affair, so two runs of a seed
are alike, not equal. It ends with status 1, and the seed, if a promise was broken; the books of the
processes are kept then.

    steps -> Soak -> Fleet -> books -> verify -> Verdict
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
from pathlib import Path
from random import Random

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from tests.azurite.server import Azurite
from tests.soak import script
from tests.soak.fleet import AzuriteStore, Fleet, SqliteFile, Store, stopped
from tests.soak.host import LEASE_S
from tests.soak.script import Step
from tests.soak.verify import Evidence, Verdict, verify

HOSTS, PARTITIONS = 5, 16
HOSTS_MIN = 2  # of which none is taken away
TAKES_ONE = ("kill", "leave")
RECEIVE_S = 30.0

Tell = Callable[[str], None]


class Soak:
    """One fleet, and what is done to it."""

    def __init__(self, fleet: Fleet, rng: Random, tell: Tell, lease_s: float = LEASE_S) -> None:
        self.fleet, self.rng, self.tell, self.lease_s = fleet, rng, tell, lease_s
        self.done: Counter[str] = Counter()
        self.frozen: list[str] = []  # hosts that were stopped for longer than a lease

    def start(self, hosts: int) -> None:
        for _ in range(hosts):
            self.join()
        self.fleet.start_sender()
        self.fleet.until_all_move("the fleet to start")

    def take(self, step: Step) -> None:
        """Do it, and wait until the fleet has got over it unless the next step hurries."""
        if step.what in TAKES_ONE and len(self.fleet.hosts) <= HOSTS_MIN:
            return self.tell(f"{step.what}: left out, there are {len(self.fleet.hosts)} hosts")
        self.done[step.what] += 1
        self.tell(f"{step.what}{' (hurried)' if step.hurried else ''}: {self.state()}")
        getattr(self, f"_{step.what}")(step)
        if not step.hurried:
            self.fleet.until_all_move(f"all partitions to go on after {step.what}")

    def state(self) -> str:
        handled = sum(reached + 1 for reached in self.fleet.reached().values())
        return f"{len(self.fleet.hosts)} hosts, {handled} events handled"

    def join(self) -> str:
        times = {"renew_s": self.lease_s / 4, "interval_s": self.lease_s / 6}
        return self.fleet.join(lease_s=self.lease_s, **times).name

    def _any_host(self) -> str:
        return self.rng.choice(sorted(self.fleet.hosts))

    def _join(self, step: Step) -> None:
        name = self.join()
        if not step.hurried:
            self.fleet.until(lambda: self.works(name), f"{name} to get its share")

    def works(self, name: str) -> bool:
        return any(line.host == name and line.word == "in" for line in self.fleet.pages.lines)

    def _leave(self, step: Step) -> None:
        self.fleet.leave(self._any_host())

    def _kill(self, step: Step) -> None:
        self.fleet.kill(self._any_host())

    def _freeze(self, step: Step) -> None:
        """Stop a host with a batch in hand; if it is for long, others take over meanwhile."""
        name = self._any_host()
        process = self.fleet.hosts[name].process
        self.fleet.until(lambda: bool(self.fleet.in_hand(name)), f"{name} to be at work")
        while True:
            with stopped(process):
                if held := self.fleet.in_hand(name):
                    self.fleet.pass_time(step.leases * self.lease_s)
                    if step.leases > 1:
                        self.fleet.until_all_move("others to take over from a stopped host")
                    break
        if step.leases > 1:
            self.frozen.append(name)
            self.fleet.until(lambda: held <= self.refused(name), f"{name} to be refused")

    def refused(self, name: str) -> set[str]:
        lines = self.fleet.pages.lines
        return {line.partition for line in lines if line.word == "lost" and line.host == name}

    def _hub(self, step: Step) -> None:
        self.fleet.hub.kill()
        self.fleet.hub.start()

    def _store(self, step: Step) -> None:
        with self.fleet.store.silent():
            self.fleet.pass_time(step.leases * self.lease_s)

    def calm(self) -> Evidence:
        """No more faults: everything is handled, everybody leaves; what is left is looked at."""
        self.tell(f"calm: {self.state()}")
        self.fleet.until_all_move("the fleet to calm down")
        self.fleet.stop_sender()
        ends = asyncio.run(read_ends(self.fleet.hub.connection))
        self.fleet.until(lambda: self.fleet.reached() == ends, "everything to be handled")
        for name in sorted(self.fleet.hosts):
            self.fleet.leave(name)
        self.fleet.pages.turn()
        return asyncio.run(evidence_of(self.fleet, ends))


async def read_ends(connection: str) -> dict[str, int]:
    async with open_client(connection) as client:
        partitions = (await client.properties()).partitions
        return {p: (await client.partition_properties(p)).last_sequence for p in partitions}


async def evidence_of(fleet: Fleet, ends: Mapping[str, int]) -> Evidence:
    """What the books say, and what hub and store have kept. Everybody has left by now."""
    async with open_client(fleet.hub.connection) as client:
        log = {partition: await read_log(client, partition, end) for partition, end in ends.items()}
        group = Group(client.namespace, client.hub)
    async with open_store(fleet.store.place) as store:
        marks = await store.list_checkpoints(group)
    checkpoints = {mark.partition: mark.sequence for mark in marks}
    return Evidence(fleet.pages.lines, log, checkpoints)


async def read_log(client: HubClient, partition: str, end: int) -> list[bytes]:
    """Every event of a partition, as a plain reader finds it."""
    reader = await client.reader(ReaderOptions(partition))
    bodies: list[bytes] = []
    while len(bodies) <= end:
        events = await reader.receive(1000, RECEIVE_S)
        assert events, f"partition {partition} ends before {end}"
        assert events[0].sequence == len(bodies), f"the log of partition {partition} has a gap"
        bodies += [event.body for event in events]
    await reader.close()
    return bodies


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[Store]:
    if kind == "sqlite":
        yield SqliteFile(folder / "leases.db")
        return
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
    tell: Tell = lambda text: None,
) -> tuple[Soak, Verdict]:
    """At least one bag of faults, more until the time is up, then calm, then the verdict."""
    rng = Random(seed)
    with store_of(kind, folder) as store, Fleet(folder, store, partitions) as fleet:
        run = Soak(fleet, rng, tell, lease_s)
        ends_s = time.monotonic() + seconds
        run.start(hosts)
        for number, step in enumerate(script.steps(rng, first=first)):
            if number >= len(first) and time.monotonic() > ends_s:
                break
            run.take(step)
        return run, verify(run.calm())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--store", choices=["blob", "sqlite"], default="blob")
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{options.seed}-"))
    began_s = time.monotonic()

    def tell(text: str) -> None:
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
            tell=tell,
        )
        violations = verdict.violations
        tell(f"{dict(run.done)}")
        tell(f"{verdict}")
    except AssertionError as failed:
        violations = (str(failed),)
    if not violations:
        shutil.rmtree(folder)
        return 0
    for violation in violations:
        tell(violation)
    tell(f"seed {options.seed} broke a promise with {options.store}; its books are in {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
