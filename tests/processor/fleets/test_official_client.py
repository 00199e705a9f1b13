"""Processors with an unmodified official client in the same consumer group."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from azure.eventhub.aio import EventHubConsumerClient

from pumphouse.events import Event
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.options import ProcessorOptions
from tests.processor.support.fleet import Fleet

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
QUICK = ProcessorOptions(interval_s=0.2, renew_s=0.2, lease_s=60.0)


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collects the official client's garbage here, not in a later test."""
    yield
    gc.collect()


async def test_an_official_reader_without_an_epoch_is_evicted_and_refused() -> None:
    """I1: the official processors read with epoch 0; ours start at 1."""
    async with Fleet(1, store=MemoryStore(), options=QUICK) as fleet:
        got: list[int] = []
        evicted = asyncio.Event()

        async def on_event(_: Any, event: Any) -> None:
            got.append(event.sequence_number)

        async def on_error(_: Any, error: Exception) -> None:
            evicted.set()

        consumer = EventHubConsumerClient.from_connection_string(fleet.connection, "$Default")
        async with consumer, asyncio.timeout(60):
            reading = asyncio.create_task(
                consumer.receive(
                    on_event,
                    on_error=on_error,
                    partition_id="0",
                    owner_level=0,
                    starting_position="-1",
                )
            )
            await fleet.send(5)
            await fleet.until(lambda: len(got) == 5, "the official client")
            await fleet.add("a")
            await fleet.until_handled()
            await evicted.wait()
            await fleet.send(5)
            await fleet.until_handled()
            assert got == [0, 1, 2, 3, 4]
            fleet.check_clean()
            reading.cancel()
            await asyncio.wait([reading])


async def test_events_of_the_official_producer_keep_all_their_fields() -> None:
    from azure.eventhub import EventData
    from azure.eventhub.aio import EventHubProducerClient

    received: list[Event] = []

    async def work(partition: Any, batch: list[Event]) -> None:
        received.extend(batch)

    async with Fleet(1, store=MemoryStore(), options=QUICK) as fleet:
        await fleet.add("a", work=work)
        async with EventHubProducerClient.from_connection_string(fleet.connection) as producer:
            data = EventData(b"door open")
            data.properties = {"home": 7}
            await producer.send_batch([data], partition_key="home-7")
        await fleet.until(lambda: received, "the event")
        assert (received[0].body, received[0].partition_key) == (b"door open", "home-7")
        assert {str(key): value for key, value in received[0].properties.items()} == {"home": 7}
