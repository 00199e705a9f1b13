"""The sender of a soak in a process of its own: it numbers events and records acknowledged ones.

Its job is JSON on standard input. It sends at a steady pace to all partitions in turn, until
SIGTERM. The events of a failed send may have arrived or not: their numbers are not used again, and
they are not checked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from pumphouse.client.base import HubClient, Sender
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from tests.soak.host import started, stop_on_signal
from tests.soak.records import RecordWriter

LIMIT_S = 20.0  # of one send, with reconnecting


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
        senders = [(partition, await client.sender(partition)) for partition in partitions]
    for partition, sender in itertools.cycle(senders):
        if stop.is_set():
            return
        await send(sender, partition, job.events, records)
        await asyncio.sleep(job.pause_s)


async def send(sender: Sender, partition: str, count: int, records: RecordWriter) -> None:
    numbers = [next(NUMBERS) for _ in range(count)]
    async with asyncio.timeout(LIMIT_S):
        await sender.send([Event(b"%d" % number) for number in numbers])
    records.write("ack", partition, 0, 0, numbers[0], numbers[-1])


if __name__ == "__main__":
    asyncio.run(run(Job(**json.load(sys.stdin))))
