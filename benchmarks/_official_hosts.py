"""Official hosts in virtual time: the unchanged EventProcessor of azure-eventhub.

Its balancer, its tasks, and how it receives, cancels and releases are its own code. It runs on the
simulated hub in place of the AMQP link, and on a store in memory that compares etags as its blob
store does, with the same delays as the simulated store. `time.time` of its balancer is the virtual
clock, and `random` is seeded.

    EventProcessor -> OwnershipManager -> EtagStore
                   -> receive_messages_async -> Link -> SimReader
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from azure.eventhub import LoadBalancingStrategy
from azure.eventhub._pyamqp.error import AMQPLinkError, ErrorCondition
from azure.eventhub.aio._eventprocessor import _ownership_manager
from azure.eventhub.aio._eventprocessor.event_processor import EventProcessor
from azure.eventhub.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from benchmarks._fleet_observer import FleetObserver
from benchmarks._fleet_scenarios import Environment, FleetKind, HostFactory
from pumphouse.client.base import ReaderOptions
from pumphouse.errors import ReaderEvicted
from pumphouse.events import EARLIEST, Position
from pumphouse.simulation.hub import HUB, NAMESPACE, SimClient, SimReader
from pumphouse.simulation.loop import HostProcess

INTERVAL_S = 30.0  # the default of azure-eventhub
PREFETCH = 300
WORK_S = 5.0  # the longest wait for events


def official(kind: str) -> FleetKind:
    """Hosts with the strategy `greedy` (the default) or `balanced`."""

    def make_fleet(environment: Environment) -> HostFactory:
        vars(_ownership_manager)["time"] = Time(environment.observer)
        random.seed(environment.rng.getrandbits(64))  # the balancer uses the global generator
        store = EtagStore(environment.observer, environment.rng)
        return lambda process: OfficialHost(process, environment, store, kind)

    return FleetKind(make_fleet, INTERVAL_S)


@dataclass(frozen=True, slots=True)
class Time:
    """Replaces the module `time` of the balancer."""

    observer: FleetObserver

    def time(self) -> float:
        return self.observer.now_s()


class OfficialHost:
    def __init__(
        self, process: HostProcess, environment: Environment, store: EtagStore, kind: str
    ) -> None:
        self.environment = environment
        # These replacements have only the methods that the EventProcessor calls.
        client: Any = Client(environment, process)
        handle: Any = self._handle
        own_store: Any = ProcessStore(store, process)
        self.processor = EventProcessor(
            client,
            "$Default",
            handle,
            batch=True,
            checkpoint_store=own_store,
            initial_event_position="-1",
            load_balancing_strategy=LoadBalancingStrategy(kind),
        )
        self.processor._id = self.processor._ownership_manager.owner_id = process.name

    async def _handle(self, context: Any, events: list[Received]) -> None:
        await self.environment.work(
            context.partition_id, [event.sequence_number for event in events]
        )
        await context.update_checkpoint()

    async def start(self) -> None:
        self._running = asyncio.create_task(self.processor.start())

    async def stop(self) -> None:
        await self.processor.stop()


# -- the store ------------------------------------------------------------------------------------


class EtagStore:
    """A store in memory with compare-and-set for rows; checkpoints are overwritten."""

    def __init__(self, observer: FleetObserver, rng: Random) -> None:
        self.observer, self.rng = observer, rng
        self.rows: dict[str, dict[str, Any]] = {}
        self.marks: dict[str, dict[str, Any]] = {}
        self._writes = 0

    def claim(self, row: dict[str, Any]) -> dict[str, Any] | None:
        self.observer.calls += 1
        stored = self.rows.get(row["partition_id"], {})
        if stored.get("etag") != row.get("etag"):
            return None
        self._writes += 1
        written = {**row, "etag": str(self._writes), "last_modified_time": self.observer.now_s()}
        self.rows[row["partition_id"]] = written
        self.observer.wrote(row["partition_id"], row["owner_id"])
        return dict(written)


class ProcessStore:
    """The store as one host sees it, with network delays."""

    def __init__(self, store: EtagStore, process: HostProcess) -> None:
        self.store, self.process = store, process

    async def _travel(self) -> None:
        if self.process.dead:
            raise asyncio.CancelledError
        await asyncio.sleep(self.store.rng.uniform(0.001, 0.02))

    async def list_ownership(self, *_: str) -> list[dict[str, Any]]:
        await self._travel()
        self.store.observer.calls += 1
        rows = [dict(row) for row in self.store.rows.values()]
        await self._travel()
        return rows

    async def claim_ownership(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        await self._travel()
        claimed = [self.store.claim(row) for row in rows]
        await self._travel()
        return [row for row in claimed if row is not None]

    async def list_checkpoints(self, *_: str) -> list[dict[str, Any]]:
        await self._travel()
        self.store.observer.calls += 1
        marks = [dict(mark) for mark in self.store.marks.values()]
        await self._travel()
        return marks

    async def update_checkpoint(self, mark: dict[str, Any], **_: Any) -> None:
        await self._travel()
        self.store.marks[mark["partition_id"]] = dict(mark)
        await self._travel()


# -- the hub --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """The part of an event that the EventProcessor uses."""

    sequence_number: int
    offset: str


class Address:
    hostname = NAMESPACE


class Config:
    max_retries = 3  # the default of azure-eventhub
    network_tracing = False


class Client:
    """The part of a client that the EventProcessor uses: names, partitions, consumers."""

    _address = Address
    _config = Config
    eventhub_name = HUB

    def __init__(self, environment: Environment, process: HostProcess) -> None:
        self._client = environment.hub.client(process, Random(environment.rng.getrandbits(64)))

    async def get_partition_ids(self) -> list[str]:
        return list((await self._client.properties()).partitions)

    def _create_consumer(
        self, group: str, partition: str, position: str, received: Any, **more: Any
    ) -> Consumer:
        inclusive = more["event_position_inclusive"]
        start = EARLIEST if position == "-1" else Position("offset", position, inclusive)
        options = ReaderOptions(partition, group, start, more["owner_level"], PREFETCH)
        return Consumer(self._client, options, received)


class Consumer:
    """A consumer with a simulated link instead of AMQP; the receive code is azure-eventhub's."""

    def __init__(
        self,
        client: SimClient,
        options: ReaderOptions,
        received: Callable[[list[Received]], Awaitable[None]],
    ) -> None:
        self._client, self._name = Client, options.partition
        self._link = self._handler = Link(client, options, self)
        self._prefetch = PREFETCH
        self._on_event_received = received
        self._message_buffer: deque[Received] = deque()
        self._message_buffer_lock = asyncio.Lock()
        self._last_received_event: Received | None = None
        self._last_callback_called_time = 0.0
        self._callback_task_run = False
        self._offset = ""
        self.running = False

    async def _open(self) -> None:
        await self._link.open()
        self.running = True

    def _next_message_in_buffer(self) -> Received:
        self._last_received_event = self._message_buffer.popleft()
        return self._last_received_event

    async def _handle_exception(self, failed: Exception) -> Exception:
        await self._link.close()
        return failed

    async def receive(self, batch: bool, max_batch_size: int, max_wait_time: float | None) -> None:
        transport: Any = PyamqpTransportAsync
        await transport.receive_messages_async(self, batch, max_batch_size, max_wait_time)

    async def close(self) -> None:
        self.running = False
        await self._link.close()


