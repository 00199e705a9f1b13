"""Faults: which moments are struck, and what the official client sees of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import ConnectError, EventDataSendError, EventHubError

from pumphouse import EmbeddedHub, Faults, MovableClock, Retention
from pumphouse.errors import OptionError
from pumphouse.hub.faults.rules import Fault

# The official client leaves what a broken connection held to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collect_leftovers() -> Iterator[None]:
    """Let it be collected here, not in somebody else's test."""
    yield
    gc.collect()


# -- which moments are struck ---------------------------------------------------------------------


def test_nothing_is_struck_unless_it_was_planned() -> None:
    faults = Faults()
    assert not faults
    assert faults.select("send", "sensors", "0") is None


def test_a_fault_strikes_as_often_as_it_was_told() -> None:
    faults = Faults()
    faults.throttle(times=2)
    struck = [faults.select("send") is not None for _ in range(4)]
    assert struck == [True, True, False, False]
    assert repr(faults) == "<Faults 0 planned | struck throttle=2>"


@pytest.mark.parametrize(
    ("hub", "partition", "group", "struck"),
    [
        ("sensors", "3", "archive", True),
        ("SENSORS", "3", "Archive", True),
        ("orders", "3", "archive", False),
        ("sensors", "4", "archive", False),
        ("sensors", "3", "$Default", False),
    ],
)
def test_names_narrow_a_fault_down(hub: str, partition: str, group: str, struck: bool) -> None:
    faults = Faults()
    faults.refuse(hub="sensors", partition="3", group="archive")
    assert (faults.select("attach", hub, partition, group) is not None) is struck


def test_the_same_seed_strikes_the_same_moments() -> None:
    def strikes(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.drop(rate=0.3)
        return [faults.select("send") is not None for _ in range(200)]

    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)
    assert 30 < sum(strikes(1)) < 90


def test_a_fault_can_be_taken_away() -> None:
    faults = Faults()
    told: list[str] = []
    faults.on_removed = lambda: told.append("on_removed")
    number = faults.freeze("sensors")
    assert [fault.action for fault in faults.planned] == ["freeze"]
    assert faults.cancel(number)
    assert not faults.cancel(number)
    assert told == ["on_removed", "on_removed"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault("refuse", "send"), "refuse is possible on attach"),
        (Fault("drop", "send", rate=1.5), "between 0 and 1"),
        (Fault("drop", "send", times=0), "times must be at least 1"),
        (Fault("delay", "send", seconds=0), "seconds of a delay must be"),
        (Fault("burn", "send"), "must be one of"),  # type: ignore[arg-type]
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fault: Fault, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Faults().plan(fault)


# -- what a client sees ---------------------------------------------------------------------------


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub(hubs={"sensors": 1}) as hub:
        yield hub


def producer(hub: EmbeddedHub, **options: Any) -> EventHubProducerClient:
    return EventHubProducerClient.from_connection_string(
        hub.connection_string("sensors"), retry_backoff_factor=0.05, **options
    )


