"""Enqueued times if the clock leaps: later events are not stamped ahead, readers miss nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.messages import decode_message
from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS, Position
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.delivery import messages
from pumphouse.hub.options import Retention
from pumphouse.hub.storage import disk_log
from pumphouse.hub.storage.base import Log
from pumphouse.hub.storage.disk_log import DiskLog
from pumphouse.hub.storage.enqueued_times import (
    CLOCK_BEHIND_MS_MAX,
    Stamp,
    TimeRange,
    expired_segments,
    stamp,
)
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.writer import FileTask, Writer
from tests.hub.events import batch_of
from tests.hub.peer import Clock, Peer, event

T0 = 1_700_000_000_000
SECOND, MINUTE, HOUR, DAY, YEAR = 1000, 60_000, 3_600_000, 86_400_000, 31_536_000_000
EVERYTHING = 1 << 30

# -- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "last", "expected"),
    [
        (T0, NEVER_MS, Stamp(T0)),
        (T0, T0, Stamp(T0)),
        (T0 + YEAR, T0, Stamp(T0 + YEAR)),
        (T0 - 1, T0, Stamp(T0)),
        (T0 - CLOCK_BEHIND_MS_MAX, T0, Stamp(T0)),
        (T0 - CLOCK_BEHIND_MS_MAX - 1, T0, Stamp(T0 - CLOCK_BEHIND_MS_MAX - 1, True)),
        (T0 - YEAR, T0, Stamp(T0 - YEAR, True)),
        (0, T0, Stamp(0, True)),
    ],
)
def test_the_time_of_new_events(now: int, last: int, expected: Stamp) -> None:
    assert stamp(now, last) == expected


OLD, AHEAD = T0 - 200, T0 + YEAR


@pytest.mark.parametrize(
    ("ranges", "expired"),
    [
        ([], 0),
        ([(OLD, OLD), (OLD, OLD)], 2),
        ([(OLD, OLD), (OLD, T0), (T0, T0)], 1),
        ([(OLD, OLD), None], 1),
        ([None, (OLD, OLD)], 0),
        ([(OLD, AHEAD)], 0),  # nothing after it shows how old it is
        ([(OLD, AHEAD), (OLD, OLD)], 2),
        ([(OLD, AHEAD), (OLD, T0)], 1),
        ([(OLD, AHEAD), (T0, T0)], 0),
        ([(OLD, AHEAD), (OLD, AHEAD), (OLD, T0), (OLD, OLD)], 2),
        ([(OLD, AHEAD), None, (OLD, OLD)], 0),
        ([(OLD, T0), (OLD, OLD), (T0, T0)], 0),  # the clock was behind for a while
        ([(OLD, T0 + MINUTE), (OLD, OLD)], 0),
        ([(AHEAD, AHEAD), (OLD, OLD)], 2),
        ([(AHEAD, AHEAD), (AHEAD, AHEAD), (OLD, T0)], 2),
        ([(T0, AHEAD), (OLD, OLD)], 0),
    ],
)
def test_which_segments_have_expired(ranges: list[tuple[int, int] | None], expired: int) -> None:
    times = [None if pair is None else TimeRange(*pair) for pair in ranges]
    assert expired_segments(times, T0 - 100, T0) == expired


# -- both logs ------------------------------------------------------------------------------------


class DiskLogs:
    """Logs in a directory, with small segments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = Writer(asyncio.get_running_loop())

    def open(self, retention: Retention = Retention()) -> DiskLog:  # noqa: B008
        log = DiskLog(self.path, b"h" * 16, 0, retention, self.writer)
        assert log.open() == []
        return log

    async def settle(self) -> None:
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self.writer.put(FileTask(lambda: None, done.set_result))
        assert await asyncio.wait_for(done, 10) is None


@pytest.fixture
async def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DiskLogs]:
    monkeypatch.setattr(disk_log, "FIRST_SEGMENT_BYTES", 600)
    monkeypatch.setattr(disk_log, "SEGMENT_BYTES", 1200)
    disk = DiskLogs(tmp_path)
    yield disk
    disk.writer.stop()


async def publish(log: Log, now_ms: int, events: int = 1) -> AmqpError | None:
    done: asyncio.Future[AmqpError | None] = asyncio.get_running_loop().create_future()
    log.publish(batch_of([b"x"] * events), now_ms, None, done.set_result)
    return await asyncio.wait_for(done, 10)


def times(log: Log) -> list[int]:
    """The enqueued times, as readers get them."""
    result: list[int] = []
    while (run := log.read(log.begin + len(result), 1000, EVERYTHING)) is not None:
        decoded = (decode_message(message) for message in messages(run))
        result += [int(message.annotations["x-opt-enqueued-time"]) for message in decoded]
    return result


def located(log: Log, ms: int, inclusive: bool) -> int:
    return log.locate(Position("time", str(ms), inclusive=inclusive))


def first_after(log: Log, all_times: list[int], ms: int, inclusive: bool) -> int:
    """The first event in order of sequence numbers that is late enough, by looking at all."""
    late = (n for n, at in enumerate(all_times) if at > ms or (inclusive and at == ms))
    return log.begin + next(late, len(all_times))


@pytest.fixture(params=["memory", "disk"])
def log(request: pytest.FixtureRequest, disk: DiskLogs) -> MemoryLog | DiskLog:
    return MemoryLog(segment_bytes=300) if request.param == "memory" else disk.open()


async def test_a_leap_that_returns_stamps_no_later_events_ahead(log: Log) -> None:
    clock = [T0, T0 + 1, T0 + YEAR, T0 + YEAR + 1, T0 + 2, T0 + 3]
    for now in clock:
        await publish(log, now)
    assert times(log) == clock
    assert log.last_ms == T0 + 3