class Link:
    """A reader of the simulated hub, with the interface of the SDK's link handler."""

    def __init__(self, client: SimClient, options: ReaderOptions, consumer: Consumer) -> None:
        self._client, self._options, self._consumer = client, options, consumer
        self._reader: SimReader | None = None

    async def open(self) -> None:
        if self._reader is None:
            try:
                self._reader = await self._client.reader(self._options_now())
            except ReaderEvicted as refused:
                raise stolen(refused) from None

    def _options_now(self) -> ReaderOptions:
        """The reader options; after the last received event, if there is one."""
        if not self._consumer._offset:
            return self._options
        return replace(self._options, position=Position("offset", self._consumer._offset))

    async def do_work_async(self, batch: int) -> bool:
        """Wait for events and put them into the buffer."""
        assert self._reader is not None
        try:
            events = await self._reader.receive(batch, WORK_S)
        except ReaderEvicted as evicted:
            raise stolen(evicted) from None
        async with self._consumer._message_buffer_lock:
            for event in events:
                received = Received(event.sequence or 0, event.offset or "")
                self._consumer._message_buffer.append(received)
        return True

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


def stolen(why: ReaderEvicted) -> AMQPLinkError:
    return AMQPLinkError(condition=ErrorCondition.LinkStolen, description=str(why))
