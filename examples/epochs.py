"""Two readers with epochs: the higher one gets the partition, the lower one is evicted."""

import asyncio

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

from pumphouse import EmbeddedHub


async def main() -> None:
    async with EmbeddedHub(hubs={"sensors": 1}) as hub:
        connection = hub.connection_string("sensors")
        async with EventHubProducerClient.from_connection_string(connection) as producer:
            await producer.send_event(EventData("hello"), partition_id="0")

        async def read(epoch: int, received: asyncio.Event, evicted: asyncio.Event) -> None:
            consumer = EventHubConsumerClient.from_connection_string(
                connection, "$Default", retry_total=0
            )

            async def on_event(partition, event):  # type: ignore[no-untyped-def]
                print(f"epoch {epoch} reads {event.body_as_str()}")
                received.set()

            async def on_error(partition, error):  # type: ignore[no-untyped-def]
                print(f"epoch {epoch} is evicted: {error}")
                evicted.set()

            async with consumer:
                await consumer.receive(
                    on_event, on_error=on_error, partition_id="0", owner_level=epoch,
                    starting_position="-1",
                )  # fmt: skip

        first, second, evicted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        old = asyncio.create_task(read(1, first, evicted))
        await asyncio.wait_for(first.wait(), 30)
        new = asyncio.create_task(read(2, second, evicted))
        await asyncio.wait_for(asyncio.gather(second.wait(), evicted.wait()), 30)
        for task in (old, new):
            task.cancel()
        await asyncio.gather(old, new, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
