"""Readings into a real hub: all of them, in their place and order, at their time."""

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
from pumphouse.homes.simulator import sender as sending
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sender import Pacer, Progress, last_fitting, send, split_by_partition
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


async def sent_at_once(client: NativeClient, what: SimulatorSource) -> sending.SendTotals:
    return await send(client, what, None, SystemClock(), asyncio.Event())


# -- all of it, in place and order


async def test_every_reading_arrives_in_its_key_s_partition_and_in_order(
    client: NativeClient,
) -> None:
    simulator = HomeSimulator(120, 3)
    tally = await sent_at_once(client, source(simulator, 3, slot_s=20))
    assert tally.sent == 120 * 5 * 3
    found = await read_all(client)
    bodies = []
    for partition, events in found.items():
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
        tally = await send(official, source(simulator, 1), None, SystemClock(), asyncio.Event())
    assert tally.sent == 60
    found = await read_all(client)
    assert {
        (event.body, event.partition_key, partition)
        for partition, events in found.items()
        for event in events
    } == {
        (event.body, event.partition_key, str(partition_for(event.partition_key or "", PARTITIONS)))
        for event in simulator.minute(START // MINUTE_MS).events()
    }


async def test_mishaps_are_counted(client: NativeClient) -> None:
    simulator = HomeSimulator(
        200, 3, reading_faults=ReadingFaults(late=0.1, duplicates=0.1, malformed=0.1)
    )
    tally = await sent_at_once(client, source(simulator, 3))
    bodies = [e.body for events in (await read_all(client)).values() for e in events]
    assert tally.sent == len(bodies)
    assert tally.duplicates == len(bodies) - len(set(bodies))
    assert 200 < tally.malformed < 400
    assert 200 < tally.late < 400


async def test_producers_that_share_a_town_send_it_once(client: NativeClient) -> None:
    simulator = HomeSimulator(50, 3)
    for part in range(3):
        await sent_at_once(
            client, SimulatorSource(simulator, START, START + MINUTE_MS, 60, (part, 3))
        )
    bodies = [e.body for events in (await read_all(client)).values() for e in events]
    assert sorted(bodies) == sorted(simulator.minute(START // MINUTE_MS).bodies())


async def test_a_hub_that_throttles_gets_everything_in_the_end() -> None:
    """One throughput unit takes a thousand events a second; three times that is due at once."""
    patient = RetryOptions(attempts=100, first_s=0.05, most_s=0.2)
    with EmbeddedHub({"sensors": 2}, tier="standard", throughput_units=1) as hub:
        async with NativeClient(hub.connection_string("sensors"), retry=patient) as client:
            tally = await sent_at_once(client, source(HomeSimulator(600, 1), 1, slot_s=10))
            assert tally.sent == 3000
            found = await read_all(client)
    assert len({event.body for events in found.values() for event in events}) == 3000


async def test_a_hub_that_is_not_there_is_said_so(event_hub: EmbeddedHub) -> None:
    async with NativeClient(event_hub.connection_string(), "nowhere") as client:
        with pytest.raises(HubNotFound):
            await sent_at_once(client, source(HomeSimulator(1), 1))


async def test_a_hub_that_goes_away_ends_it_with_one_error(client: NativeClient) -> None:
    simulator = HomeSimulator(50, 1)

    async def vanish() -> None:
        await (await client.management()).delete_hub(client.hub)

    vanished: list[asyncio.Task[None]] = []

    def report(progress: Progress) -> None:
        if progress.taken and not vanished:
            vanished.append(asyncio.create_task(vanish()))

    with pytest.raises(HubNotFound):
        await send(client, source(simulator, 1000), None, SystemClock(), asyncio.Event(), report)
    await asyncio.gather(*vanished)


# -- at its time


class Hand(MovableClock):
    """A clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s

    def now(self) -> float:
        return START / 1000


async def test_what_is_overdue_goes_at_once_and_says_how_late_it_is() -> None:
    clock, stop = Hand(), asyncio.Event()
    pace = Pacer(START, 60.0, clock)
    clock.s += 3.0
    await pace.wait(START + 60_000, stop)  # was due after one second
    assert pace.behind_s == pytest.approx(2.0)
    await pace.wait(START + 180_000, stop)  # is due now
    assert pace.behind_s == 0


async def test_whoever_waits_hears_a_stop() -> None:
    pace, stop = Pacer(START, 1.0, Hand()), asyncio.Event()
    waiting = asyncio.create_task(pace.wait(START + 3_600_000, stop))
    await asyncio.sleep(0)
    assert not waiting.done()
    stop.set()
    await asyncio.wait_for(waiting, 20)


async def test_in_real_time_a_slow_start_is_made_up_for() -> None:
    clock = Hand()
    pace = Pacer(START - 4000, 1.0, clock)  # it took four seconds to get here
    assert pace.elapsed_s == pytest.approx(4.0)
    assert Pacer(START - 3_600_000, 1.0, clock).elapsed_s == 0  # these are old ones


async def test_readings_go_out_second_by_second(client: NativeClient) -> None:
    """Sixty times as fast as life: a minute of readings in a second, and not all at its end."""
    progress: list[int] = []
    what = source(HomeSimulator(600, 1), 2, slot_s=5)
    tally = await send(
        client, what, 60.0, SystemClock(), asyncio.Event(), lambda p: progress.append(p.taken)
    )
    assert tally.sent == sum(progress) == 6000
    assert tally.seconds > 1.9
    assert len([taken for taken in progress if taken]) > 10


async def test_a_stop_ends_it_and_what_was_taken_is_counted(client: NativeClient) -> None:
    stop = asyncio.Event()

    def report(progress: Progress) -> None:
        if progress.taken:
            stop.set()

    endless = SimulatorSource(HomeSimulator(300, 1), START, None, 1)
    tally = await send(client, endless, 30.0, SystemClock(), stop, report)
    found = await read_all(client)
    assert 0 < tally.sent == sum(map(len, found.values()))


async def test_a_stop_is_heard_even_if_the_hub_takes_nothing(
    client: NativeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "STOP_S", 0.1)
    stuck = asyncio.Event()

    async def never(payload: object) -> int:
        stop.set()
        await stuck.wait()
        return 0

    stop = asyncio.Event()
    monkeypatch.setattr(
        "pumphouse.client.native.sender.NativeSender.deliver", lambda self, it: never(it)
    )
    tally = await sent_when_stopped(client, stop)
    assert tally.sent == 0


async def sent_when_stopped(client: NativeClient, stop: asyncio.Event) -> sending.SendTotals:
    endless = SimulatorSource(HomeSimulator(3000, 1), START, None, 60)
    return await send(client, endless, None, SystemClock(), stop)


# -- slices and batches


@pytest.mark.parametrize(
    ("homes", "speed", "slot_s"),
    [
        (100_000, 1.0, 1),
        (100_000, 4.0, 5),
        (100_000, 60.0, 60),
        (100_000, 3600.0, 60),
        (100_000, None, 2),
        (10, None, 60),
        (1_000_000, None, 1),
    ],
)
def test_how_much_is_sent_at_once(homes: int, speed: float | None, slot_s: int) -> None:
    assert choose_slot_s(homes, speed) == slot_s
    assert all(60 % slot == 0 for slot in SLOTS)


@pytest.mark.parametrize("late_s", [0, 1, 20, 59.5])
def test_a_source_that_begins_within_a_minute_sends_each_home_once_a_minute(late_s: float) -> None:
    simulator, start = HomeSimulator(200, 1), START + int(late_s * 1000)
    what = SimulatorSource(simulator, start, start + 2 * MINUTE_MS, 1)
    slices = list(what.slices(partitions_of(simulator.numbers, 4)))
    assert all(start < part.due_ms <= start + 2 * MINUTE_MS for part in slices)
    assert all(one.due_ms < other.due_ms for one, other in pairwise(slices))
    homes = np.concatenate([part.homes for part in slices])
    if late_s == int(late_s):
        assert np.bincount(homes).tolist() == [10] * 200


def parts(simulator: HomeSimulator, partitions: int) -> TimeSlice:
    what = SimulatorSource(simulator, START, None, 60)
    return next(islice(what.slices(partitions_of(simulator.numbers, partitions)), 1))


@given(st.integers(1, 8), st.integers(1, 60), st.integers(100, 5000))
def test_batches_hold_all_records_in_order_and_none_is_too_large(
    partitions: int, homes: int, size_max: int
) -> None:
    simulator = HomeSimulator(homes, 1)
    part, partition_of = parts(simulator, partitions), partitions_of(simulator.numbers, partitions)
    batches = list(split_by_partition(part, partition_of, partitions, size_max))
    assert b"".join(payload.data for _, payload in batches) == part.packed.data
    assert sum(payload.event_count for _, payload in batches) == len(part)
    for place, payload in batches:
        assert len(payload.data) <= size_max or payload.event_count == 1
        assert 0 <= place < partitions


def test_a_record_that_is_too_large_still_goes_alone() -> None:
    packed = HomeSimulator(1, 1).minute(START // MINUTE_MS).packed
    assert last_fitting(packed, 0, 5, 1) == 1
    assert last_fitting(packed, 2, 5, 10**6) == 5


def test_a_town_without_homes_is_refused() -> None:
    with pytest.raises(OptionError):
        HomeSimulator(0)