async def test_a_small_step_back_keeps_the_times_sorted(log: Log) -> None:
    for now in (T0, T0 - MINUTE, T0 - 1, T0 + 1):
        await publish(log, now)
    assert times(log) == [T0, T0, T0, T0 + 1]


async def test_sequence_numbers_and_offsets_continue(log: Log) -> None:
    for now in (T0, T0 + DAY, T0 + 1):
        await publish(log, now, events=3)
    assert log.next_sequence == 9
    for sequence in range(9):
        assert log.locate(Position("sequence", str(sequence), inclusive=True)) == sequence


LEAPS = [0, 1, -1, SECOND, -SECOND, -MINUTE, 2 * MINUTE, -2 * MINUTE, HOUR, -HOUR, YEAR, -YEAR]


def check_every_time(log: Log, stamped: list[int]) -> None:
    assert times(log) == stamped
    for ms in sorted({at + step for at in stamped for step in (-1, 0, 1)} | {T0 - YEAR}):
        for inclusive in (False, True):
            expected = first_after(log, stamped, ms, inclusive)
            assert located(log, ms, inclusive) == expected, (ms, inclusive)


def stamps_of(clock: list[int]) -> list[int]:
    result, last = list[int](), NEVER_MS
    for now in clock:
        last = stamp(now, last).ms
        result.append(last)
    return result


def walk(steps: list[int]) -> list[int]:
    clock = [T0]
    for step in steps:
        clock.append(clock[-1] + step)
    return clock


@given(st.lists(st.sampled_from(LEAPS), max_size=30), st.sampled_from([100, 300, 1 << 20]))
def test_a_reader_from_a_time_starts_at_the_first_event_that_is_late_enough(
    steps: list[int], segment_bytes: int
) -> None:
    clock, log = walk(steps), MemoryLog(segment_bytes=segment_bytes)
    for now in clock:
        log.append(batch_of([b"x"]), now)
    check_every_time(log, stamps_of(clock))


@pytest.mark.parametrize("seed", range(6))
async def test_a_reader_from_a_time_also_finds_it_on_disk(seed: int, disk: DiskLogs) -> None:
    rng = Random(seed)
    clock, log = walk(rng.choices(LEAPS, k=60)), disk.open()
    for now in clock:
        assert await publish(log, now) is None
    await disk.settle()
    check_every_time(log, stamps_of(clock))
    again = disk.open()  # after a restart
    check_every_time(again, stamps_of(clock))
    assert again.last_ms == log.last_ms == stamps_of(clock)[-1]
    assert await publish(again, again.last_ms + 1) is None
    check_every_time(again, [*stamps_of(clock), log.last_ms + 1])


async def test_a_failed_write_after_a_return_of_the_clock_loses_nothing(
    disk: DiskLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.open()
    for now in (T0, T0 + YEAR):
        assert await publish(log, now) is None

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert await publish(log, T0 + 1) is not None
    monkeypatch.undo()
    monkeypatch.setattr(disk_log, "FIRST_SEGMENT_BYTES", 600)
    assert await publish(log, T0 + 2) is None
    await disk.settle()
    check_every_time(disk.open(), [T0, T0 + YEAR, T0 + 2])


# -- retention ------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "disk"])
def make_log(request: pytest.FixtureRequest, disk: DiskLogs) -> Callable[[Retention], Log]:
    return MemoryLog if request.param == "memory" else disk.open


async def test_events_with_a_time_ahead_expire_with_their_successors(
    make_log: Callable[[Retention], Log],
) -> None:
    log = make_log(Retention(seconds=3600))
    for now in (T0, T0 + YEAR, T0 + MINUTE, T0 + YEAR, T0 + 2 * MINUTE):
        await publish(log, now)
    log.expire(T0 + 30 * MINUTE)
    assert log.begin == 0
    log.expire(T0 + HOUR + 90 * SECOND)
    assert log.begin == 3, "the event of the second leap is not older than the next one"
    log.expire(T0 + HOUR + 3 * MINUTE)
    assert log.empty


async def test_a_clock_that_is_behind_for_a_while_expires_no_fresh_event(
    make_log: Callable[[Retention], Log],
) -> None:
    log = make_log(Retention(seconds=3600))
    for now in (T0, T0 + 1, T0 - YEAR, T0 - YEAR + 1, T0 + 2):
        await publish(log, now)
        log.expire(now)
    assert (log.begin, log.next_sequence) == (0, 5)
    log.expire(T0 + HOUR + 3)
    assert log.empty


# -- the hub --------------------------------------------------------------------------------------


async def test_a_return_of_the_clock_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    start = clock.time
    async with EmbeddedHub({"eh": 4}, clock=clock) as hub:
        peer = await Peer.connect(hub)
        links = [await peer.sender(f"eh/Partitions/{n}", f"out {n}") for n in range(4)]
        for now in (start, start + 3600, start + 1, start + 2):
            clock.time = now
            for link in links:
                await peer.send(link, event(b"x"))
        partitions = hub.namespace.hub("eh").partitions
        assert {partition.log.last_ms for partition in partitions} == {int(start + 2) * 1000}
        await peer.drop()
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith("clock_set_back behind_s=3599 todo=")


async def test_a_return_of_the_clock_during_a_stop_is_logged_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    for now in (clock.time + 7200, clock.time):
        clock.time = now
        async with EmbeddedHub({"eh": 1}, clock=clock, data=tmp_path) as hub:
            peer = await Peer.connect(hub)
            await peer.send(await peer.sender("eh/Partitions/0"), event(b"x"))
            await peer.drop()
            log = hub.namespace.hub("eh").partitions[0].log
            assert log.last_ms == int(now) * 1000
    assert log.next_sequence == 2
    assert caplog.text.count("clock_set_back behind_s=7200 ") == 1
