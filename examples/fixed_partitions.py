"""Fixed: claim two partitions and keep them. No other host gets them while this one runs."""
# mypy: disable-error-code=no-untyped-def

import asyncio

from pumphouse import EmbeddedHub, Event, FixedPartitionProcessor, MemoryStore, open_client

EVENTS = 20


async def main() -> None:
    async with EmbeddedHub({"activity": 2}) as hub:
        connection = hub.connection_string("activity")
        handled, done = 0, asyncio.Event()
        # FixedPartitionProcessor.from_env() reads these settings from the environment.
        processor = FixedPartitionProcessor(connection, partitions=2, store=MemoryStore())

        @processor.on_assigned
        async def assigned(partition):
            print(f"partition {partition} is assigned")

        @processor.on_batch
        async def handle(partition, batch):
            nonlocal handled
            handled += len(batch)
            if handled == EVENTS:
                done.set()

        async with open_client(connection) as client:
            await (await client.sender("0")).send(Event(b"door") for _ in range(EVENTS))
        await processor.start()  # returns at once
        await done.wait()
        await processor.stop()  # waits for work in progress
        print(f"{handled} events handled")


if __name__ == "__main__":
    asyncio.run(main())
