"""A hub in memory and in virtual time, behind the same seam as every other client of a hub.

Who may read is decided by the embedded hub's own rule (hub.epochs). Readers behave as the contract
of client.base says: what has arrived is handed out even after an eviction, a lost connection is
mended behind the caller's back, and patience may run out.

    publish -> Log -> SimReader.receive -> processor
               ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
EVENT_BYTES = 128  # offsets rise by so much
PATIENCE_S = 20.0  # how long a client tries to reach a hub that is away
SHORTEST_S = 0.001  # no wait is shorter: what takes no time at all would never end
IMPATIENT = 0.2  # how many of the breaks a client gives up on, rather than mend them

Opened = Callable[[HostProcess, ReaderOptions, int], None]


class Log:
    """One partition: its events, and who reads it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.first = 0  # the oldest that retention has left
        self.readers: dict[int, SimReader] = {}
        self.strangers: dict[int, Reader] = {}
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def end(self) -> int:
        return len(self.events)

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def after(self, position: Position) -> int:
        """The sequence number at which a reader of this position starts."""
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
                moment = int(position.value)
                newer = (e.sequence for e in self.events if (e.enqueued_ms or 0) >= moment)
                return next((s for s in newer if s is not None), self.end)
        raise OptionError(f"{position} is no position")


class SimHub:
    """Partitions that grow in number and length, and readers that come and go."""

    def __init__(self, partitions: int, rng: Random, opened: Opened | None = None) -> None:
        self.logs: dict[str, Log] = {}
        self.rng = rng
        self.away_until_s = 0.0
        self.counts = {"evicted": 0, "refused": 0, "lost": 0}
        self._opened = opened or (lambda process, options, first: None)
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
        """One partition more."""
        name = str(len(self.logs))
        self.logs[name] = Log(name)
        self._names = tuple(self.logs)
        return name

    def publish(self, partition: str, bodies: list[bytes]) -> None:
        log, now_s = self.logs[partition], asyncio.get_running_loop().time()
        at_ms = int((WALL_S + now_s) * 1000)
        for sequence, body in enumerate(bodies, log.end):
            offset = str(sequence * EVENT_BYTES)
            log.events.append(Event(body, {}, None, partition, sequence, offset, at_ms))
        log.wake()

    def retain(self, partition: str, count: int) -> None:
        """Forget all but the last so many events of a partition."""
        log = self.logs[partition]
        log.first = max(log.first, log.end - count)

    def client(self, process: HostProcess, rng: Random) -> SimClient:
        return SimClient(self, process, rng)

    # -- who reads ---------------------------------------------------------------------------------

    def admit(self, log: Log, options: ReaderOptions, reader: SimReader | None = None) -> int:
        """Let a newcomer in and evict whom it displaces, or raise why not; its number."""
        self._ids += 1
        present = [one.shown for one in log.readers.values()] + list(log.strangers.values())
        newcomer = Reader(self._ids, options.name, options.epoch)
        verdict = decide(present, newcomer)
        if not verdict.admit:
            self.counts["refused"] += 1
            self._refuse(verdict.condition, verdict.text, present)
        for number, text in zip(verdict.evict, verdict.evict_errors, strict=True):
            self._evict(log, number, text, options.epoch)
        if reader is None:
            log.strangers[self._ids] = newcomer
        else:
            reader.shown = newcomer
            log.readers[self._ids] = reader
        return self._ids

    def _refuse(self, condition: str, text: str, present: list[Reader]) -> NoReturn:
        if condition != LINK_STOLEN:
            raise AmqpError(condition, text)
        epochs = [one.epoch for one in present if one.epoch is not None]
        raise ReaderEvicted(condition, text, max(epochs, default=None))

    def _evict(self, log: Log, number: int, text: str, epoch: int | None) -> None:
        self.counts["evicted"] += 1
        log.strangers.pop(number, None)
        if (reader := log.readers.pop(number, None)) is not None:
            reader.cut_off(ReaderEvicted(LINK_STOLEN, text, epoch))
            log.wake()

    def opened(self, process: HostProcess, options: ReaderOptions, first: int) -> None:
        self._opened(process, options, first)

    # -- faults ------------------------------------------------------------------------------------

    def intrude(self, partition: str, above: int) -> int:
        """A stranger with a higher epoch begins to read; the number to send it away by."""
        log = self.logs[partition]
        present = [*(one.shown for one in log.readers.values()), *log.strangers.values()]
        highest = max((one.epoch or 0 for one in present), default=0)
        options = ReaderOptions(partition, epoch=highest + above, name="stranger")
        return self.admit(log, options)

    def send_away(self, partition: str, number: int) -> None:
        self.logs[partition].strangers.pop(number, None)

    def drop(self, process: HostProcess) -> None:
        """The connection of a host breaks: all its readers are detached."""
        self.counts["lost"] += 1
        for log in self.logs.values():
            gone = [number for number, one in log.readers.items() if one.client.process is process]
            for number in gone:
                log.readers.pop(number).detach()
            if gone:
                log.wake()


