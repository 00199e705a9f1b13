"""Readings sent to an embedded hub: complete, in the right partition and order, in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.client.base import RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.client.native.client import NativeClient
from pumphouse.clock import MovableClock, SystemClock
from pumphouse.errors import HubNotFound, OptionError
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import MINUTE_MS, decode_reading
from pumphouse.homes.simulator import sender
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sender import Pacer, Progress, batch_end, send, split_by_partition
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.simulator.time_slices import SLOTS, SimulatorSource, TimeSlice, choose_slot_s
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for
from tests.homes.simulator.read_back import read_all

START = 20_605 * 1440 * MINUTE_MS
PARTITIONS = 4


@pytest.fixture
async def client(event_hub: EmbeddedHub) -> AsyncIterator[NativeClient]:
    event_hub.create_hub("sensors", PARTITIONS)
    async with NativeClient(event_hub.connection_string("sensors")) as client:
        yield client


def source(simulator: HomeSimulator, minutes: int, slot_s: int = 60) -> SimulatorSource:
    return SimulatorSource(simulator, START, START + minutes * MINUTE_MS, slot_s)


async def send_all(client: NativeClient, source: SimulatorSource) -> sender.SendTotals:
    return await send(client, source, None, SystemClock(), asyncio.Event())


# -- completeness and order


async def test_every_reading_arrives_in_order_in_the_partition_of_its_key(
    client: NativeClient,
) -> None:
    simulator = HomeSimulator(120, 3)
    totals = await send_all(client, source(simulator, 3, slot_s=20))
    assert totals.sent == 120 * 5 * 3
    received = await read_all(client)
    bodies = []
    for partition, events in received.items():
        last: dict[tuple[str, str], int] = {}
        for event in events:
            reading = decode_reading(event.body)
            assert event.partition_key == reading.home
            assert partition_for(reading.home, PARTITIONS) == int(partition)
            sensor = reading.home, reading.sensor
            assert last.get(sensor, 0) < reading.seq
            last[sensor] = reading.seq
            bodies.append(event.body)
    minutes = range(START // MINUTE_MS, START // MINUTE_MS + 3)
    assert sorted(bodies) == sorted(body for m in minutes for body in simulator.minute(m).bodies())


async def test_the_official_client_sends_the_same(
    client: NativeClient, event_hub: EmbeddedHub
) -> None:
    simulator = HomeSimulator(12, 3)
    connection = event_hub.connection_string("sensors")
    async with open_client(connection, driver="azure") as official:
        totals = await send(official, source(simulator, 1), None, SystemClock(), asyncio.Event())
    assert totals.sent == 60
    received = await read_all(client)
    assert {
        (event.body, event.partition_key, partition)
        for partition, events in received.items()
        for event in events
    } == {
        (event.body, event.partition_key, str(partition_for(event.partition_key or "", PARTITIONS)))
        for event in simulator.minute(START // MINUTE_MS).events()
    }


async def test_reading_faults_are_counted(client: NativeClient) -> None:
    simulator = HomeSimulator(
        200, 3, reading_faults=ReadingFaults(late=0.1, duplicates=0.1, malformed=0.1)
    )
    totals = await send_all(client, source(simulator, 3))
    bodies = [e.body for events in (await read_all(client)).values() for e in events]
    assert totals.sent == len(bodies)
    assert totals.duplicates == len(bodies) - len(set(bodies))
    assert 200 < totals.malformed < 400
    assert 200 < totals.late < 400


async def test_senders_that_share_the_homes_send_each_reading_once(client: NativeClient) -> None:
    simulator = HomeSimulator(50, 3)
    for part in range(3):
        await send_all(client, SimulatorSource(simulator, START, START + MINUTE_MS, 60, (part, 3)))
    bodies = [e.body for events in (await read_all(client)).values() for e in events]
    assert sorted(bodies) == sorted(simulator.minute(START // MINUTE_MS).bodies())


async def test_a_throttling_hub_receives_everything() -> None:
    """One throughput unit accepts 1,000 events a second; 3,000 are due at once."""
    patient = RetryOptions(attempts=100, first_s=0.05, most_s=0.2)
    with EmbeddedHub({"sensors": 2}, tier="standard", throughput_units=1) as hub:
        async with NativeClient(hub.connection_string("sensors"), retry=patient) as client:
            totals = await send_all(client, source(HomeSimulator(600, 1), 1, slot_s=10))
            assert totals.sent == 3000
            received = await read_all(client)
    assert len({event.body for events in received.values() for event in events}) == 3000


async def test_a_missing_hub_is_an_error(event_hub: EmbeddedHub) -> None:
    async with NativeClient(event_hub.connection_string(), "nowhere") as client:
        with pytest.raises(HubNotFound):
            await send_all(client, source(HomeSimulator(1), 1))


async def test_a_deleted_hub_ends_the_run_with_one_error(client: NativeClient) -> None:
    simulator = HomeSimulator(50, 1)

    async def delete_hub() -> None:
        await (await client.management()).delete_hub(client.hub)

    deletions: list[asyncio.Task[None]] = []

    def report(progress: Progress) -> None:
        if progress.acknowledged and not deletions:
            deletions.append(asyncio.create_task(delete_hub()))

    with pytest.raises(HubNotFound):
        await send(client, source(simulator, 1000), None, SystemClock(), asyncio.Event(), report)
    await asyncio.gather(*deletions)


# -- timing


class ManualClock(MovableClock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s

    def now(self) -> float:
        return START / 1000


async def test_an_overdue_slice_is_sent_at_once_and_its_delay_reported() -> None:
    clock, stop = ManualClock(), asyncio.Event()
    pacer = Pacer(START, 60.0, clock)
    clock.s += 3.0
    await pacer.wait(START + 60_000, stop)  # was due after one second
    assert pacer.behind_s == pytest.approx(2.0)
    await pacer.wait(START + 180_000, stop)  # is due now
    assert pacer.behind_s == 0


async def test_a_stop_ends_the_wait_for_a_slice() -> None:
    pacer, stop = Pacer(START, 1.0, ManualClock()), asyncio.Event()
    waiting = asyncio.create_task(pacer.wait(START + 3_600_000, stop))
    await asyncio.sleep(0)
    assert not waiting.done()
    stop.set()
    await asyncio.wait_for(waiting, 20)


async def test_in_real_time_a_slow_start_is_caught_up() -> None:
    clock = ManualClock()
    pacer = Pacer(START - 4000, 1.0, clock)  # the start took four seconds
    assert pacer.elapsed_s == pytest.approx(4.0)
    assert Pacer(START - 3_600_000, 1.0, clock).elapsed_s == 0  # of another time


async def test_readings_are_sent_second_by_second(client: NativeClient) -> None:
    """At 60 times real time a minute of readings takes a second, and not all at its end."""
    progress: list[int] = []
    simulated = source(HomeSimulator(600, 1), 2, slot_s=5)
    totals = await send(
        client,
        simulated,
        60.0,
        SystemClock(),
        asyncio.Event(),
        lambda p: progress.append(p.acknowledged),
    )
    assert totals.sent == sum(progress) == 6000
    assert totals.seconds > 1.9
    assert len([count for count in progress if count]) > 10


async def test_a_stop_ends_the_run_and_counts_acknowledged_events(client: NativeClient) -> None:
    stop = asyncio.Event()

    def report(progress: Progress) -> None:
        if progress.acknowledged:
            stop.set()

    endless = SimulatorSource(HomeSimulator(300, 1), START, None, 1)
    totals = await send(client, endless, 30.0, SystemClock(), stop, report)
    received = await read_all(client)
    assert 0 < totals.sent == sum(map(len, received.values()))


async def test_a_stop_ends_the_run_although_the_hub_accepts_nothing(
    client: NativeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "STOP_S", 0.1)
    stuck = asyncio.Event()

    async def never(payload: object) -> int:
        stop.set()
        await stuck.wait()
        return 0

    stop = asyncio.Event()
    monkeypatch.setattr(
        "pumphouse.client.native.sender.NativeSender.deliver", lambda self, payload: never(payload)
    )
    totals = await sent_when_stopped(client, stop)
    assert totals.sent == 0


async def sent_when_stopped(client: NativeClient, stop: asyncio.Event) -> sender.SendTotals:
    endless = SimulatorSource(HomeSimulator(3000, 1), START, None, 60)
    return await send(client, endless, None, SystemClock(), stop)


# -- slices and batches


@pytest.mark.parametrize(
    ("homes", "speed", "slot_s"),
    [
        (100_000, 1.0, 1),
        (100_000, 4.0, 4),
        (100_000, 7.0, 10),
        (100_000, 60.0, 60),
        (100_000, 3600.0, 60),
        (100_000, None, 2),
        (10, None, 60),
        (1_000_000, None, 1),
    ],
)
def test_the_slot_depends_on_homes_and_speed(homes: int, speed: float | None, slot_s: int) -> None:
    assert choose_slot_s(homes, speed) == slot_s


def test_every_divisor_of_a_minute_is_a_slot() -> None:
    assert list(SLOTS) == [slot for slot in range(1, 61) if 60 % slot == 0]


@pytest.mark.parametrize("late_s", [0, 1, 20, 59.5])
def test_a_source_that_starts_within_a_minute_sends_each_home_once_a_minute(late_s: float) -> None:
    simulator, start = HomeSimulator(200, 1), START + int(late_s * 1000)
    simulated = SimulatorSource(simulator, start, start + 2 * MINUTE_MS, 1)
    slices = list(simulated.slices(partitions_of(simulator.numbers, 4)))
    assert all(start < part.due_ms <= start + 2 * MINUTE_MS for part in slices)
    assert all(before.due_ms < after.due_ms for before, after in pairwise(slices))
    homes = np.concatenate([part.homes for part in slices])
    if late_s == int(late_s):
        assert np.bincount(homes).tolist() == [10] * 200


def first_slice(simulator: HomeSimulator, partitions: int) -> TimeSlice:
    simulated = SimulatorSource(simulator, START, None, 60)
    return next(islice(simulated.slices(partitions_of(simulator.numbers, partitions)), 1))


@given(st.integers(1, 8), st.integers(1, 60), st.integers(100, 5000))
def test_batches_hold_all_records_in_order_and_none_is_too_large(
    partitions: int, homes: int, size_max: int
) -> None:
    simulator = HomeSimulator(homes, 1)
    part, partition_of = (
        first_slice(simulator, partitions),
        partitions_of(simulator.numbers, partitions),
    )
    batches = list(split_by_partition(part, partition_of, partitions, size_max))
    assert b"".join(payload.data for _, payload in batches) == part.packed.data
    assert sum(payload.event_count for _, payload in batches) == len(part)
    for index, payload in batches:
        assert len(payload.data) <= size_max or payload.event_count == 1
        assert 0 <= index < partitions


def test_a_record_above_the_limit_is_sent_alone() -> None:
    packed = HomeSimulator(1, 1).minute(START // MINUTE_MS).packed
    assert batch_end(packed, 0, 5, 1) == 1
    assert batch_end(packed, 2, 5, 10**6) == 5


def test_a_simulator_without_homes_is_refused() -> None:
    with pytest.raises(OptionError):
        HomeSimulator(0)
