"""Injected faults, as the official client sees them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import ConnectError, EventDataSendError, EventHubError

from pumphouse import EmbeddedHub, MovableClock, Retention

# The official client leaves the resources of a broken connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collect_leftovers() -> Iterator[None]:
    """Collect them here, not in a later test."""
    yield
    gc.collect()


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub(hubs={"sensors": 1}) as hub:
        yield hub


def producer(hub: EmbeddedHub, **options: Any) -> EventHubProducerClient:
    return EventHubProducerClient.from_connection_string(
        hub.connection_string("sensors"), retry_backoff_factor=0.05, **options
    )


class RecordingConsumer:
    """A consumer that records events and errors."""

    def __init__(self, hub: EmbeddedHub, group: str = "$Default") -> None:
        self.bodies: list[str] = []
        self.errors: list[Exception] = []
        self.changed = asyncio.Condition()
        self.client = EventHubConsumerClient.from_connection_string(
            hub.connection_string("sensors"), group, retry_backoff_factor=0.05
        )

    async def __aenter__(self) -> RecordingConsumer:
        self.task = asyncio.create_task(
            self.client.receive(
                self.on_event, on_error=self.on_error, partition_id="0", starting_position="-1"
            )
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()  # otherwise it sleeps for its load-balancing interval
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()

    async def on_event(self, partition, event) -> None:  # type: ignore[no-untyped-def]
        async with self.changed:
            self.bodies.append(event.body_as_str())
            self.changed.notify_all()

    async def on_error(self, partition, error) -> None:  # type: ignore[no-untyped-def]
        async with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    async def until(self, *bodies: str) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(lambda: self.bodies == list(bodies))


async def test_a_throttled_send_is_refused_and_the_next_one_succeeds(hub: EmbeddedHub) -> None:
    hub.faults.throttle()
    async with producer(hub, retry_total=0) as client:
        with pytest.raises(EventDataSendError, match="throttled"):
            await client.send_batch([EventData("a")])
        hub.faults.clear()
        await client.send_batch([EventData("b")])


async def test_a_client_retries_a_throttled_send(hub: EmbeddedHub) -> None:
    hub.faults.throttle(times=1)
    async with producer(hub) as client, RecordingConsumer(hub) as reading:
        await client.send_batch([EventData("a")])
        await reading.until("a")
    assert hub.faults.struck["throttle"] == 1


async def test_a_client_recovers_from_a_dropped_connection(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="send", times=1)
    async with producer(hub) as client, RecordingConsumer(hub) as reading:
        await client.send_batch([EventData("a")])
        await reading.until("a")


async def test_a_refused_attach_names_the_condition(hub: EmbeddedHub) -> None:
    hub.faults.refuse("amqp:not-allowed", "Not allowed now.")
    async with producer(hub, retry_total=0) as client:
        with pytest.raises(EventHubError, match=r"Not allowed now\."):
            await client.send_batch([EventData("a")])


async def test_a_delay_delays_and_loses_nothing(hub: EmbeddedHub) -> None:
    loop = asyncio.get_running_loop()
    async with producer(hub) as client, RecordingConsumer(hub) as reading:
        await client.send_batch([EventData("a")])
        hub.faults.delay(0.3, on="send", times=1)
        started_at = loop.time()
        await client.send_batch([EventData("b")])
        assert loop.time() - started_at >= 0.3
        hub.faults.delay(0.3, on="deliver", times=1)
        await client.send_batch([EventData("c")])
        await reading.until("a", "b", "c")
    assert hub.faults.struck["delay"] == 2


async def test_a_frozen_partition_resumes_where_it_stopped(hub: EmbeddedHub) -> None:
    frozen = hub.faults.freeze("sensors", "0", group="$Default")
    hub.create_group("sensors", "other")
    async with (
        producer(hub) as client,
        RecordingConsumer(hub) as reading,
        RecordingConsumer(hub, "other") as other,
    ):
        await client.send_batch([EventData("a"), EventData("b")])
        await other.until("a", "b")
        # Another group is not frozen: after it has read both, the frozen one could have, too.
        assert reading.bodies == []
        hub.faults.cancel(frozen)
        await reading.until("a", "b")


async def test_a_detached_reader_resumes_without_a_gap(hub: EmbeddedHub) -> None:
    hub.faults.detach(times=1)
    async with producer(hub) as client, RecordingConsumer(hub) as reading:
        await client.send_batch([EventData(f"{n}") for n in range(5)])
        await reading.until("0", "1", "2", "3", "4")


async def test_an_evicted_reader_gets_the_name_of_the_new_one(hub: EmbeddedHub) -> None:
    async with producer(hub) as client, RecordingConsumer(hub) as reading:
        await client.send_batch([EventData("a")])
        await reading.until("a")
        assert hub.steal_readers("sensors") == 1
        async with asyncio.timeout(30), reading.changed:
            await reading.changed.wait_for(lambda: reading.errors)
    assert "New receiver 'thief' with higher epoch" in str(reading.errors[0])


async def test_retention_follows_a_movable_clock() -> None:
    clock = MovableClock()
    retention = Retention(seconds=60)  # the client's token lasts an hour
    old = EmbeddedHub(hubs={"sensors": 1}, clock=clock, retention=retention)
    async with old as hub, producer(hub) as client:
        await client.send_batch([EventData("old")], partition_id="0")
        clock.advance(61)
        hub.tick()
        properties = await client.get_partition_properties("0")
        assert properties["is_empty"]
        assert properties["last_enqueued_sequence_number"] == 0


async def test_a_connect_can_be_dropped(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="connect")
    async with producer(hub, retry_total=0) as client:
        with pytest.raises(ConnectError):
            await client.send_batch([EventData("a")])
    hub.faults.clear()
    async with producer(hub) as client:
        await client.send_batch([EventData("a")])
