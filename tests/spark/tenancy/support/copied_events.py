"""Two hubs in a process of their own, a sender, and a comparison of what was sent and copied."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.leases.model import Group
from pumphouse.spark.deduplication import BATCH, QUERY, ROW, TASK

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Hubs:
    """A hub to read and a hub to write, on disk, in a process of their own."""

    namespace: str
    partitions: int

    def connection(self, hub: str) -> str:
        return f"{self.namespace};EntityPath={hub}"

    def group(self) -> Group:
        async def read() -> Group:
            async with open_client(self.connection("sensors")) as client:
                return Group(client.namespace, client.hub)

        return asyncio.run(read())


@contextmanager
def run_hubs(folder: Path, partitions: int) -> Iterator[Hubs]:
    hubs = f"sensors:{partitions},activity:{partitions}"
    up = subprocess.Popen(
        [BIN / "pumphouse", "up", "--hubs", hubs, "--port", "0", "--data", folder / "data",
         "-o", "json"], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert up.stdout is not None
    try:
        yield Hubs(json.loads(up.stdout.readline())["namespace_connection_string"], partitions)
    finally:
        up.terminate()
        up.wait(60)
        up.stdout.close()


@dataclass
class ContinuousSender:
    """Sends events to every partition until it is stopped."""

    hubs: Hubs
    events: int = 5
    every_s: float = 0.2
    sent: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    async def _run(self) -> None:
        async with open_client(self.hubs.connection("sensors")) as client:
            names = [str(number) for number in range(self.hubs.partitions)]
            senders = {name: await client.sender(name) for name in names}
            while not self._stop.is_set():
                for name, sender in senders.items():
                    await sender.send([Event(b"reading")] * self.events)
                    self.sent[name] += self.events
                await asyncio.sleep(self.every_s)


# -- what was copied ------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class CopiedEvent:
    """One event of the target: the number of its original, and the identity of its row."""

    number: int
    identity: tuple[object, ...]


Copies = dict[str, list[CopiedEvent]]


def read_copies(hubs: Hubs) -> Copies:
    """Everything in the target hub, in order, by partition."""

    async def read() -> Copies:
        copies: Copies = {}
        async with open_client(hubs.connection("activity")) as client:
            for partition in (await client.properties()).partitions:
                last = (await client.partition_properties(partition)).last_sequence
                reader = await client.reader(ReaderOptions(partition, prefetch=2000))
                events: list[CopiedEvent] = []
                while len(events) <= last:
                    received = await reader.receive(2000, 60)
                    events += [copied_event(partition, event) for event in received]
                await reader.close()
                copies[partition] = events
        return copies

    return asyncio.run(read())


def copied_event(partition: str, event: Event) -> CopiedEvent:
    source, number = event.body.decode().split(":")
    assert source == partition
    identity = tuple(event.properties[name] for name in (QUERY, BATCH, TASK, ROW))
    return CopiedEvent(int(number), identity)


@dataclass(frozen=True)
class Comparison:
    """What differs between the events sent and their copies."""

    missing: dict[str, list[int]]  # events without a copy
    disorder: dict[str, list[int]]  # events first copied after a later one
    repeated: dict[str, list[CopiedEvent]]  # further copies of an event

    @property
    def is_complete_and_ordered(self) -> bool:
        return not self.missing and not self.disorder

    @property
    def repeated_batches(self) -> set[int]:
        """The batches that wrote further copies."""
        return {int(str(copy.identity[1])) for copies in self.repeated.values() for copy in copies}

    @property
    def repeated_events(self) -> set[tuple[str, int]]:
        return {(name, copy.number) for name, copies in self.repeated.items() for copy in copies}

    def __str__(self) -> str:
        count = sum(map(len, self.repeated.values()))
        return (
            f"missing {self.missing}, disorder {self.disorder}, {count} repeated in batches "
            f"{self.repeated_batches}"
        )


def compare(copies: Copies, sent: Counter[str]) -> Comparison:
    missing, disorder, repeated = {}, {}, {}
    for name, count in sent.items():
        copied = copies.get(name, [])
        firsts = list(dict.fromkeys(copy.number for copy in copied))
        if absent := sorted(set(range(count)) - set(firsts)):
            missing[name] = absent[:20]
        if late := [number for before, number in pairwise(firsts) if number < before]:
            disorder[name] = late[:20]
        if further := split_by_key(copied, lambda copy: copy.number)[1]:
            repeated[name] = further
    return Comparison(missing, disorder, repeated)


def split_by_key(
    copies: list[CopiedEvent], key: Callable[[CopiedEvent], object]
) -> tuple[list[CopiedEvent], list[CopiedEvent]]:
    """The first copy of each key, and all further ones."""
    firsts: list[CopiedEvent] = []
    further: list[CopiedEvent] = []
    keys: set[object] = set()
    for copy in copies:
        (further if key(copy) in keys else firsts).append(copy)
        keys.add(key(copy))
    return firsts, further


def without_repeats(copies: Copies) -> Copies:
    """The copies with each identity once, as `drop_repeats` returns them."""
    return {
        name: split_by_key(copied, lambda copy: copy.identity)[0] for name, copied in copies.items()
    }


def count_copied(hubs: Hubs) -> int:
    """The number of events in the target hub."""

    async def read() -> int:
        async with open_client(hubs.connection("activity")) as client:
            names = (await client.properties()).partitions
            states = [await client.partition_properties(name) for name in names]
        return sum(state.last_sequence + 1 for state in states)

    return asyncio.run(read())


def are_all_copied(hubs: Hubs, sent: Counter[str]) -> bool:
    if count_copied(hubs) < sum(sent.values()):
        return False
    return not compare(read_copies(hubs), sent).missing
