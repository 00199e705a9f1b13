"""Real traffic for the demonstration: readings of sensors in homes, by the official Azure client.

produce -> azure-eventhub -> hub -> azure-eventhub -> consume
   `-------------------> Meter <---------------------'
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient, PartitionContext
from azure.eventhub.amqp import AmqpAnnotatedMessage

from pumphouse.clock import Clock

SENSORS = ("motion", "door", "window", "glass", "smoke")
STREETS = 64  # partition keys; a street's events stay in order
TICK_S = 0.25
BATCHES_PER_TICK = 16
BATCH_EVENTS_MAX = 500
# The asyncio client sleeps 50 ms whenever it has used up its prefetch: the default would cap it.
PREFETCH = 3000


@dataclass(slots=True)
class Meter:
    """What has gone in and come out."""

    open: bool = True  # False asks the sender to come to an end
    sent: int = 0
    received: int = 0
    by_partition: Counter[str] = field(default_factory=Counter)

    @property
    def lag(self) -> int:
        return max(0, self.sent - self.received)


def reading(rng: Random, street: int, now_s: float) -> bytes:
    """What a sensor says."""
    said = {
        "home": f"street-{street}/home-{rng.randrange(100)}",
        "sensor": rng.choice(SENSORS),
        "active": rng.random() < 0.1,
        "at": round(now_s, 3),
    }
    return json.dumps(said).encode()


def due(elapsed_s: float, rate: float, sent: int) -> int:
    """How many events are to be sent now; not more than a burst, however late we are."""
    return min(int(elapsed_s * rate) - sent, BATCHES_PER_TICK * BATCH_EVENTS_MAX)


async def produce(connection: str, rate: float, meter: Meter, clock: Clock, rng: Random) -> None:
    """Send at a rate, until the meter is closed."""
    async with EventHubProducerClient.from_connection_string(connection) as producer:
        start = clock.monotonic()
        while meter.open:
            count = due(clock.monotonic() - start, rate, meter.sent)
            size = -(-count // BATCHES_PER_TICK)
            for taken in range(0, count, max(1, size)):
                await send(producer, min(size, count - taken), meter, clock, rng)
            await clock.sleep(TICK_S)


async def send(
    producer: EventHubProducerClient, count: int, meter: Meter, clock: Clock, rng: Random
) -> None:
    street = rng.randrange(STREETS)
    now_s = clock.now()
    events: list[EventData | AmqpAnnotatedMessage] = [
        EventData(reading(rng, street, now_s)) for _ in range(count)
    ]
    await producer.send_batch(events, partition_key=f"street-{street}")
    meter.sent += count


async def consume(connection: str, meter: Meter) -> None:
    """Read all partitions, until cancelled."""

    async def count(partition: PartitionContext, events: list[Any]) -> None:
        meter.received += len(events)
        meter.by_partition[partition.partition_id] += len(events)

    async with EventHubConsumerClient.from_connection_string(connection, "$Default") as consumer:
        await consumer.receive_batch(
            count, starting_position="-1", max_wait_time=1, prefetch=PREFETCH
        )


def quieten() -> None:
    """The official client logs each connection that ends; here they end on purpose."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)