class Reading:
    """A consumer that notes what it reads and what goes wrong."""

    def __init__(self, hub: EmbeddedHub, group: str = "$Default") -> None:
        self.bodies: list[str] = []
        self.errors: list[Exception] = []
        self.changed = asyncio.Condition()
        self.client = EventHubConsumerClient.from_connection_string(
            hub.connection_string("sensors"), group, retry_backoff_factor=0.05
        )

    async def __aenter__(self) -> Reading:
        self.task = asyncio.create_task(
            self.client.receive(
                self.on_event, on_error=self.on_error, partition_id="0", starting_position="-1"
            )
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()  # by itself it would sleep through its load-balancing interval first
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


async def test_a_throttled_send_says_busy_and_the_next_one_passes(hub: EmbeddedHub) -> None:
    hub.faults.throttle()
    async with producer(hub, retry_total=0) as client:
        with pytest.raises(EventDataSendError, match="throttled"):
            await client.send_batch([EventData("a")])
        hub.faults.clear()
        await client.send_batch([EventData("b")])


async def test_a_client_tries_again_when_the_hub_was_busy_once(hub: EmbeddedHub) -> None:
    hub.faults.throttle(times=1)
    async with producer(hub) as client, Reading(hub) as reading:
        await client.send_batch([EventData("a")])
        await reading.until("a")
    assert hub.faults.struck["throttle"] == 1


async def test_a_client_gets_over_a_dropped_connection(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="send", times=1)
    async with producer(hub) as client, Reading(hub) as reading:
        await client.send_batch([EventData("a")])
        await reading.until("a")


async def test_a_refused_attach_names_the_condition(hub: EmbeddedHub) -> None:
    hub.faults.refuse("amqp:not-allowed", "Not today.")
    async with producer(hub, retry_total=0) as client:
        with pytest.raises(EventHubError, match=r"Not today\."):
            await client.send_batch([EventData("a")])


async def test_a_delay_delays_and_loses_nothing(hub: EmbeddedHub) -> None:
    loop = asyncio.get_running_loop()
    async with producer(hub) as client, Reading(hub) as reading:
        await client.send_batch([EventData("a")])
        hub.faults.delay(0.3, on="send", times=1)
        began = loop.time()
        await client.send_batch([EventData("b")])
        assert loop.time() - began >= 0.3
        hub.faults.delay(0.3, on="deliver", times=1)
        await client.send_batch([EventData("c")])
        await reading.until("a", "b", "c")
    assert hub.faults.struck["delay"] == 2


async def test_a_frozen_partition_goes_on_where_it_stopped(hub: EmbeddedHub) -> None:
    frozen = hub.faults.freeze("sensors", "0", group="$Default")
    hub.create_group("sensors", "other")
    async with producer(hub) as client, Reading(hub) as reading, Reading(hub, "other") as other:
        await client.send_batch([EventData("a"), EventData("b")])
        await other.until("a", "b")
        # Another group is not frozen: once it has read both, the frozen one has had its chance.
        assert reading.bodies == []
        hub.faults.cancel(frozen)
        await reading.until("a", "b")


async def test_a_detached_reader_comes_back_without_a_gap(hub: EmbeddedHub) -> None:
    hub.faults.detach(times=1)
    async with producer(hub) as client, Reading(hub) as reading:
        await client.send_batch([EventData(f"{n}") for n in range(5)])
        await reading.until("0", "1", "2", "3", "4")


async def test_a_stolen_reader_is_told_by_whom(hub: EmbeddedHub) -> None:
    async with producer(hub) as client, Reading(hub) as reading:
        await client.send_batch([EventData("a")])
        await reading.until("a")
        assert hub.steal_readers("sensors") == 1
        async with asyncio.timeout(30), reading.changed:
            await reading.changed.wait_for(lambda: reading.errors)
    assert "New receiver 'thief' with higher epoch" in str(reading.errors[0])


async def test_a_minute_passes_when_we_say_so() -> None:
    clock = MovableClock()
    retention = Retention(seconds=60)  # the client's token lasts an hour
    old = EmbeddedHub(hubs={"sensors": 1}, clock=clock, retention=retention)
    async with old as hub, producer(hub) as client:
        await client.send_batch([EventData("old")], partition_id="0")
        clock.advance(61)
        hub.tick()
        found = await client.get_partition_properties("0")
        assert found["is_empty"]
        assert found["last_enqueued_sequence_number"] == 0


async def test_connecting_can_fail_too(hub: EmbeddedHub) -> None:
    hub.faults.drop(on="connect")
    async with producer(hub, retry_total=0) as client:
        with pytest.raises(ConnectError):
            await client.send_batch([EventData("a")])
    hub.faults.clear()
    async with producer(hub) as client:
        await client.send_batch([EventData("a")])
