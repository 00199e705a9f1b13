"""The hub, started by `pumphouse up`, and its three clients.

The native client publishes batches of 100 events and reads event by event. The bulk client reads
into Arrow. The official SDK is the blocking client: it sends one batch at a time, and reads with a
prefetch of 3000, its fastest.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._brokers.model import (
    DURABLE,
    IDLE_S,
    IN_FLIGHT,
    OURS_PYTHON,
    SIZES,
    Acknowledged,
    Kind,
    Launch,
    stream_name,
)
from benchmarks._brokers.servers import LOOPBACK, free_ports, greets

AMQP_HEADER = b"AMQP\x03\x01\x00\x00"
KEY = "YmVuY2htYXJrcw=="
PARTITION = "0"
# Modules are compiled once, as by an installation with pip, whatever the settings of this process.
COMPILED = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(OURS_PYTHON.parents[1] / "pycache"),
}
# The peers' clients request bytes, not events: as many events as fit into these bytes.
PREFETCH, PREFETCH_BYTES = 12_000, 4 << 20
SDK_PREFETCH = 3000  # the fastest

NATIVE = Kind("hub-native", "native client", OURS_PYTHON)
BULK = Kind("hub-bulk", "bulk client", OURS_PYTHON, publishes=False)
SDK = Kind("hub-sdk", "official SDK", OURS_PYTHON, share=0.25)


class Hub:
    name = "Pumphouse"
    kinds = (NATIVE, BULK, SDK)

    def absent(self) -> str:
        return ""

    def launch(self, folder: Path, mode: str) -> Launch:
        (port,) = free_ports(1)
        hubs = ",".join(f"{stream_name(NATIVE.name, size)}:1" for size in SIZES)
        command = [str(OURS_PYTHON.with_name("pumphouse")), "up", "--hubs", hubs]
        command += ["--port", str(port), "--retention-bytes", "4GB"]
        command += ["--data", str(folder / "data")] if mode == DURABLE else []
        ready = greets(port, AMQP_HEADER, AMQP_HEADER, connection_string(port))
        return Launch((command,), {"PUMPHOUSE_KEY": KEY, **COMPILED}, ready)


def connection_string(port: int) -> str:
    return (
        f"Endpoint=sb://{LOOPBACK}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    )


class NativeHubClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.connection = f"{address};EntityPath={stream}"

    async def open(self) -> None:
        from pumphouse import open_client
        from pumphouse.client.base import RetryOptions

        # As for the peers: a lost broker ends the task.
        self.client = open_client(self.connection, retry=RetryOptions(attempts=0))
        await self.client.__aenter__()
        self.sender = await self.client.sender(PARTITION)

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        from pumphouse import Event

        pending: deque[asyncio.Task[int]] = deque()
        for batch in batches:
            events = [Event(body) for body in batch]
            pending.append(asyncio.create_task(self.sender.send(events)))
            if len(pending) == IN_FLIGHT:
                acknowledged(await pending.popleft())
        while pending:
            acknowledged(await pending.popleft())

    async def send(self, body: bytes) -> None:
        from pumphouse import Event

        await self.sender.send([Event(body)])

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        from pumphouse.client.base import ReaderOptions

        options = ReaderOptions(PARTITION, prefetch=PREFETCH, prefetch_bytes_max=PREFETCH_BYTES)
        reader = await self.client.reader(options)
        try:
            while True:
                events = await reader.receive(PREFETCH, deadline_s=IDLE_S)
                yield [event.body for event in events]
        finally:
            await reader.close()


class BulkHubClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.connection = f"{address};EntityPath={stream}"

    async def open(self) -> None:
        from pumphouse.client.bulk import BulkClient

        self.client = BulkClient(self.connection)
        self.client.__enter__()
        self.last = self.client.partition_properties(PARTITION).last_sequence

    async def close(self) -> None:
        self.client.__exit__(None, None, None)

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        raise NotImplementedError("the bulk client only reads")

    async def send(self, body: bytes) -> None:
        raise NotImplementedError("the bulk client only reads")

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        from pumphouse.client.bulk import RangeOptions

        options = RangeOptions(columns=("body",))
        for batch in self.client.read_range(PARTITION, 0, self.last + 1, options):
            bodies: Any = batch.column(0)  # Arrow: no Python object for each event
            yield bodies
        while True:
            yield ()


class SdkHubClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.connection = f"{address};EntityPath={stream}"

    async def open(self) -> None:
        from azure.eventhub import EventHubProducerClient

        self.producer = EventHubProducerClient.from_connection_string(self.connection)
        self.producer.get_partition_ids()

    async def close(self) -> None:
        self.producer.close()

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        for batch in batches:
            await self.send_batch(batch)
            acknowledged(len(batch))

    async def send(self, body: bytes) -> None:
        await self.send_batch([body])

    async def send_batch(self, bodies: Sequence[bytes]) -> None:
        from azure.eventhub import EventData

        batch = self.producer.create_batch(partition_id=PARTITION)
        for body in bodies:
            try:
                batch.add(EventData(body))
            except ValueError:  # the batch is full: 100 events of 16 KiB are more than 1 MiB
                self.producer.send_batch(batch)
                batch = self.producer.create_batch(partition_id=PARTITION)
                batch.add(EventData(body))
        self.producer.send_batch(batch)

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        from azure.eventhub import EventHubConsumerClient

        consumer = EventHubConsumerClient.from_connection_string(self.connection, "$Default")
        arrived: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

        def on_batch(_: Any, events: list[Any]) -> None:
            arrived.put([b"".join(event.body) for event in events])

        options = {
            "partition_id": PARTITION,
            "starting_position": "-1",
            "prefetch": SDK_PREFETCH,
            "max_batch_size": SDK_PREFETCH,
        }
        reading = threading.Thread(target=consumer.receive_batch, args=(on_batch,), kwargs=options)
        reading.start()
        try:
            while True:
                try:
                    yield arrived.get(timeout=IDLE_S)
                except queue.Empty:
                    yield ()
        finally:
            consumer.close()
            reading.join()