class SimClient(HubClient):
    """One host's way to the hub."""

    hub, namespace = HUB, NAMESPACE

    def __init__(self, hub: SimHub, process: HostProcess, rng: Random) -> None:
        self.house, self.process, self.rng = hub, process, rng

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self.process.dead:
            self.house.drop(self.process)

    async def reach(self) -> None:
        """The way to the hub and back; it takes a while, and may end in nothing."""
        if self.process.dead:
            raise asyncio.CancelledError
        await asyncio.sleep(self.rng.uniform(0.001, 0.02))
        loop = asyncio.get_running_loop()
        if (left_s := self.house.away_until_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, PATIENCE_S))
            if left_s > PATIENCE_S:
                raise ConnectionFailed("the hub does not answer (a fault on purpose)")
        if self.process.dead:
            raise asyncio.CancelledError

    async def properties(self) -> HubProperties:
        await self.reach()
        return HubProperties(HUB, 0, self.house.partitions)

    async def partition_properties(self, partition: str) -> PartitionProperties:
        await self.reach()
        log = self.house.logs[partition]
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
        await self.reach()
        reader = SimReader(self, options)
        reader.attach(first=True)
        return reader

    async def sender(self, partition: str | None = None) -> Sender:
        raise OptionError("a simulated hub is filled by the simulation; it has no senders")


class SimReader:
    """Reads one partition for one host."""

    shown: Reader

    def __init__(self, client: SimClient, options: ReaderOptions) -> None:
        self.client, self.options = client, options
        self._log = client.house.logs[options.partition]
        self._next = self._log.after(options.position)
        self._number = 0
        self._attached = False
        self._arrived = 0  # once it is cut off: what had been prefetched by then ends here
        self._lost: Exception | None = None

    @property
    def end(self) -> PartitionEnd | None:
        return None

    def attach(self, *, first: bool = False) -> None:
        self._number = self.client.house.admit(self._log, self.options, self)
        self._attached = True
        if first:
            self.client.house.opened(self.client.process, self.options, self._next)

    def cut_off(self, why: Exception) -> None:
        """Nothing arrives any more; what has arrived can still be had."""
        self._lost = why
        self.detach()

    def detach(self) -> None:
        self._arrived = min(self._log.end, self._next + self.options.prefetch)
        self._attached = False

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max(deadline_s, SHORTEST_S)
        while True:
            if self.client.process.dead:
                raise asyncio.CancelledError
            if events := self._take(max_events):
                return events
            if self._lost is not None:
                raise self._lost
            if not self._attached:
                await self._mend()
            elif loop.time() >= until_s:
                return []
            else:
                await self._wait(until_s)

    def _take(self, max_events: int) -> list[Event]:
        log = self._log
        end = log.end if self._attached else self._arrived
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

    async def _mend(self) -> None:
        """Attach again behind what has arrived; a reader that may not is lost."""
        await asyncio.sleep(self.client.rng.uniform(0.2, 3.0))
        await self.client.reach()
        if self.client.rng.random() < IMPATIENT:
            raise ConnectionFailed("the connection broke too often (a fault on purpose)")
        if self._lost is None:
            try:
                self.attach()
            except AmqpError as refused:
                self._lost = refused

    async def close(self) -> None:
        if self._attached and not self.client.process.dead:
            self._log.readers.pop(self._number, None)
        self._attached = False
        self._arrived = self._next
        self._lost = self._lost or ConnectionFailed("the reader has been closed")


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
