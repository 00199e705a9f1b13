"""The log on disk: it behaves as the log in memory does, and survives restarts and damage."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from pumphouse.errors import AmqpError
from pumphouse.events import Position
from pumphouse.hub.options import ALWAYS, INTERVAL, NEVER, Retention
from pumphouse.hub.storage import disk_log
from pumphouse.hub.storage.disk_log import DiskLog
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.segment_file import create_segment, file_name
from pumphouse.hub.storage.segment_format import FILE_HEAD_SIZE, FileHead, encode_file_head
from pumphouse.hub.storage.writer import FileTask, Write, Writer, WriteStream
from tests.hub.events import batch_of, bodies_of

HUB = b"h" * 16


class LogDirectory:
    """A directory and a writer, to open logs in."""

    def __init__(self, path: Path, sync: str = ALWAYS) -> None:
        self.path = path
        self.sync = sync
        self.writer = Writer(asyncio.get_running_loop(), sync)
        self.problems: list[str] = []

    def open(self, retention: Retention | None = None) -> DiskLog:
        log = DiskLog(self.path / "0", HUB, 0, retention or Retention(), self.writer)
        self.problems = log.open()
        return log

    async def reopen(self, log: DiskLog) -> DiskLog:
        """Open the log again without closing it first, as after a crash."""
        await self.settle()
        return self.open(log.retention)

    async def settle(self) -> None:
        """Wait until the writer has done all its jobs."""
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self.writer.put(FileTask(lambda: None, done.set_result))
        assert await asyncio.wait_for(done, 10) is None

    def files(self, kind: str = "log") -> list[Path]:
        return sorted((self.path / "0").glob(f"*.{kind}"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LogDirectory]:
    store = LogDirectory(tmp_path)
    yield store
    store.writer.stop()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_log, "FIRST_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(disk_log, "SEGMENT_BYTES", 4000)


async def append(log: DiskLog, bodies: list[bytes], ms: int = 0) -> AmqpError | None:
    done: asyncio.Future[AmqpError | None] = asyncio.get_running_loop().create_future()
    log.publish(batch_of(bodies), ms, None, done.set_result)
    return await asyncio.wait_for(done, 10)


async def fill(log: DiskLog, batches: int, size: int = 3, ms: Callable[[int], int] = int) -> None:
    for number in range(batches):
        bodies = [f"{number}.{n}".encode() for n in range(size)]
        assert await append(log, bodies, ms(number)) is None


def all_bodies(log: DiskLog | MemoryLog, sequence: int = 0) -> list[bytes]:
    bodies: list[bytes] = []
    while (run := log.read(max(sequence, log.begin) + len(bodies), 7, 500)) is not None:
        bodies += bodies_of(run)
    return bodies


@pytest.mark.parametrize("sync", [ALWAYS, INTERVAL, NEVER])
async def test_acknowledged_events_survive_a_restart(tmp_path: Path, sync: str) -> None:
    store = LogDirectory(tmp_path, sync)
    log = store.open()
    await fill(log, 5)
    log = await store.reopen(log)
    assert all_bodies(log) == [f"{n}.{p}".encode() for n in range(5) for p in range(3)]
    assert store.problems == []
    await fill(log, 1)
    assert log.next_sequence == 18
    store.writer.stop()


@pytest.mark.usefixtures("small_segments")
async def test_it_behaves_as_the_log_in_memory_does(store: LogDirectory) -> None:
    rng = random.Random(7)
    log, memory = store.open(), MemoryLog()
    for number in range(60):
        bodies = [bytes(rng.randrange(200)) for _ in range(rng.randrange(1, 9))]
        memory.append(batch_of(bodies), number // 3)
        assert await append(log, bodies, number // 3) is None
    assert len(store.files()) > 5
    for opened in (log, await store.reopen(log)):
        assert (opened.begin, opened.next_sequence) == (memory.begin, memory.next_sequence)
        assert (opened.last_offset, opened.last_ms) == (memory.last_offset, memory.last_ms)
        assert all_bodies(opened) == all_bodies(memory)
        for _ in range(200):
            sequence = rng.randrange(memory.next_sequence)
            count, size = rng.randrange(1, 40), rng.randrange(1, 3000)
            ours, theirs = opened.read(sequence, count, size), memory.read(sequence, count, size)
            common = min(len(bodies_of(ours)), len(bodies_of(theirs)))
            assert common
            assert bodies_of(ours)[:common] == bodies_of(theirs)[:common]
            position = rng.choice(
                [
                    Position("offset", str(rng.randrange(memory.last_offset))),
                    Position("offset", str(rng.randrange(memory.last_offset)), inclusive=True),
                    Position("time", str(rng.randrange(-2, 25))),
                    Position("time", str(rng.randrange(-2, 25)), inclusive=True),
                    Position("sequence", str(sequence), inclusive=rng.random() < 0.5),
                ]
            )
            assert opened.locate(position) == memory.locate(position), position


async def test_an_event_is_readable_only_after_it_is_safe(store: LogDirectory) -> None:
    log = store.open()
    outcomes: list[AmqpError | None] = []
    log.publish(batch_of([b"a"]), 0, None, outcomes.append)
    assert (log.next_sequence, log.read(0, 1, 100), outcomes) == (0, None, [])
    await store.settle()
    assert (log.next_sequence, bodies_of(log.read(0, 1, 100)), outcomes) == (1, [b"a"], [None])


async def test_a_torn_tail_is_cut_off_and_reported(store: LogDirectory) -> None:
    log = store.open()
    await fill(log, 3)
    await store.settle()
    [path] = store.files()
    end = log.segments[-1].index.end
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"GRP1 and then the power went")
    log = await store.reopen(log)
    assert log.next_sequence == 9
    assert "a partial write" in store.problems[0]
    await fill(log, 1)
    log = await store.reopen(log)
    assert (log.next_sequence, store.problems) == (12, [])


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("which", [0, -1])
async def test_damage_is_an_error_only_where_it_is(store: LogDirectory, which: int) -> None:
    log = store.open()
    await fill(log, 33)
    await store.settle()
    segment = log.segments[which]
    damaged = segment.group_at(segment.index.positions[0])
    assert damaged is not None
    damaged = segment.group_at(damaged.end)  # the second group of its segment
    assert damaged is not None
    with segment.path.open("r+b") as file:
        file.seek(damaged.frames_at + 3)
        file.write(b"\xff\xff")
    log = await store.reopen(log)
    with pytest.raises(AmqpError, match=rf"damaged at sequence number {damaged.sequence}"):
        log.read(damaged.sequence, 10, 1000)
    assert bodies_of(log.read(damaged.sequence - 1, 1, 1000))
    assert bodies_of(log.read(damaged.next_sequence, 1, 1000)) == [
        f"{damaged.next_sequence // 3}.0".encode()
    ]


@pytest.mark.usefixtures("small_segments")
async def test_a_missing_segment_is_reported_and_the_others_are_read(store: LogDirectory) -> None:
    log = store.open()
    await fill(log, 30)
    await store.settle()
    store.files()[1].unlink()
    log = await store.reopen(log)
    assert "are missing" in store.problems[0]
    assert log.next_sequence == 90
    first_missing = log.segments[0].index.next_sequence
    with pytest.raises(
        AmqpError, match=f"Read on from sequence number {log.segments[1].head.sequence}"
    ):
        log.read(first_missing, 1, 100)


async def test_a_damaged_file_head_does_not_hide_the_events(store: LogDirectory) -> None:
    log = store.open()
    await fill(log, 3)
    await store.settle()
    with store.files()[0].open("r+b") as file:
        file.write(b"nonsense")
    log = await store.reopen(log)
    assert len(all_bodies(log)) == 9
    assert "it is not a segment file" in store.problems[0]


@pytest.mark.usefixtures("small_segments")
async def test_a_file_of_another_partition_is_set_aside(store: LogDirectory) -> None:
    """Its groups are valid, but belong to another partition; new groups must not go into it."""
    log = store.open()
    await fill(log, 30)
    await store.settle()
    foreign = encode_file_head(FileHead(HUB, 7, 0, 0, 0)) + store.files()[-1].read_bytes()[64:]
    name = store.files()[-1].name
    store.files()[-1].write_bytes(foreign)
    log = await store.reopen(log)
    assert (
        f"belongs to another partition or position; set aside as {name}.aside" in store.problems[0]
    )
    kept = log.next_sequence
    assert len(all_bodies(log)) == kept < 90
    await fill(log, 30)
    log = await store.reopen(log)
    assert len(all_bodies(log)) == kept + 90


async def test_a_directory_with_the_name_of_a_segment_is_ignored(store: LogDirectory) -> None:
    log = store.open()
    await fill(log, 1)
    await store.settle()
    (store.path / "0" / file_name(500, 9000)).mkdir()
    log = await store.reopen(log)
    assert "cannot be read (Is a directory); ignored" in store.problems[0]
    assert len(all_bodies(log)) == 3


@pytest.mark.usefixtures("small_segments")
async def test_the_index_of_another_segment_is_not_used(store: LogDirectory) -> None:
    """An index of the same size is not used either."""
    log = store.open()
    for _ in range(100):
        assert await append(log, [bytes(600)] * 3) is None
    await store.settle()
    sizes = [path.with_suffix(".log").stat().st_size for path in store.files("idx")]
    segment, other = next(
        (store.files("idx")[a], store.files("idx")[b])
        for a, b in itertools.combinations(range(len(sizes)), 2)
        if sizes[a] == sizes[b]
    )
    data = segment.read_bytes()
    segment.write_bytes(other.read_bytes())
    other.write_bytes(data)
    log = await store.reopen(log)
    assert len(all_bodies(log)) == 300


async def test_a_truncated_segment_does_not_affect_its_successor(store: LogDirectory) -> None:
    """Both segments have the same name. Deleting the first must not remove the second."""
    log = store.open()
    await fill(log, 2)
    await store.settle()
    os.truncate(store.files()[0], 10)
    log = await store.reopen(log)
    await fill(log, 2)
    log.expire(0)
    await store.settle()
    log = await store.reopen(log)
    assert (len(all_bodies(log)), store.problems) == (6, [])


async def test_a_file_deleted_and_written_again_exists(store: LogDirectory) -> None:
    """The order is kept, also if the writer gets both jobs at once."""
    busy = threading.Event()
    store.writer.put(FileTask(lambda: [busy.wait(10)].clear(), lambda error: None))
    segment = create_segment(store.path, FileHead(HUB, 0, 0, 0, 0), 1000)
    store.writer.put(FileTask(segment.delete, lambda error: None))
    store.writer.put(Write(WriteStream(), segment, 64, 3, lambda: [b"new"], lambda error: None))
    busy.set()
    await store.settle()
    assert segment.path.read_bytes()[64:67] == b"new"


async def test_a_full_disk_refuses_writes_until_there_is_space(
    store: LogDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pumphouse.hub")
    log = store.open()
    await fill(log, 2)

    def full(fd: int, pieces: Sequence[bytes], position: int) -> int:
        assert position > FILE_HEAD_SIZE
        os.pwrite(fd, pieces[0][:10], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    outcomes: list[AmqpError | None] = []
    for _ in range(3):  # writes after the failed one fail too: the file must have no gap
        log.publish(batch_of([b"lost"]), 0, None, outcomes.append)
    await store.settle()
    monkeypatch.undo()
    assert [error.condition for error in outcomes if error] == ["amqp:resource-limit-exceeded"] * 3
    assert log.next_sequence == 6
    [logged] = caplog.messages
    assert logged.startswith("log_write_failed directory=")
    assert 'todo="free some space on its disk"' in logged
    await fill(log, 1)
    assert caplog.messages[1].startswith("log_write_recovered directory=")
    assert len(caplog.messages) == 2
    log = await store.reopen(log)
    assert (len(all_bodies(log)), store.problems) == (9, [])


async def test_a_failed_sync_fails_the_log_permanently(
    store: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.open()
    await fill(log, 1)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    error = await append(log, [b"a"])
    assert error is not None
    assert "Input/output error" in error.description
    monkeypatch.undo()
    assert await append(log, [b"b"]) is error
    assert len(all_bodies(log)) == 3


@pytest.mark.parametrize("sync", [INTERVAL, NEVER])
async def test_a_sync_that_fails_after_the_acknowledgement_fails_the_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    store = LogDirectory(tmp_path, sync)
    log = store.open()
    await fill(log, 1)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    await store.settle()
    monkeypatch.undo()
    error = await append(log, [b"a"])
    assert error is not None
    assert "Input/output error" in error.description
    assert log.failed is error
    assert len(all_bodies(log)) == 3
    store.writer.stop()


async def test_a_log_is_closed_after_its_last_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The deletion of a hub closes its logs while the writer still has to sync them."""
    store = LogDirectory(tmp_path, INTERVAL)
    log = store.open()
    await fill(log, 1)
    log.close()
    await store.settle()
    store.writer.stop()
    assert caplog.records == []


