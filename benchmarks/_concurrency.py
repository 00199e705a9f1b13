"""Handles keyed events with one handler per partition, or with several at once.

    python -m benchmarks._concurrency fill CONNECTION EVENTS KEYS
    python -m benchmarks._concurrency wait CONNECTION EVENTS CONCURRENCY
    python -m benchmarks._concurrency spin CONNECTION EVENTS CONCURRENCY

The handler of `wait` sleeps for 20 ms with each event; its result is a rate. That of `spin` only
counts; its result is the CPU time of the process. Both use a store in memory and no checkpoints.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks._processes import TIMEOUT_S, print_result
from benchmarks._processor import Meter
from pumphouse import Processor, ProcessorOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.leases.stores.memory import MemoryStore

WAIT_S = 0.02
PREFETCH = 300
RUN = 25  # events of a key that follow each other, in the hub


async def fill(connection: str, events: int, keys: int) -> None:
    """Send events in turn of their keys; without keys, if there are none."""
    body, sent = bytes(100), 0
    names: list[str | None] = [f"key-{key}" for key in range(keys)]
    async with open_client(connection) as client:
        sender = await client.sender()
        while sent < events:
            for name in names or [None]:
                await sender.send([Event(body, {}, name)] * RUN)
                sent += RUN
    print_result(events=sent)


async def process(
    connection: str,
    concurrency: int,
    handle: Callable[[Any, list[Event]], Awaitable[None]],
    done: asyncio.Event,
) -> None:
    options = ProcessorOptions(
        concurrency=concurrency, prefetch=PREFETCH, batch_events_max=PREFETCH
    )
    async with Processor(connection, store=MemoryStore(), options=options) as processor:
        running = asyncio.create_task(processor.run(handler=handle))
        await done.wait()
    await running


async def wait(connection: str, events: int, concurrency: int) -> None:
    """The rate from the first handled event on."""
    marks: list[float] = []
    done = asyncio.Event()

    async def handle(partition: Any, batch: list[Event]) -> None:
        for _ in batch:
            await asyncio.sleep(WAIT_S)
            marks.append(time.perf_counter())
            if len(marks) == events:
                done.set()

    await process(connection, concurrency, handle, done)
    print_result(rate=(events - 1) / (marks[events - 1] - marks[0]))


async def spin(connection: str, events: int, concurrency: int) -> None:
    meter = Meter(events)

    async def handle(partition: Any, batch: list[Event]) -> None:
        meter.count(len(batch))

    await process(connection, concurrency, handle, meter.done)
    meter.report()


SIDES = {"fill": fill, "wait": wait, "spin": spin}


async def main(side: str, connection: str, *numbers: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        first, second = map(int, numbers)
        await SIDES[side](connection, first, second)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
