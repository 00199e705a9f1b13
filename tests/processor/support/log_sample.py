"""A sample of the processor's log: two hosts, a hand-over, a poison event and a store outage.

    .venv/bin/python -m tests.processor.support.log_sample

Host a owns four partitions. Host b joins and is handed its share. A handler fails on one event. The
store of b fails until its leases have expired, and a takes over. b recovers, and both hosts stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, SystemClock
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.engine import Engine
from pumphouse.processor.handlers import Handling
from pumphouse.processor.options import PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient

FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
OPTIONS = ProcessorOptions(
    interval_s=0.5,
    renew_s=0.5,
    lease_s=2.0,
    poison=PoisonPolicy(retries=1, first_s=0.1, most_s=0.1, then="skip"),
)


async def handle(partition: PartitionClient, batch: list[Event]) -> None:
    if any(event.body == b"bad" for event in batch):
        raise ValueError("cannot parse 'bad'")
    await partition.checkpoint()


def make_host(name: str, connection: str, store: CheckpointStore, clock: Clock) -> Engine:
    engine = Engine(
        connection,
        lambda partition: handling.serve(partition),
        store=store,
        host=name,
        options=OPTIONS,
        clock=clock,
        rng=Random(name),
    )
    handling = Handling(handle, OPTIONS, engine.reporter, host=name, rng=Random(name))
    return engine


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def run_sample(clock: Clock) -> None:
    shared = MemoryStore(clock)
    flaky = FlakyStore(shared, clock=clock)
    async with EmbeddedHub({"meters": 4}) as hub:
        connection = hub.connection_string("meters")
        first = make_host("host-a", connection, shared, clock)
        second = make_host("host-b", connection, flaky, clock)
        async with first:
            await until(lambda: len(first.owned) == 4)
            async with second:
                await until(lambda: len(first.owned) == len(second.owned) == 2)
                async with open_client(connection) as client:
                    sender = await client.sender(second.owned[0])
                    await sender.send([Event(b"bad"), Event(b"good")])
                await asyncio.sleep(0.5)
                flaky.plan = RandomFaults(Random(1), before=1.0, failed=1.0)  # an outage
                await until(lambda: len(first.owned) == 4)
                flaky.plan = NO_FAULTS
                await until(lambda: len(first.owned) == len(second.owned) == 2)
            await until(lambda: len(first.owned) == 4)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    asyncio.run(run_sample(SystemClock()))
