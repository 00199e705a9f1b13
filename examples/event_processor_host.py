"""Push: register a class. Each partition that this host owns gets an object of it."""
# mypy: disable-error-code=no-untyped-def

import asyncio

from pumphouse import EmbeddedHub, Event, EventProcessorHost, MemoryStore, open_client


async def main() -> None:
    done = asyncio.Event()

    class SimpleEventProcessor:
        async def open(self, context):
            print(f"partition {context.partition_id} is opened")

        async def process_events(self, context, messages):
            print(f"{len(messages)} events of partition {context.partition_id}")
            await context.checkpoint()
            done.set()

        async def process_error(self, context, error):
            print(f"partition {context.partition_id}: {error}")

        async def close(self, context, reason):
            print(f"partition {context.partition_id} is closed: {reason}")

    async with EmbeddedHub({"sensors": 2}) as hub:
        connection = hub.connection_string("sensors")
        async with open_client(connection) as client:
            await (await client.sender()).send([Event(b"21.5 C")])
        host = EventProcessorHost("vm-1", connection, store=MemoryStore())
        await host.register(SimpleEventProcessor)
        await done.wait()
        await host.unregister()


if __name__ == "__main__":
    asyncio.run(main())