@pytest.mark.usefixtures("small_segments")
async def test_retention_by_time_moves_the_beginning_and_deletes_segments(
    store: LogDirectory,
) -> None:
    log = store.open(Retention(seconds=10))
    await fill(log, 30, ms=lambda number: number * 1000)
    before = len(store.files())
    log.expire(29_000)
    await store.settle()
    assert log.begin == 19 * 3
    assert len(store.files()) < before
    assert all_bodies(log)[0] == b"19.0"
    log = await store.reopen(log)
    log.expire(29_000)
    assert (log.begin, log.next_sequence) == (57, 90)


@pytest.mark.usefixtures("small_segments")
async def test_retention_by_size_keeps_the_newest(store: LogDirectory) -> None:
    log = store.open(Retention(bytes_max=10_000))
    await fill(log, 100)
    log.expire(0)
    await store.settle()
    assert log.size <= 10_000
    assert 0 < log.begin < log.next_sequence == 300
    assert sum(path.stat().st_size for path in store.files()) <= 10_000 + 4_000
    assert all_bodies(log)[-1] == b"99.2"


async def test_numbers_continue_after_everything_has_expired(store: LogDirectory) -> None:
    log = store.open(Retention(seconds=10))
    await fill(log, 3)
    log.expire(1_000_000)
    assert log.empty
    log = await store.reopen(log)
    log.expire(1_000_000)
    assert (log.empty, log.next_sequence) == (True, 9)
    await append(log, [b"new"], 1_000_000)
    assert all_bodies(log, 9) == [b"new"]


async def test_infinite_retention_keeps_all_bodies(store: LogDirectory) -> None:
    log = store.open(Retention(seconds=float("inf")))
    await fill(log, 2)
    log.expire(10**15)
    assert len(all_bodies(log)) == 6


async def test_an_unreadable_file_is_an_error_of_its_partition(store: LogDirectory) -> None:
    log = store.open()
    await fill(log, 1)
    store.files()[0].unlink()
    with pytest.raises(AmqpError, match="cannot be read at sequence number 0"):
        log.read(0, 1, 100)
