"""Reads a partition event by event, with our client or the official one, and tells what that cost.

    python -m benchmarks._reader ours        CONNECTION EVENTS PREFETCH
    python -m benchmarks._reader sdk         CONNECTION EVENTS PREFETCH
    python -m benchmarks._reader ours-delay  CONNECTION EVENTS RATE
    python -m benchmarks._reader sdk-delay   CONNECTION EVENTS RATE
    python -m benchmarks._reader send        CONNECTION EVENTS RATE

Both are asyncio and hand over events in batches of up to the prefetch; the handler looks at all
that an event has. `ours` and `sdk` read a filled partition, and are measured after a first window
that connects and warms up. The other two wait for events that `send`, in a process of its own,
sends one at a time; each carries the moment of its sending, by the clock that all processes share.
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

from benchmarks._processes import ANSWER_S, command, cpu_s, tell
from benchmarks._sdk import PARTITION
from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event

# Takes what has arrived; False once it has seen enough.
Handler = Callable[[Sequence[Any]], Awaitable[bool]]
Read = Callable[[str, int, Handler], Awaitable[None]]


# -- the two readers ------------------------------------------------------------------------------


async def read_ours(connection: str, prefetch: int, handle: Handler) -> None:
    async with NativeClient(connection) as client:
        reader = await client.reader(ReaderOptions(PARTITION, prefetch=prefetch))
        while await handle(await reader.receive(prefetch, deadline_s=ANSWER_S)):
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
        # It would notice that the client is closed only when it looks for partitions again.
        reading.cancel()
        await asyncio.wait([reading])


def look_ours(event: Event) -> bytes:
    _ = (event.sequence, event.offset, event.enqueued_ms, event.partition_key, event.properties)
    return event.body


def look_sdk(event: EventData) -> bytes:
    _ = (event.sequence_number, event.offset, event.enqueued_time)
    _ = (event.partition_key, event.properties)
    pieces: Any = event.body
    return b"".join(pieces)


# -- what it costs --------------------------------------------------------------------------------


async def cost(
    read: Read, look: Callable[[Any], bytes], connection: str, events: int, prefetch: int
) -> None:
    """CPU seconds of this process for so many events, after a first window."""
    seen, marks = 0, list[tuple[int, float]]()

    async def handle(batch: Sequence[Any]) -> bool:
        nonlocal seen
        for event in batch:
            look(event)
        seen += len(batch)
        if seen >= prefetch and (not marks or seen >= prefetch + events):
            marks.append((seen, cpu_s(os.getpid())))
        return len(marks) < 2

    async with asyncio.timeout(ANSWER_S):
        await read(connection, prefetch, handle)
    (first, start_s), (last, end_s) = marks
    tell(events=last - first, client_s=end_s - start_s)


# -- how long it takes ----------------------------------------------------------------------------


async def delays(
    read: Read, look: Callable[[Any], bytes], connection: str, events: int, rate: int
) -> None:
    """Milliseconds from sending to handling. The first event shows that everybody is there."""
    found: list[float] = []
    senders = [await start_sender(connection, 1, rate)]

    async def handle(batch: Sequence[Any]) -> bool:
        now = time.monotonic_ns()
        if batch and len(senders) == 1:
            senders.append(await start_sender(connection, events, rate))
        else:
            found.extend((now - int(look(event))) / 1e6 for event in batch)
        return len(found) < events

    async with asyncio.timeout(ANSWER_S):
        await read(connection, PREFETCH_DEFAULT, handle)
        for sender in senders:
            await sender.wait()
    tell(delays_ms=found)


PREFETCH_DEFAULT = 300  # of both


async def start_sender(connection: str, events: int, rate: int) -> asyncio.subprocess.Process:
    words = command("_reader", "send", connection, events, rate)
    return await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=DEVNULL)


async def send(connection: str, events: int, rate: int) -> None:
    async with NativeClient(connection) as client:
        sender = await client.sender(PARTITION)
        due = time.monotonic()
        for _ in range(events):
            due += 1 / rate
            await asyncio.sleep(due - time.monotonic())
            await sender.send([Event(b"%d" % time.monotonic_ns())])
    tell(events=events)


async def main(task: str, connection: str, events: int, number: int) -> None:
    match task:
        case "ours":
            await cost(read_ours, look_ours, connection, events, number)
        case "sdk":
            await cost(read_sdk, look_sdk, connection, events, number)
        case "ours-delay":
            await delays(read_ours, look_ours, connection, events, number)
        case "sdk-delay":
            await delays(read_sdk, look_sdk, connection, events, number)
        case "send":
            await send(connection, events, number)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])))
