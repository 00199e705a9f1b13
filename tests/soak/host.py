"""A host of a soak, as a process of its own: a real engine that writes down all it does.

Its job is JSON on standard input. SIGTERM ends it in good order. Every second batch it writes a
checkpoint, so that a crash has something to repeat; a clean move repeats nothing all the same.

When a checkpoint is refused because the lease has run out by our own clock, it is written once
more past that fence: the store must refuse it too if somebody else has taken over.
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
from tests.soak.records import Book, digest

CHECKPOINT_BATCHES = 2
LONG_S = 1.0  # a batch that took so long is worth a checkpoint of its own
INSIST_S = 10.0
LEASE_S = 6.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a host is told."""

    name: str
    connection: str
    store: str
    book: str
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
            # It never comes due: but what is pending is written on a clean move.
            checkpoints=CheckpointPolicy(every_events=1_000_000),
            backoff_first_s=0.2,
            backoff_most_s=2.0,
        )


class Served:
    """Handles batches, slowly, and writes down when."""

    def __init__(self, job: Job, book: Book) -> None:
        self.job, self.book = job, book
        self.stays: dict[str, int] = {}
        self._stays = 0
        self._rng = Random(job.name)

    async def serve(self, partition: PartitionClient) -> None:
        self._stays += 1
        stay = self.stays[partition.id] = self._stays
        self.book.put("open", partition.id, partition.epoch, stay)
        batches = 0
        async for batch in partition.batches():
            batches += 1
            took_s = await self.handle(partition, stay, batch)
            if batches % CHECKPOINT_BATCHES == 0 or took_s > LONG_S:
                await self.checkpoint(partition, stay, batch[-1])
        reason = str(partition.reason) if partition.live else "lost"
        self.book.put("end", partition.id, partition.epoch, stay, note=reason)

    async def handle(self, partition: PartitionClient, stay: int, batch: list[Event]) -> float:
        place = (partition.epoch, stay, sequence(batch[0]), sequence(batch[-1]))
        began_s = asyncio.get_running_loop().time()
        self.book.put("in", partition.id, *place, note=digest(event.body for event in batch))
        await asyncio.sleep(self.job.work_s * self._rng.uniform(0.5, 1.5))
        self.book.put("out", partition.id, *place)
        return asyncio.get_running_loop().time() - began_s

    async def checkpoint(self, partition: PartitionClient, stay: int, event: Event) -> None:
        place = (partition.epoch, stay, sequence(event), sequence(event))
        try:
            await partition.checkpoint(event)
        except OwnershipLost:
            self.book.put("lost", partition.id, *place)
            self.book.put("late", partition.id, *place, note=await insist(partition, event))
        except PumphouseError as failed:
            self.book.put("error", partition.id, *place, note=type(failed).__name__)
        else:
            self.book.put("mark", partition.id, *place)

    def told(self, word: str, partition: str) -> None:
        if word == "released":
            self.book.put(word, partition, 0, self.stays.get(partition, 0))

    def failed(self, partition: str | None, failed: Exception) -> None:
        stay = self.stays.get(partition or "", 0)
        self.book.put("error", partition or "*", 0, stay, note=type(failed).__name__)


async def insist(partition: PartitionClient, event: Event) -> str:
    """Write the checkpoint as a host would that does not know how late it is."""
    writer = partition._writer
    try:
        async with asyncio.timeout(INSIST_S):
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
    served = Served(job, Book(Path(job.book), job.name))
    options: dict[str, Any] = {"create_container": True} if job.create_container else {}
    engine = Engine(
        lambda: open_client(job.connection),
        served.serve,
        store=open_store(job.store, **options),
        strategy=job.strategy,
        host=job.name,
        options=job.options,
        on_error=served.failed,
        on_ownership=served.told,
        rng=Random(job.name),
    )
    if not await started(engine.start, stop):
        return
    told = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(engine.run())
    await asyncio.wait([told, failed], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    await engine.stop()
    await failed


async def started(start: Callable[[], Any], stop: asyncio.Event) -> bool:
    """Start, however often it takes: hub or store may be away at this moment."""
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
