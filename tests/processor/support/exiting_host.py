"""A host whose handler raises KeyboardInterrupt or SystemExit, while others of it are busy.

It prints `handled N` after each event that was handled.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

from pumphouse import (
    CheckpointPolicy,
    Event,
    FixedPartitionProcessor,
    PartitionClient,
    Processor,
    ProcessorGroup,
    ProcessorOptions,
    SqliteStore,
)

ERRORS = {"interrupt": KeyboardInterrupt, "exit": SystemExit}
STOP_S = 1.0
CONCURRENCY = 4
BUSY_S = 600.0
LAST = 5  # the event after which the handler raises
EACH = CheckpointPolicy(every_events=1)


def report(event: Event) -> None:
    sys.stdout.write(f"handled {event.sequence}\n")
    sys.stdout.flush()


async def main(api: str, error: str, connection: str, path: str) -> None:
    last, in_thread = asyncio.Event(), threading.Event()

    async def handle(partition: PartitionClient, batch: list[Event]) -> None:
        for event in batch:
            if event.body == b"busy":
                await asyncio.sleep(BUSY_S)
            if event.body == b"raise":
                await last.wait()
                raise ERRORS[error]
            report(event)
            if event.sequence == LAST:
                last.set()

    def handle_in_thread(partition: PartitionClient, batch: list[Event]) -> None:
        for event in batch:
            if event.body == b"busy":
                time.sleep(BUSY_S)
            if event.body == b"raise":
                in_thread.wait()
                raise ERRORS[error]
            report(event)
            if event.sequence == LAST:
                in_thread.set()

    options = ProcessorOptions(
        concurrency=CONCURRENCY, checkpoints=EACH, batch_events_max=1, stop_s=STOP_S
    )
    async with SqliteStore(Path(path)) as store:
        if api == "group":
            group = ProcessorGroup(connection, store=store)
            group.fixed(
                "eh", handle, partitions=1, concurrency=CONCURRENCY, max_batch_size=1, stop_s=STOP_S
            )
            await group.run()
        elif api == "fixed":
            fixed = FixedPartitionProcessor(
                connection, partitions=1, store=store, concurrency=CONCURRENCY, stop_s=STOP_S,
                max_batch_size=1,
            )  # fmt: skip
            fixed.on_batch(handle)
            async with fixed:
                await fixed.run()
        else:
            async with Processor(connection, store=store, options=options) as processor:
                await processor.run(handler=handle_in_thread if api == "threads" else handle)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
