"""Fleet: several hosts on one loop and one hub, with a record of every handled event."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, Self

from pumphouse.client.base import HubClient, Sender
from pumphouse.client.factory import open_client
from pumphouse.errors import StoreMisused
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group, Ownership
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.virtual_time import LoopClock

HUB = "eh"
OPTIONS = ProcessorOptions()  # the defaults: interval 10 s, lease 30 s
DEADLINE_S = 600.0  # of the loop's own time


@dataclass(frozen=True)
class Handled:
    sequence: int
    host: str
    epoch: int
    at_s: float


class Fleet:
    """A hub, a store, and hosts that come and go. Use it in an `async with` block."""

    def __init__(
        self,
        partitions: int = 8,
        *,
        store: CheckpointStore | None = None,
        options: ProcessorOptions = OPTIONS,
        strategy: str = "steady",
    ) -> None:
        self.partitions = [str(number) for number in range(partitions)]
        self.clock = LoopClock()
        self.store = store if store is not None else MemoryStore(self.clock)
        self.options, self.strategy = options, strategy
        self.hosts: dict[str, Engine] = {}
        self.record: defaultdict[str, list[Handled]] = defaultdict(list)
        self.inside: defaultdict[str, set[str]] = defaultdict(set)
        self.overlaps: list[tuple[str, set[str]]] = []
        self.errors: list[tuple[str, str | None, Exception]] = []
        self.changes: list[tuple[str, str, str]] = []
        self.sent = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        self.hub = await enter(EmbeddedHub({HUB: len(self.partitions)}, clock=self.clock))
        await enter(self.store)
        self.connection = self.hub.connection_string(HUB)
        self.client: HubClient = await enter(open_client(self.connection))
        self.group = Group(self.client.namespace, HUB)
        self._senders: dict[str, Sender] = {}
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts.values()))
        await self._stack.aclose()
        # Every test also fails if the strict store rejected a write as a bug.
        assert [failed for _, _, failed in self.errors if isinstance(failed, StoreMisused)] == []

    # -- hosts ------------------------------------------------------------------------------------

    async def add(
        self,
        name: str,
        *,
        work: Callable[[PartitionClient, list[Event]], Awaitable[None]] | None = None,
        checkpoint: bool = True,
        **settings: Any,
    ) -> Engine:
        async def serve(partition: PartitionClient) -> None:
            async for batch in partition.batches():
                with self.handling(partition, batch, name):
                    if work is not None:
                        await work(partition, batch)
                if checkpoint:
                    await partition.checkpoint()

        arguments: dict[str, Any] = {
            "store": self.store,
            "strategy": self.strategy,
            "options": self.options,
            "clock": self.clock,
            "on_error": lambda partition, failed: self.errors.append((name, partition, failed)),
            "on_ownership": lambda change, partition: self.changes.append(
                (name, change, partition)
            ),
            "rng": Random(name),
        } | settings
        self.hosts[name] = Engine(self.connection, serve, host=name, **arguments)
        await self.hosts[name].start()
        return self.hosts[name]

    def handling(self, partition: PartitionClient, batch: list[Event], host: str) -> Handling:
        return Handling(self, partition, batch, host)

    async def crash(self, name: str) -> None:
        """End a host like a crash. Its connection is closed, so the hub notices."""
        host = self.hosts.pop(name)
        host.abandon()
        await host.stop()

    async def leave(self, name: str) -> None:
        await self.hosts.pop(name).stop()

    # -- events -----------------------------------------------------------------------------------

    async def send(self, count: int = 10) -> None:
        """Send this many events to every partition."""
        for partition in self.partitions:
            if partition not in self._senders:
                self._senders[partition] = await self.client.sender(partition)
            first = self.sent
            await self._senders[partition].send(
                [Event(b"%d" % number) for number in range(first, first + count)]
            )
        self.sent += count

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"timed out waiting for {what}: {self.hosts}") from None

    async def until_handled(self) -> None:
        await self.until(
            lambda: all(len(self.firsts(p)) == self.sent for p in self.partitions),
            "every event to be handled",
        )

    async def until_even(self) -> None:
        await self.until(lambda: self.spread() is not None and self.settled, "an even fleet")

    # -- state ------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        return all(host.settled for host in self.hosts.values())

    def counts(self) -> dict[str, int]:
        return {name: len(host.owned) for name, host in self.hosts.items()}

    def spread(self) -> int | None:
        """The difference of partitions per host once the fleet is even; None before."""
        counts = list(self.counts().values())
        even = sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1
        return max(counts) - min(counts) if even else None

    def sequences(self, partition: str) -> list[int]:
        return [handled.sequence for handled in self.record[partition]]

    def firsts(self, partition: str) -> list[int]:
        """The handled events without repetitions, in the order of their first handling."""
        return list(dict.fromkeys(self.sequences(partition)))

    def duplicates(self) -> int:
        return sum(len(self.sequences(p)) - len(self.firsts(p)) for p in self.partitions)

    async def rows(self) -> dict[str, Ownership]:
        listing = await self.store.list_ownership(self.group)
        return {row.partition: row for row in listing.ownerships}

    async def checkpoints(self) -> dict[str, int | None]:
        stored = await self.store.list_checkpoints(self.group)
        return {checkpoint.partition: checkpoint.sequence for checkpoint in stored}

    def check_order(self) -> None:
        """I3 and I4: no gaps, and in order within every ownership term."""
        for partition in self.partitions:
            assert self.firsts(partition) == list(range(self.sent)), partition
            terms: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
            for handled in self.record[partition]:
                terms[handled.host, handled.epoch].append(handled.sequence)
            assert all(handled == sorted(handled) for handled in terms.values()), partition

    def check_clean(self) -> None:
        """I2 and I6: no overlapping handlers, and no event handled twice."""
        self.check_order()
        assert self.overlaps == []
        assert self.duplicates() == 0


class Handling:
    """Records a batch while it is handled, and overlaps with other hosts."""

    def __init__(
        self, fleet: Fleet, partition: PartitionClient, batch: list[Event], host: str
    ) -> None:
        self.fleet, self.partition, self.batch, self.host = fleet, partition, batch, host

    def __enter__(self) -> None:
        inside = self.fleet.inside[self.partition.id]
        inside.add(self.host)
        if len(inside) > 1:
            self.fleet.overlaps.append((self.partition.id, set(inside)))
        now_s, epoch = self.fleet.clock.monotonic(), self.partition.epoch
        self.fleet.record[self.partition.id] += [
            Handled(event.sequence if event.sequence is not None else -1, self.host, epoch, now_s)
            for event in self.batch
        ]

    def __exit__(self, *exc: object) -> None:
        self.fleet.inside[self.partition.id].discard(self.host)
