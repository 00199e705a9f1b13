"""A host of a soak in a process of its own: a real engine that records what it does.

Its job is JSON on standard input. SIGTERM stops it. It writes a checkpoint after every second
batch, so that a crash repeats events; a clean move still repeats none.

If a checkpoint is refused because the lease has expired by our own clock, it is written again
without that check: the store must refuse it too if another host has taken over.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pumphouse.client.factory import open_client
from pumphouse.errors import OwnershipLost, PumphouseError
from pumphouse.events import Event
from pumphouse.leases.store_url import open_store
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.soak.records import RecordWriter, digest

CHECKPOINT_BATCHES = 2
LONG_S = 1.0  # a batch that takes longer gets a checkpoint of its own
UNFENCED_S = 10.0
LEASE_S = 6.0


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a host."""

    name: str
    connection: str
    store: str
    records: str
    strategy: str = "steady"
    interval_s: float = 1.0
    renew_s: float = 1.5
    lease_s: float = LEASE_S
    batch_events: int = 20
    work_s: float = 0.05
    create_container: bool = False

    @property
    def options(self) -> ProcessorOptions:
        return ProcessorOptions(
            interval_s=self.interval_s,
            renew_s=self.renew_s,
            lease_s=self.lease_s,
            batch_events_max=self.batch_events,
            # Never due: only a clean move writes what is pending.
            checkpoints=CheckpointPolicy(every_events=1_000_000),
            backoff_first_s=0.2,
            backoff_most_s=2.0,
        )


class RecordingHandler:
    """Handles batches slowly, and records them."""

    def __init__(self, job: Job, records: RecordWriter) -> None:
        self.job, self.records = job, records
        self.terms: dict[str, int] = {}
        self._terms = 0
        self._rng = Random(job.name)

    async def serve(self, partition: PartitionClient) -> None:
        self._terms += 1
        term = self.terms[partition.id] = self._terms
        self.records.write("open", partition.id, partition.epoch, term)
        batches = 0
        async for batch in partition.batches():
            batches += 1
            took_s = await self.handle(partition, term, batch)
            if batches % CHECKPOINT_BATCHES == 0 or took_s > LONG_S:
                await self.checkpoint(partition, term, batch[-1])
        reason = str(partition.reason) if partition.live else "lost"
        self.records.write("end", partition.id, partition.epoch, term, note=reason)

    async def handle(self, partition: PartitionClient, term: int, batch: list[Event]) -> float:
        fields = (partition.epoch, term, sequence(batch[0]), sequence(batch[-1]))
        began_s = asyncio.get_running_loop().time()
        self.records.write("in", partition.id, *fields, note=digest(event.body for event in batch))
        await asyncio.sleep(self.job.work_s * self._rng.uniform(0.5, 1.5))
        self.records.write("out", partition.id, *fields)
        return asyncio.get_running_loop().time() - began_s

    async def checkpoint(self, partition: PartitionClient, term: int, event: Event) -> None:
        fields = (partition.epoch, term, sequence(event), sequence(event))
        try:
            await partition.checkpoint(event)
        except OwnershipLost:
            self.records.write("lost", partition.id, *fields)
            self.records.write(
                "late", partition.id, *fields, note=await write_unfenced(partition, event)
            )
        except PumphouseError as failed:
            self.records.write("error", partition.id, *fields, note=type(failed).__name__)
        else:
            self.records.write("checkpoint", partition.id, *fields)

    def ownership_changed(self, event: str, partition: str) -> None:
        if event == "released":
            self.records.write(event, partition, 0, self.terms.get(partition, 0))

    def failed(self, partition: str | None, failed: Exception) -> None:
        term = self.terms.get(partition or "", 0)
        self.records.write("error", partition or "*", 0, term, note=type(failed).__name__)


async def write_unfenced(partition: PartitionClient, event: Event) -> str:
    """Write the checkpoint without the check of our own lease; the outcome."""
    writer = partition._writer
    try:
        async with asyncio.timeout(UNFENCED_S):
            await writer.advance(sequence(event), event.offset, event.enqueued_ms)
    except OwnershipLost:
        return "refused"
    except (TimeoutError, PumphouseError):
        return "unknown"
    return "granted"


def sequence(event: Event) -> int:
    assert event.sequence is not None
    return event.sequence


async def run(job: Job) -> None:
    stop = stop_on_signal()
    handler = RecordingHandler(job, RecordWriter(Path(job.records), job.name))
    options: dict[str, Any] = {"create_container": True} if job.create_container else {}
    engine = Engine(
        lambda: open_client(job.connection),
        handler.serve,
        store=open_store(job.store, **options),
        strategy=job.strategy,
        host=job.name,
        options=job.options,
        on_error=handler.failed,
        on_ownership=handler.ownership_changed,
        rng=Random(job.name),
    )
    if not await started(engine.start, stop):
        return
    ownership_changed = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(engine.run())
    await asyncio.wait([ownership_changed, failed], return_when=asyncio.FIRST_COMPLETED)
    ownership_changed.cancel()
    await engine.stop()
    await failed


async def started(start: Callable[[], Any], stop: asyncio.Event) -> bool:
    """Start, and retry while hub or store are not available; False if stopped before."""
    while not stop.is_set():
        try:
            await start()
        except PumphouseError as failed:
            sys.stderr.write(f"not yet: {failed}\n")
            await asyncio.sleep(0.5)
        else:
            return True
    return False


def stop_on_signal() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


if __name__ == "__main__":
    asyncio.run(run(Job(**json.load(sys.stdin))))
