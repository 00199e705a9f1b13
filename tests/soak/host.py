"""A host of a soak in a process of its own: a real host of one API that records what it does.

Its job is JSON on standard input. SIGTERM stops it. All checkpoints are manual: it writes one after
some of its batches, with or without an event. So a crash repeats events, and a clean move none.

If a checkpoint is refused because the lease has expired by our own clock, it is written again
without that check: the store must refuse it too if another host has taken over. Any other exception
of a checkpoint is recorded: an outage of the store must not raise in a handler.

A host of the API `keys` handles several keys of a partition at once. Its checkpoints are at the
low-water mark.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pumphouse.client.factory import open_client
from pumphouse.errors import OwnershipLost, PumphouseError
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    PartitionManagerOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.processor.reporting import Reporter
from tests.soak.records import RecordWriter, digest

PULL, CLASS, FUNCTIONS, FIXED = "pull", "class", "functions", "fixed"
KEYS = "keys"  # functions with concurrency
CONCURRENCY = 6  # fewer than the keys of a partition
KEYED_WORK_S = 0.15  # of one event, with concurrency: calls of different keys overlap
CHECKPOINT_EVENTS = 40  # after at least this many
SHARE_MIN = 0.2  # of the time for a full batch
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
    api: str = PULL
    partitions: int = 1  # the most that a fixed host claims

    @property
    def options(self) -> ProcessorOptions:
        return ProcessorOptions(
            interval_s=self.interval_s,
            renew_s=self.renew_s,
            lease_s=self.lease_s,
            batch_events_max=self.batch_events,
            backoff_first_s=0.2,
            backoff_most_s=2.0,
        )

    def open_store(self) -> CheckpointStore:
        options: dict[str, Any] = {"create_container": True} if self.create_container else {}
        return open_store(self.store, **options)


class RecordingHandler:
    """Handles batches slowly, and records them."""

    def __init__(self, job: Job, records: RecordWriter) -> None:
        self.job, self.records = job, records
        self.terms: dict[str, int] = {}
        self._terms = 0
        self._unwritten: dict[str, int] = {}  # handled events since the last checkpoint
        self._rng = Random(job.name)
        self._concurrent = job.api == KEYS

    def begin(self, partition: PartitionClient) -> None:
        self._terms += 1
        self.terms[partition.id], self._unwritten[partition.id] = self._terms, 0
        handlers = CONCURRENCY if self._concurrent else 1
        self.records.write("open", partition.id, partition.epoch, self._terms, note=str(handlers))

    def end(self, partition: PartitionClient) -> None:
        reason = str(partition.reason) if partition.live else "lost"
        term = self.terms[partition.id]
        self.records.write("end", partition.id, partition.epoch, term, note=reason)

    async def serve(self, partition: PartitionClient) -> None:
        self.begin(partition)
        async for batch in partition.batches():
            await self.work(partition, batch)
        self.end(partition)

    async def work(self, partition: PartitionClient, batch: list[Event]) -> None:
        """Handle a batch, and write a checkpoint after some."""
        term = self.terms[partition.id]
        took_s = await self.handle(partition, term, batch)
        self._unwritten[partition.id] += len(batch)
        if self._unwritten[partition.id] >= CHECKPOINT_EVENTS or took_s > LONG_S:
            self._unwritten[partition.id] = 0
            await self.checkpoint(partition, term, batch[-1])

    async def handle(self, partition: PartitionClient, term: int, batch: list[Event]) -> float:
        fields = (partition.epoch, term, sequence(batch[0]), sequence(batch[-1]))
        began_s = asyncio.get_running_loop().time()
        self.records.write("in", partition.id, *fields, note=digest(event.body for event in batch))
        share = max(SHARE_MIN, len(batch) / self.job.batch_events)
        work_s = KEYED_WORK_S if self._concurrent else self.job.work_s * share
        await asyncio.sleep(work_s * self._rng.uniform(0.5, 1.5))
        self.records.write("out", partition.id, *fields)
        return asyncio.get_running_loop().time() - began_s

    async def checkpoint(self, partition: PartitionClient, term: int, event: Event) -> None:
        fields = (partition.epoch, term, sequence(event), sequence(event))
        try:
            await (
                partition.checkpoint(event) if self._rng.random() < 0.5 else partition.checkpoint()
            )
        except OwnershipLost:
            self.records.write("lost", partition.id, *fields)
            if not self._concurrent:  # events before this one may still be handled
                self.records.write(
                    "late", partition.id, *fields, note=await write_unfenced(partition, event)
                )
        except Exception as failed:
            self.records.write("raised", partition.id, *fields, note=type(failed).__name__)
        else:
            written = low_water_mark(partition) if self._concurrent else sequence(event)
            self.records.write("checkpoint", partition.id, *fields[:2], written, written)

    def ownership_changed(self, event: str, partition: str) -> None:
        if event == "released":
            self.records.write(event, partition, 0, self.terms.get(partition, 0))

    def failed(self, partition: str | None, failed: Exception) -> None:
        term = self.terms.get(partition or "", 0)
        self.records.write("error", partition or "*", 0, term, note=type(failed).__name__)


def low_water_mark(partition: PartitionClient) -> int:
    """The last checkpoint that the store has granted; -1 if there is none."""
    written = partition._checkpoint.writer.sequence
    return -1 if written is None else written


async def write_unfenced(partition: PartitionClient, event: Event) -> str:
    """Write the checkpoint without the check of our own lease; the outcome."""
    writer = partition._checkpoint.writer
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


# -- one host of each API -------------------------------------------------------------------------


class PullHost(Processor):
    """The pull API: it calls `serve` for each partition."""

    def __init__(self, job: Job, handler: RecordingHandler) -> None:
        super().__init__(
            lambda: open_client(job.connection),
            store=job.open_store(),
            strategy=job.strategy,
            host=job.name,
            options=job.options,
            rng=Random(job.name),
        )
        self._handler = handler
        self.engine.reporter = Reporter(job.name, handler.failed, handler.ownership_changed)

    async def start(self) -> None:
        await self.__aenter__()

    async def run_all(self) -> None:
        await self.run(self._handler.serve)


class PushHost(EventProcessorHost):
    """The push API, with a class or with functions."""

    def __init__(self, job: Job, handler: RecordingHandler) -> None:
        super().__init__(
            job.name,
            lambda: open_client(job.connection),
            store=job.open_store(),
            strategy=job.strategy,
            partition_manager_options=PartitionManagerOptions(job.lease_s, job.renew_s),
            rng=Random(job.name),
        )
        self._job, self._handler = job, handler

    def _make_engine(self, settings: ProcessorOptions) -> Engine:
        engine = super()._make_engine(settings)
        handler = self._handler
        engine.reporter = Reporter(self._job.name, handler.failed, handler.ownership_changed)
        return engine

    async def _serve(self, partition: PartitionClient) -> None:
        self._handler.begin(partition)
        await super()._serve(partition)
        self._handler.end(partition)

    async def start(self, *args: Any, **more: Any) -> None:
        options = EventProcessorOptions(
            max_batch_size=self._job.batch_events,
            concurrency=CONCURRENCY if self._job.api == KEYS else 1,
        )
        if self._job.api in (FUNCTIONS, KEYS):
            await super().start(self._on_message, None, options)
        else:
            await self.register(lambda: self, options)

    async def run_all(self) -> None:
        await self.run()

    async def _on_message(self, context: PartitionContext, event: Event) -> None:
        await self._handler.work(context.partition, [event])

    async def open(self, context: PartitionContext) -> None: ...

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        await self._handler.work(context.partition, messages)

    async def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """A checkpoint at the end, as many users write it."""
        with suppress(OwnershipLost):
            await context.checkpoint()


class FixedHost(FixedPartitionProcessor):
    """The fixed API, without automatic checkpoints while it runs."""

    def __init__(self, job: Job, handler: RecordingHandler) -> None:
        super().__init__(
            lambda: open_client(job.connection),
            store=job.open_store(),
            host=job.name,
            partitions=job.partitions,
            should_checkpoint=False,
            checkpoint_on_stop=True,
            lease_s=job.lease_s,
            renew_s=job.renew_s,
            max_batch_size=job.batch_events,
            rng=Random(job.name),
        )
        self._handler = handler
        self.on_batch(handler.work)
        self.engine.reporter = Reporter(job.name, handler.failed, handler.ownership_changed)

    async def _serve(self, partition: PartitionClient) -> None:
        self._handler.begin(partition)
        await super()._serve(partition)
        self._handler.end(partition)

    async def run_all(self) -> None:
        await self.run()


HOSTS: dict[str, Callable[[Job, RecordingHandler], Any]] = {
    PULL: PullHost,
    CLASS: PushHost,
    FUNCTIONS: PushHost,
    KEYS: PushHost,
    FIXED: FixedHost,
}


async def run(job: Job) -> None:
    stop = stop_on_signal()
    handler = RecordingHandler(job, RecordWriter(Path(job.records), job.name))
    host = HOSTS[job.api](job, handler)
    if not await started(host.start, stop):
        return
    stopping = asyncio.create_task(stop.wait())
    running = asyncio.create_task(host.run_all())
    await asyncio.wait([stopping, running], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await host.stop()
    await running


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
