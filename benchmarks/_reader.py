"""Reads a partition event by event, with the native or the official client, and measures the cost.

    python -m benchmarks._reader ours        CONNECTION EVENTS PREFETCH
    python -m benchmarks._reader sdk         CONNECTION EVENTS PREFETCH
    python -m benchmarks._reader ours-key    CONNECTION EVENTS PREFETCH
    python -m benchmarks._reader sdk-key     CONNECTION EVENTS PREFETCH
    python -m benchmarks._reader ours-delay  CONNECTION EVENTS RATE
    python -m benchmarks._reader sdk-delay   CONNECTION EVENTS RATE
    python -m benchmarks._reader send        CONNECTION EVENTS RATE

Both are asyncio and deliver events in batches of up to the prefetch. The handler reads all fields
of an event, or only body and partition key (`ours-key`, `sdk-key`). These four read a filled
partition and are measured after a first window that connects and warms up. The next two wait for
events that `send` sends one at a time, from its own process; each event carries its send time, by
the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient

from benchmarks._processes import TIMEOUT_S, command, cpu_s, print_result
from benchmarks._sdk import PARTITION
from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event

# Gets the events that arrived; returns False when it has enough.
Handler = Callable[[Sequence[Any]], Awaitable[bool]]
Read = Callable[[str, int, Handler], Awaitable[None]]


# -- the two readers ------------------------------------------------------------------------------


async def read_ours(connection: str, prefetch: int, handle: Handler) -> None:
    async with NativeClient(connection) as client:
        reader = await client.reader(ReaderOptions(PARTITION, prefetch=prefetch))
        while await handle(await reader.receive(prefetch, deadline_s=TIMEOUT_S)):
            pass
        await reader.close()


async def read_sdk(connection: str, prefetch: int, handle: Handler) -> None:
    done = asyncio.Event()

    async def on_batch(_: Any, batch: list[EventData]) -> None:
        if not done.is_set() and not await handle(batch):
            done.set()

    async with EventHubConsumerClient.from_connection_string(connection, "$Default") as client:
        reading = asyncio.create_task(
            client.receive_batch(
                on_batch,
                partition_id=PARTITION,
                starting_position="-1",
                prefetch=prefetch,
                max_batch_size=prefetch,
            )
        )
        await done.wait()
        # `receive_batch` notices a closed client only in its next balancing cycle.
        reading.cancel()
        await asyncio.wait([reading])


def read_fields_ours(event: Event) -> bytes:
    _ = (event.sequence, event.offset, event.enqueued_ms, event.partition_key, event.properties)
    return event.body


def read_fields_sdk(event: EventData) -> bytes:
    _ = (event.sequence_number, event.offset, event.enqueued_time)
    _ = (event.partition_key, event.properties)
    pieces: Any = event.body
    return b"".join(pieces)


def read_key_ours(event: Event) -> bytes:
    _ = event.partition_key
    return event.body


def read_key_sdk(event: EventData) -> bytes:
    _ = event.partition_key
    pieces: Any = event.body
    return b"".join(pieces)


# -- what it costs --------------------------------------------------------------------------------


async def cost(
    read: Read, read_fields: Callable[[Any], bytes], connection: str, events: int, prefetch: int
) -> None:
    """CPU seconds of this process for `events` events, after a first window."""
    seen, marks = 0, list[tuple[int, float]]()

    async def handle(batch: Sequence[Any]) -> bool:
        nonlocal seen
        for event in batch:
            read_fields(event)
        seen += len(batch)
        if seen >= prefetch and (not marks or seen >= prefetch + events):
            marks.append((seen, cpu_s(os.getpid())))
        return len(marks) < 2

    async with asyncio.timeout(TIMEOUT_S):
        await read(connection, prefetch, handle)
    (first, start_s), (last, end_s) = marks
    print_result(events=last - first, client_s=end_s - start_s)


# -- how long it takes ----------------------------------------------------------------------------


async def delays(
    read: Read, read_fields: Callable[[Any], bytes], connection: str, events: int, rate: int
) -> None:
    """Milliseconds from sending to handling. The first event shows that the reader is attached."""
    delays_ms: list[float] = []
    senders = [await start_sender(connection, 1, rate)]

    async def handle(batch: Sequence[Any]) -> bool:
        now = time.monotonic_ns()
        if batch and len(senders) == 1:
            senders.append(await start_sender(connection, events, rate))
        else:
            delays_ms.extend((now - int(read_fields(event))) / 1e6 for event in batch)
        return len(delays_ms) < events

    async with asyncio.timeout(TIMEOUT_S):
        await read(connection, PREFETCH_DEFAULT, handle)
        for sender in senders:
            await sender.wait()
    print_result(delays_ms=delays_ms)


PREFETCH_DEFAULT = 300  # of both clients


async def start_sender(connection: str, events: int, rate: int) -> asyncio.subprocess.Process:
    arguments = command("_reader", "send", connection, events, rate)
    return await asyncio.create_subprocess_exec(*arguments, stdin=DEVNULL, stdout=DEVNULL)


async def send(connection: str, events: int, rate: int) -> None:
    async with NativeClient(connection) as client:
        sender = await client.sender(PARTITION)
        due = time.monotonic()
        for _ in range(events):
            due += 1 / rate
            await asyncio.sleep(due - time.monotonic())
            await sender.send([Event(b"%d" % time.monotonic_ns())])
    print_result(events=events)


async def main(task: str, connection: str, events: int, number: int) -> None:
    match task:
        case "ours":
            await cost(read_ours, read_fields_ours, connection, events, number)
        case "sdk":
            await cost(read_sdk, read_fields_sdk, connection, events, number)
        case "ours-key":
            await cost(read_ours, read_key_ours, connection, events, number)
        case "sdk-key":
            await cost(read_sdk, read_key_sdk, connection, events, number)
        case "ours-delay":
            await delays(read_ours, read_fields_ours, connection, events, number)
        case "sdk-delay":
            await delays(read_sdk, read_fields_sdk, connection, events, number)
        case "send":
            await send(connection, events, number)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])))
