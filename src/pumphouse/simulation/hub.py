"""A hub in memory and in virtual time, behind the same protocols as every client of a hub.

Readers are admitted by the embedded hub's own rule (hub.epochs). They follow the contract of
client.base: prefetched events are returned even after an eviction, and a lost connection is
restored without the caller's help, up to a time limit.

    publish -> Log -> SimReader.receive -> processor
               ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import zip_longest
from random import Random
from typing import NoReturn, Self

from pumphouse.client.base import (
    HubClient,
    HubProperties,
    PartitionEnd,
    PartitionProperties,
    ReaderOptions,
    Sender,
)
from pumphouse.errors import AmqpError, ConnectionFailed, OptionError, ReaderEvicted
from pumphouse.events import Event, Position
from pumphouse.hub.epochs import LINK_STOLEN, Reader, decide
from pumphouse.simulation.loop import WALL_S, HostProcess

NAMESPACE, HUB = "simulation.servicebus.windows.net", "simulated"
EVENT_BYTES = 128  # the distance between the offsets of two events
CONNECT_S_MAX = 20.0  # how long a client tries to reach an unreachable hub
WAIT_S_MIN = 0.001  # a wait of zero would never advance the virtual clock
NOT_RESTORED = 0.2  # the share of broken connections that a client does not restore

OnOpened = Callable[[HostProcess, ReaderOptions, int], None]


class Log:
    """One partition: its events and its readers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.first = 0  # the oldest retained event
        self.readers: dict[int, SimReader] = {}
        self.foreign_readers: dict[int, Reader] = {}
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def end(self) -> int:
        return len(self.events)

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def start_of(self, position: Position) -> int:
        """The sequence number at which a reader with this position starts."""
        step = 0 if position.inclusive else 1
        match position.kind:
            case "earliest":
                return self.first
            case "latest":
                return self.end
            case "sequence":
                return max(self.first, int(position.value) + step)
            case "offset":
                return max(self.first, int(position.value) // EVENT_BYTES + step)
            case "time":
                since_ms = int(position.value)
                newer = (e.sequence for e in self.events if (e.enqueued_ms or 0) >= since_ms)
                return next((s for s in newer if s is not None), self.end)
        raise OptionError(f"invalid position {position}")


class SimHub:
    """Partitions with their events and readers."""

    def __init__(self, partitions: int, rng: Random, on_opened: OnOpened | None = None) -> None:
        self.logs: dict[str, Log] = {}
        self.rng = rng
        self.unreachable_until_s = 0.0
        self.counts = {"evicted": 0, "refused": 0, "lost": 0}
        self._on_opened = on_opened or (lambda process, options, first: None)
        self._ids = 0
        self._names: tuple[str, ...] = ()
        for _ in range(partitions):
            self.grow()

    def __repr__(self) -> str:
        return f"<SimHub | {len(self.logs)} partitions | {self.sent} events>"

    @property
    def sent(self) -> int:
        return sum(log.end for log in self.logs.values())

    @property
    def partitions(self) -> tuple[str, ...]:
        return self._names

    def grow(self) -> str:
        """Add a partition; returns its name."""
        name = str(len(self.logs))
        self.logs[name] = Log(name)
        self._names = tuple(self.logs)
        return name

    def publish(self, partition: str, bodies: list[bytes], keys: Sequence[str | None] = ()) -> None:
        log, now_s = self.logs[partition], asyncio.get_running_loop().time()
        at_ms = int((WALL_S + now_s) * 1000)
        keyed = zip_longest(bodies, keys)
        for sequence, (body, key) in enumerate(keyed, log.end):
            offset = str(sequence * EVENT_BYTES)
            log.events.append(Event(body, {}, key, partition, sequence, offset, at_ms))
        log.wake()

    def retain(self, partition: str, count: int) -> None:
        """Remove all but the last `count` events of a partition."""
        log = self.logs[partition]
        log.first = max(log.first, log.end - count)

    def client(self, process: HostProcess, rng: Random) -> SimClient:
        return SimClient(self, process, rng)

    # -- readers -----------------------------------------------------------------------------------

    def admit(self, log: Log, options: ReaderOptions, reader: SimReader | None = None) -> int:
        """Admit a reader and evict those it displaces, or raise; returns its number."""
        self._ids += 1
        present = self._present(log)
        newcomer = Reader(self._ids, options.name, options.epoch)
        decision = decide(present, newcomer)
        if not decision.admit:
            self.counts["refused"] += 1
            self._refuse(decision.condition, decision.text, present)
        for number, text in zip(decision.evict, decision.evict_errors, strict=True):
            self._evict(log, number, text, options.epoch)
        if reader is None:
            log.foreign_readers[self._ids] = newcomer
        else:
            reader.admitted = newcomer
            log.readers[self._ids] = reader
        return self._ids

    def _present(self, log: Log) -> list[Reader]:
        ours = [reader.admitted for reader in log.readers.values()]
        return [*ours, *log.foreign_readers.values()]

    def _refuse(self, condition: str, text: str, present: list[Reader]) -> NoReturn:
        if condition != LINK_STOLEN:
            raise AmqpError(condition, text)
        epochs = [reader.epoch for reader in present if reader.epoch is not None]
        raise ReaderEvicted(condition, text, max(epochs, default=None))

    def _evict(self, log: Log, number: int, text: str, epoch: int | None) -> None:
        self.counts["evicted"] += 1
        log.foreign_readers.pop(number, None)
        if (reader := log.readers.pop(number, None)) is not None:
            reader.end_with(ReaderEvicted(LINK_STOLEN, text, epoch))
            log.wake()

    def reader_opened(self, process: HostProcess, options: ReaderOptions, first: int) -> None:
        self._on_opened(process, options, first)

    # -- faults ------------------------------------------------------------------------------------

    def open_foreign_reader(self, partition: str, above: int) -> int:
        """Open a foreign reader with a higher epoch; returns its number."""
        log = self.logs[partition]
        present = self._present(log)
        highest = max((reader.epoch or 0 for reader in present), default=0)
        options = ReaderOptions(partition, epoch=highest + above, name="foreign")
        return self.admit(log, options)

    def remove_foreign(self, partition: str, number: int) -> None:
        self.logs[partition].foreign_readers.pop(number, None)

    def drop(self, process: HostProcess) -> None:
        """Break the connection of a host: all its readers are detached."""
        self.counts["lost"] += 1
        for log in self.logs.values():
            lost = [n for n, reader in log.readers.items() if reader.client.process is process]
            for number in lost:
                log.readers.pop(number).detach()
            if lost:
                log.wake()


class SimClient(HubClient):
    """One host's client of the hub."""

    hub, namespace = HUB, NAMESPACE

    def __init__(self, hub: SimHub, process: HostProcess, rng: Random) -> None:
        self.sim_hub, self.process, self.rng = hub, process, rng

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self.process.dead:
            self.sim_hub.drop(self.process)

    async def round_trip(self) -> None:
        """Wait for one round trip to the hub; ConnectionFailed if it stays unreachable."""
        if self.process.dead:
            raise asyncio.CancelledError
        await asyncio.sleep(self.rng.uniform(0.001, 0.02))
        loop = asyncio.get_running_loop()
        if (outage_s := self.sim_hub.unreachable_until_s - loop.time()) > 0:
            await asyncio.sleep(min(outage_s, CONNECT_S_MAX))
            if outage_s > CONNECT_S_MAX:
                raise ConnectionFailed("the hub does not respond (injected fault)")
        if self.process.dead:
            raise asyncio.CancelledError

    async def properties(self) -> HubProperties:
        await self.round_trip()
        return HubProperties(HUB, 0, self.sim_hub.partitions)

    async def partition_properties(self, partition: str) -> PartitionProperties:
        await self.round_trip()
        log = self.sim_hub.logs[partition]
        last = log.events[-1] if log.events else None
        return PartitionProperties(
            HUB,
            partition,
            log.first,
            log.end - 1,
            last.offset or "-1" if last is not None else "-1",
            last.enqueued_ms or 0 if last is not None else 0,
            log.first >= log.end,
        )

    async def reader(self, options: ReaderOptions) -> SimReader:
        await self.round_trip()
        reader = SimReader(self, options)
        reader.attach()
        return reader

    async def sender(self, partition: str | None = None) -> Sender:
        raise OptionError("a simulated hub has no senders: the simulation publishes its events")


class SimReader:
    """Reads one partition for one host."""

    admitted: Reader

    def __init__(self, client: SimClient, options: ReaderOptions) -> None:
        self.client, self.options = client, options
        self._log = client.sim_hub.logs[options.partition]
        self._next = self._log.start_of(options.position)
        self._number = 0
        self._attached = False
        self._reported = False  # to the checks
        self._prefetched_end = 0  # of a detached reader: the end of its prefetched events
        self._error: Exception | None = None

    @property
    def end(self) -> PartitionEnd | None:
        return None

    def attach(self) -> None:
        self._number = self.client.sim_hub.admit(self._log, self.options, self)
        self._attached = True
        # A host opens a reader without an epoch only to check its access, and never reads from it.
        if self.options.epoch is not None:
            self._report()

    def _report(self) -> None:
        """Report the reader, once, to the checks."""
        if not self._reported:
            self._reported = True
            self.client.sim_hub.reader_opened(self.client.process, self.options, self._first_new)

    @property
    def _first_new(self) -> int:
        """The first new event. At an inclusive position the reader returns an old event first."""
        position = self.options.position
        repeats = position.inclusive and position.value == str(self._next)
        return self._next + 1 if repeats else self._next

    def end_with(self, error: Exception) -> None:
        """End the reader with an error; prefetched events are still returned."""
        self._error = error
        self.detach()

    def detach(self) -> None:
        self._prefetched_end = min(self._log.end, self._next + self.options.prefetch)
        self._attached = False

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max(deadline_s, WAIT_S_MIN)
        self._report()
        while True:
            if self.client.process.dead:
                raise asyncio.CancelledError
            if events := self._take(max_events):
                return events
            if self._error is not None:
                raise self._error
            if not self._attached:
                await self._reconnect()
            elif loop.time() >= until_s:
                return []
            else:
                await self._wait(until_s)

    def _take(self, max_events: int) -> list[Event]:
        log = self._log
        end = log.end if self._attached else self._prefetched_end
        self._next = max(self._next, log.first)
        events = log.events[self._next : min(end, self._next + max_events)]
        self._next += len(events)
        return events

    async def _wait(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._log.waiting.append(woken)
        timer = loop.call_at(until_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    async def _reconnect(self) -> None:
        """Attach again after the prefetched events; a refused reader ends with that error."""
        await asyncio.sleep(self.client.rng.uniform(0.2, 3.0))
        await self.client.round_trip()
        if self.client.rng.random() < NOT_RESTORED:
            raise ConnectionFailed("the connection broke too often (injected fault)")
        if self._error is None:
            try:
                self.attach()
            except AmqpError as refused:
                self._error = refused

    async def close(self) -> None:
        if self._attached and not self.client.process.dead:
            self._log.readers.pop(self._number, None)
        self._attached = False
        self._prefetched_end = self._next
        self._error = self._error or ConnectionFailed("the reader is closed")


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
