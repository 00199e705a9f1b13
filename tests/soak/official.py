"""A host of a mixed fleet: the official consumer with its own store, writing down what it does.

Its job is JSON on standard input. SIGTERM ends it in its own good order. It has no epochs, so what
it writes down carries 0; a stay begins when it is given a partition.
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
from tests.soak.records import Book, digest


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    connection: str
    store: str
    book: str
    interval_s: float = 1.0
    lease_s: float = 6.0
    batch_events: int = 20
    work_s: float = 0.05


class Served:
    def __init__(self, job: Job, book: Book) -> None:
        self.job, self.book = job, book
        self.stays: dict[str, int] = {}
        self._stays = 0

    async def opened(self, partition: Any) -> None:
        self._stays += 1
        self.stays[partition.partition_id] = self._stays
        self.book.put("open", partition.partition_id, 0, self._stays)

    async def handle(self, partition: Any, batch: list[Any]) -> None:
        if not batch:
            return
        name = partition.partition_id
        numbers = (batch[0].sequence_number, batch[-1].sequence_number)
        place = (0, self.stays[name], *numbers)
        bodies = [b"".join(event.body) for event in batch]
        self.book.put("in", name, *place, note=digest(bodies))
        await asyncio.sleep(self.job.work_s)
        self.book.put("out", name, *place)
        await partition.update_checkpoint(batch[-1])
        self.book.put("mark", name, *place)

    async def closed(self, partition: Any, reason: Any) -> None:
        name = partition.partition_id
        self.book.put("end", name, 0, self.stays[name], note=reason.name.lower())

    async def failed(self, partition: Any, failed: Exception) -> None:
        name = "*" if partition is None else partition.partition_id
        self.book.put("error", name, 0, self.stays.get(name, 0), note=type(failed).__name__)


async def run(job: Job) -> None:
    stop = stop_on_signal()
    served = Served(job, Book(Path(job.book), job.name))
    place = parse_store_url(job.store)
    consumer = EventHubConsumerClient.from_connection_string(
        job.connection,
        "$Default",
        checkpoint_store=BlobCheckpointStore.from_connection_string(
            place.connection_string, place.container
        ),
        load_balancing_interval=job.interval_s,
        partition_ownership_expiration_interval=job.lease_s,
    )
    receiving = asyncio.create_task(
        consumer.receive_batch(
            served.handle,
            max_batch_size=job.batch_events,
            max_wait_time=1.0,
            on_partition_initialize=served.opened,
            on_partition_close=served.closed,
            on_error=served.failed,
            starting_position="-1",
        )
    )
    told = asyncio.create_task(stop.wait())
    await asyncio.wait([told, receiving], return_when=asyncio.FIRST_COMPLETED)
    await consumer.close()
    receiving.cancel()
    await asyncio.wait([receiving])


if __name__ == "__main__":
    asyncio.run(run(Job(**json.load(sys.stdin))))
