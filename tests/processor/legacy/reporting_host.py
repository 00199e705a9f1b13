"""A host of ours in a process of its own, which a test kills.

It prints a line with `partition` and `sequence` for each handled event, and one with `checkpoint`
after each checkpoint. It writes one after every third event.
"""

from __future__ import annotations

import asyncio
import json
import sys

from pumphouse import EventProcessorHost, PartitionContext, PartitionManagerOptions
from pumphouse.events import Event

CHECKPOINT_EVENTS = 3


async def main(
    name: str, storage: str, container: str, hub: str, lease_s: str, renew_s: str
) -> None:
    def report(**fields: object) -> None:
        sys.stdout.write(f"{json.dumps(fields)}\n")
        sys.stdout.flush()

    async def on_message(context: PartitionContext, event: Event) -> None:
        report(partition=context.partition_id, sequence=event.sequence)
        if (event.sequence or 0) % CHECKPOINT_EVENTS == 0:
            await context.checkpoint(event)
            report(partition=context.partition_id, checkpoint=event.sequence)

    host = EventProcessorHost.from_connection_string(
        name,
        storage,
        container,
        hub,
        partition_manager_options=PartitionManagerOptions(float(lease_s), float(renew_s)),
        format="javascript",
    )
    await host.start(on_message)
    await host.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
