"""A host of a mixed fleet: the official consumer with its own store, recording what it does.

Its job is JSON on standard input. SIGTERM stops it. It has no epochs, so its records have 0. A term
begins when it gets a partition.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from pumphouse.leases.store_url import parse_store_url
from tests.soak.host import stop_on_signal
from tests.soak.records import RecordWriter, digest


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    connection: str
    store: str
    records: str
    interval_s: float = 1.0
    lease_s: float = 6.0
    batch_events: int = 20
    work_s: float = 0.05


class RecordingHandler:
    def __init__(self, job: Job, records: RecordWriter) -> None:
        self.job, self.records = job, records
        self.terms: dict[str, int] = {}
        self._terms = 0

    async def opened(self, partition: Any) -> None:
        self._terms += 1
        self.terms[partition.partition_id] = self._terms
        self.records.write("open", partition.partition_id, 0, self._terms)

    async def handle(self, partition: Any, batch: list[Any]) -> None:
        if not batch:
            return
        name = partition.partition_id
        numbers = (batch[0].sequence_number, batch[-1].sequence_number)
        fields = (0, self.terms[name], *numbers)
        bodies = [b"".join(event.body) for event in batch]
        self.records.write("in", name, *fields, note=digest(bodies))
        await asyncio.sleep(self.job.work_s)
        self.records.write("out", name, *fields)
        await partition.update_checkpoint(batch[-1])
        self.records.write("checkpoint", name, *fields)

    async def closed(self, partition: Any, reason: Any) -> None:
        name = partition.partition_id
        self.records.write("end", name, 0, self.terms[name], note=reason.name.lower())

    async def failed(self, partition: Any, failed: Exception) -> None:
        name = "*" if partition is None else partition.partition_id
        self.records.write("error", name, 0, self.terms.get(name, 0), note=type(failed).__name__)


async def run(job: Job) -> None:
    stop = stop_on_signal()
    handler = RecordingHandler(job, RecordWriter(Path(job.records), job.name))
    fields = parse_store_url(job.store)
    consumer = EventHubConsumerClient.from_connection_string(
        job.connection,
        "$Default",
        checkpoint_store=BlobCheckpointStore.from_connection_string(
            fields.connection_string, fields.container
        ),
        load_balancing_interval=job.interval_s,
        partition_ownership_expiration_interval=job.lease_s,
    )
    receiving = asyncio.create_task(
        consumer.receive_batch(
            handler.handle,
            max_batch_size=job.batch_events,
            max_wait_time=1.0,
            on_partition_initialize=handler.opened,
            on_partition_close=handler.closed,
            on_error=handler.failed,
            starting_position="-1",
        )
    )
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([stopping, receiving], return_when=asyncio.FIRST_COMPLETED)
    await consumer.close()
    receiving.cancel()
    await asyncio.wait([receiving])


if __name__ == "__main__":
    asyncio.run(run(Job(**json.load(sys.stdin))))
