"""Processes a hub with a processor or the official consumer client, and measures the cost.

    python -m benchmarks._processor azurite
    python -m benchmarks._processor fill    CONNECTION EVENTS SIZE [traced]
    python -m benchmarks._processor ours    CONNECTION EVENTS PREFETCH STORAGE
    python -m benchmarks._processor sdk     CONNECTION EVENTS PREFETCH STORAGE
    python -m benchmarks._processor bare    CONNECTION EVENTS PREFETCH
    python -m benchmarks._processor engine  CONNECTION EVENTS PREFETCH [metrics|traces=SHARE]

`ours` and `sdk` own all partitions of the hub, with leases and checkpoints in Blob Storage. They
pass batches to a handler that only counts, and checkpoint every partition about every 1,000 events.
`bare` is the native reader alone, and `engine` is the processor around it, with a store in memory
and no checkpoints: their difference is the cost that the processor adds to each event. It may
record metrics, or have a TracerProvider with a batch processor that samples a share of all calls.
`fill traced` gives each event a trace context, as a producer with traces does.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid
from typing import Any

from benchmarks._processes import TIMEOUT_S, cpu_s, print_result, wait_until_stdin_closes

CHECKPOINT_EVENTS = 1000
WARM_EVENTS = 5000


class Meter:
    """Reads the CPU clock of this process after the warm-up and after the last event."""

    def __init__(self, events: int) -> None:
        self.last = WARM_EVENTS + events
        self.seen = 0
        self.marks: list[tuple[int, float]] = []
        self.done = asyncio.Event()

    def count(self, events: int) -> None:
        self.seen += events
        mark = WARM_EVENTS if not self.marks else self.last
        if self.seen >= mark and len(self.marks) < 2:
            self.marks.append((self.seen, cpu_s(os.getpid())))
        if self.seen >= self.last:
            self.done.set()

    def report(self) -> None:
        (first, start_s), (last, end_s) = self.marks
        print_result(events=last - first, client_s=end_s - start_s)


async def fill(connection: str, events: int, size: int, traced: bool) -> None:
    """Send `events` events with two properties to every partition."""
    from pumphouse.client.factory import open_client
    from pumphouse.events import Event

    rng = random.Random(1)
    body = rng.randbytes(size)

    def context() -> dict[str, str]:
        ids = f"{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}"
        return {"traceparent": f"00-{ids}-01"} if traced else {}

    async with open_client(connection) as client:
        for partition in (await client.properties()).partitions:
            sender = await client.sender(partition)
            await sender.send(
                Event(body, {"kind": "temperature", "reading": number} | context())
                for number in range(events)
            )
    print_result(events=events)


# -- end to end -----------------------------------------------------------------------------------


async def ours(meter: Meter, connection: str, prefetch: int, storage: str) -> None:
    from pumphouse.leases.stores.blob.store import BlobStore
    from pumphouse.processor.engine import Engine
    from pumphouse.processor.handlers import Handling
    from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions

    async def handle(partition: Any, batch: list[Any]) -> None:
        meter.count(len(batch))

    options = ProcessorOptions(
        prefetch=prefetch,
        batch_events_max=prefetch,
        checkpoints=CheckpointPolicy(every_events=CHECKPOINT_EVENTS),
    )
    store = BlobStore.from_connection_string(storage, container(), create_container=True)
    engine = Engine(connection, lambda p: handling.serve(p), store=store, options=options)
    handling = Handling(handle, options, engine.reporter)
    async with engine:
        await meter.done.wait()
    await handling.close()


async def sdk(meter: Meter, connection: str, prefetch: int, storage: str) -> None:
    from azure.eventhub.aio import EventHubConsumerClient
    from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
    from azure.storage.blob.aio import ContainerClient

    name = container()
    async with ContainerClient.from_connection_string(storage, name) as made:
        await made.create_container()
    store = BlobCheckpointStore.from_connection_string(storage, name)
    pending: dict[str, int] = {}

    async def on_batch(context: Any, batch: list[Any]) -> None:
        meter.count(len(batch))
        pending[context.partition_id] = pending.get(context.partition_id, 0) + len(batch)
        if pending[context.partition_id] >= CHECKPOINT_EVENTS:
            pending[context.partition_id] = 0
            await context.update_checkpoint()

    client = EventHubConsumerClient.from_connection_string(
        connection, "$Default", checkpoint_store=store, load_balancing_interval=10
    )
    async with client, store:
        reading = asyncio.create_task(
            client.receive_batch(
                on_batch, starting_position="-1", prefetch=prefetch, max_batch_size=prefetch
            )
        )
        await meter.done.wait()
        # `receive_batch` notices a closed client only in its next balancing cycle.
        reading.cancel()
        await asyncio.wait([reading])


def container() -> str:
    return f"bench-{uuid.uuid4().hex}"


# -- what the processor adds ----------------------------------------------------------------------


async def bare(meter: Meter, connection: str, prefetch: int) -> None:
    """Read all partitions at once, as the processor does, without a processor."""
    from pumphouse.client.base import HubClient, ReaderOptions
    from pumphouse.client.factory import open_client

    async def read(client: HubClient, partition: str) -> None:
        reader = await client.reader(ReaderOptions(partition, prefetch=prefetch, epoch=1))
        while not meter.done.is_set():
            meter.count(len(await reader.receive(prefetch, 1.0)))

    async with open_client(connection) as client:
        partitions = (await client.properties()).partitions
        await asyncio.gather(*(read(client, partition) for partition in partitions))


def observe(observed: str) -> None:
    """Record metrics (`metrics`), or traces of a share of all calls (`traces=0.01`)."""
    if observed == "metrics":
        from pumphouse.telemetry import serve_metrics

        serve_metrics(0)
    elif observed:
        from opentelemetry import trace

        trace.set_tracer_provider(tracer_provider(float(observed.removeprefix("traces="))))


def tracer_provider(share: float) -> Any:
    """That of an application, with an exporter that sends nothing: its cost is not ours."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class NoExporter(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(ParentBasedTraceIdRatio(share))
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    return provider


async def engine(meter: Meter, connection: str, prefetch: int, observed: str = "") -> None:
    observe(observed)
    from pumphouse.leases.stores.memory import MemoryStore
    from pumphouse.processor.engine import Engine
    from pumphouse.processor.handlers import Handling
    from pumphouse.processor.options import ProcessorOptions

    async def handle(partition: Any, batch: list[Any]) -> None:
        meter.count(len(batch))

    options = ProcessorOptions(prefetch=prefetch, batch_events_max=prefetch)
    running = Engine(connection, lambda p: handling.serve(p), store=MemoryStore(), options=options)
    handling = Handling(handle, options, running.reporter)
    async with running:
        await meter.done.wait()
    await handling.close()


SIDES: dict[str, Any] = {"ours": ours, "sdk": sdk, "bare": bare, "engine": engine}


async def measure(side: str, connection: str, events: int, prefetch: int, *more: str) -> None:
    meter = Meter(events)
    async with asyncio.timeout(TIMEOUT_S):
        await SIDES[side](meter, connection, prefetch, *more)
    meter.report()


def azurite() -> None:
    from tests.azurite.server import Azurite

    with Azurite() as running:
        print_result(storage=running.connection_string())
        wait_until_stdin_closes()


if __name__ == "__main__":
    if sys.argv[1] == "azurite":
        azurite()
    elif sys.argv[1] == "fill":
        asyncio.run(fill(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "traced" in sys.argv))
    else:
        side, connection, events, prefetch, *more = sys.argv[1:]
        asyncio.run(measure(side, connection, int(events), int(prefetch), *more))
