"""Hosts of all three APIs in a process of its own, which Ctrl-C interrupts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from pumphouse import (
    Event,
    EventProcessorHost,
    FixedPartitionProcessor,
    PartitionClient,
    PartitionContext,
    Processor,
    SqliteStore,
)

CLAIMED = "claimed"


async def main(connections: list[str], path: str) -> None:
    async def serve(partition: PartitionClient) -> None:
        async for _ in partition.batches():
            await partition.checkpoint()

    async def on_message(context: PartitionContext, event: Event) -> None: ...

    async def on_batch(partition: PartitionClient, batch: list[Event]) -> None: ...

    async with SqliteStore(Path(path)) as store:
        pull = Processor(connections[0], store=store)
        push = EventProcessorHost("push", connections[1], store=store)
        fixed = FixedPartitionProcessor(connections[2], partitions=1, store=store)
        fixed.on_batch(on_batch)
        await push.start(on_message)
        await fixed.start()
        processors: list[Any] = [pull, push, fixed]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pull.run(serve))
            tasks.create_task(push.run())
            tasks.create_task(fixed.run())
            while not all(processor.owned for processor in processors):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            sys.stdout.write(f"{CLAIMED}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[2:], sys.argv[1]))
