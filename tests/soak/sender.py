"""The sender of a soak in a process of its own: it numbers events and records acknowledged ones.

Its job is JSON on standard input. It sends at a steady pace to all partitions in turn, until
SIGTERM. All events have a partition key, and those of one send have the same. The events of a
failed send may have arrived or not: their numbers are not used again, and they are not checked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pumphouse.client.base import HubClient, Sender
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from pumphouse.hub.routing import partition_for
from tests.soak.host import started, stop_on_signal
from tests.soak.records import RecordWriter

LIMIT_S = 20.0  # of one send, with reconnecting
KEYS_PER_PARTITION = 8


@dataclass(frozen=True, slots=True)
class Job:
    connection: str
    records: str
    events: int = 5  # of one send
    pause_s: float = 0.05  # after each send


async def run(job: Job) -> None:
    stop = stop_on_signal()
    records = RecordWriter(Path(job.records), "sender")
    while not stop.is_set():
        client = open_client(job.connection)
        if not await started(client.__aenter__, stop):
            return
        try:
            await send_on(client, job, records, stop)
        except (TimeoutError, PumphouseError) as failed:
            records.write("error", "*", note=type(failed).__name__)
            await asyncio.sleep(job.pause_s)
        finally:
            await client.__aexit__(None, None, None)


NUMBERS = itertools.count()


async def send_on(client: HubClient, job: Job, records: RecordWriter, stop: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        partitions = (await client.properties()).partitions
        sender = await client.sender()
    for partition, key in itertools.cycle(keys_of(partitions)):
        if stop.is_set():
            return
        await send(sender, partition, key, job.events, records)
        await asyncio.sleep(job.pause_s)


def keys_of(partitions: Sequence[str]) -> list[tuple[str, str]]:
    """Partitions in turn, each with a key that the hub maps to it."""
    keys: dict[str, list[str]] = {partition: [] for partition in partitions}
    for number in itertools.count():
        if all(len(of_one) == KEYS_PER_PARTITION for of_one in keys.values()):
            break
        key = f"key-{number}"
        of_partition = keys[partitions[partition_for(key, len(partitions))]]
        if len(of_partition) < KEYS_PER_PARTITION:
            of_partition.append(key)
    return [(p, keys[p][number]) for number in range(KEYS_PER_PARTITION) for p in partitions]


async def send(sender: Sender, partition: str, key: str, count: int, records: RecordWriter) -> None:
    numbers = [next(NUMBERS) for _ in range(count)]
    async with asyncio.timeout(LIMIT_S):
        await sender.send([Event(b"%d" % number, partition_key=key) for number in numbers])
    records.write("ack", partition, 0, 0, numbers[0], numbers[-1])


if __name__ == "__main__":
    asyncio.run(run(Job(**json.load(sys.stdin))))
