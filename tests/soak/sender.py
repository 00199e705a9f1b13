"""The sender of a soak, as a process of its own: numbers events, and writes down what was taken.

Its job is JSON on standard input. It sends until SIGTERM, at a steady pace, to all partitions in
turn. A send that fails may have arrived or not: its numbers are never used again, and nobody is
asked about them afterwards.
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
from tests.soak.records import Book

LIMIT_S = 20.0  # of one send, the reconnecting included


@dataclass(frozen=True, slots=True)
class Job:
    connection: str
    book: str
    events: int = 5  # of one send
    pause_s: float = 0.05  # after each send


async def run(job: Job) -> None:
    stop = stop_on_signal()
    book = Book(Path(job.book), "sender")
    while not stop.is_set():
        client = open_client(job.connection)
        if not await started(client.__aenter__, stop):
            return
        try:
            await send_on(client, job, book, stop)
        except (TimeoutError, PumphouseError) as failed:
            book.put("error", "*", note=type(failed).__name__)
            await asyncio.sleep(job.pause_s)
        finally:
            await client.__aexit__(None, None, None)


NUMBERS = itertools.count()


async def send_on(client: HubClient, job: Job, book: Book, stop: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        partitions = (await client.properties()).partitions
        senders = [(partition, await client.sender(partition)) for partition in partitions]
    for partition, sender in itertools.cycle(senders):
        if stop.is_set():
            return
        await send(sender, partition, job.events, book)
        await asyncio.sleep(job.pause_s)


async def send(sender: Sender, partition: str, count: int, book: Book) -> None:
    numbers = [next(NUMBERS) for _ in range(count)]
    async with asyncio.timeout(LIMIT_S):
        await sender.send([Event(b"%d" % number) for number in numbers])
    book.put("ack", partition, 0, 0, numbers[0], numbers[-1])


if __name__ == "__main__":
    asyncio.run(run(Job(**json.load(sys.stdin))))
