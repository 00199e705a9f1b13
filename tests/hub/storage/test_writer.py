"""The writer's thread: when it syncs, and what a failed sync ends."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pumphouse.hub.options import ALWAYS, INTERVAL, NEVER
from pumphouse.hub.storage.writer import (
    AT_ONCE,
    INTERVAL_S,
    PIECES_MAX,
    FileTask,
    Write,
    Writer,
    WriteStream,
    remaining_s,
    sync_deadline,
    write_at,
)

WRITE_S = 0.02  # of the test's clock, between two writes


class SmallFile:
    """A file that the writer opens. Every write to it starts with a call of `on_write`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_write: Callable[[], object] = int
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def open_for_writing(self, verify: Callable[[], None] = lambda: None) -> int:
        self.on_write()
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class Reports:
    """Puts jobs and waits for the writer's reports."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.loop = asyncio.get_running_loop()

    async def write(self, stream: WriteStream, file: SmallFile) -> OSError | None:
        result: asyncio.Future[OSError | None] = self.loop.create_future()
        self.writer.put(Write(stream, file, 0, 1, lambda: [b"x"], result.set_result))
        return await asyncio.wait_for(result, 10)

    async def task(self) -> None:
        """Run a task, before which the writer syncs."""
        result: asyncio.Future[OSError | None] = self.loop.create_future()
        self.writer.put(FileTask(lambda: None, result.set_result))
        assert await asyncio.wait_for(result, 10) is None


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SmallFile]:
    file = SmallFile(tmp_path / "log")
    yield file
    file.close()


@pytest.mark.parametrize(
    ("sync", "before", "after"),
    [
        (ALWAYS, None, AT_ONCE),
        (INTERVAL, None, 7 + INTERVAL_S),
        (INTERVAL, 7.01, 7.01),
        (INTERVAL, AT_ONCE, AT_ONCE),
        (NEVER, None, None),
    ],
)
def test_a_write_sets_the_deadline_of_the_sync_but_does_not_move_it(
    sync: str, before: float | None, after: float | None
) -> None:
    assert sync_deadline(sync, before, 7.0) == after


def test_the_writer_waits_until_the_deadline() -> None:
    assert remaining_s(None, 7.0) is None
    assert remaining_s(7.5, 7.0) == 0.5
    assert remaining_s(7.0, 7.0) == 0
    assert remaining_s(AT_ONCE, 7.0) == 0


async def test_under_a_steady_load_the_interval_sync_is_not_late(
    file: SmallFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, synced_at = [0.0], [0.0]
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced_at.append(now[0]))
    loop, stream = asyncio.get_running_loop(), WriteStream()
    last: asyncio.Future[OSError | None] = loop.create_future()
    writer = Writer(loop, INTERVAL, lambda: now[0])

    def put_next() -> None:
        """Put the next write during this one: the writer always has a job."""
        now[0] += WRITE_S
        if now[0] < 1:
            writer.put(Write(stream, file, 0, 1, lambda: [b"x"], lambda error: None))
        else:
            file.on_write = int
            writer.put(Write(stream, file, 0, 1, lambda: [b"x"], last.set_result))

    file.on_write = put_next
    writer.put(Write(stream, file, 0, 1, lambda: [b"x"], lambda error: None))
    assert await asyncio.wait_for(last, 10) is None
    writer.stop()
    gaps = [later - earlier for earlier, later in pairwise([*synced_at, now[0]])]
    assert max(gaps) < INTERVAL_S + 3 * WRITE_S


def fail(*arguments: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("sync", [INTERVAL, NEVER])
async def test_a_failed_late_sync_ends_the_stream_and_is_logged(
    sync: str,
    file: SmallFile,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer, stream = Writer(asyncio.get_running_loop(), sync, lambda: 0.0), WriteStream()
    reports = Reports(writer)
    assert await reports.write(stream, file) is None
    monkeypatch.setattr(os, "fdatasync", fail)
    await reports.task()
    monkeypatch.undo()
    assert stream.sync_failed
    assert await reports.write(stream, file) is stream.error is not None
    assert await reports.write(WriteStream(), file) is None, "other logs continue"
    writer.stop()
    [record] = caplog.records
    assert record.getMessage().startswith(f"log_sync_failed file={file.path} error=")


async def test_a_failed_write_reports_whether_the_earlier_writes_are_safe(
    file: SmallFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log then uses a new stream, which a later failure of this sync would not end."""
    writer, stream = Writer(asyncio.get_running_loop(), INTERVAL, lambda: 0.0), WriteStream()
    reports = Reports(writer)
    assert await reports.write(stream, file) is None
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "pwritev", fail)
    assert await reports.write(stream, file) is stream.error is not None
    assert stream.sync_failed
    monkeypatch.undo()
    writer.stop()


@pytest.mark.parametrize("taken", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    "pieces",
    [[b"abc"], [b"abc", b"", b"defg", b"hi"], [b"%d" % n for n in range(2 * PIECES_MAX + 5)]],
    ids=["one", "some", "many"],
)
def test_pieces_are_written_one_after_the_other_however_many_bytes_are_taken(
    file: SmallFile, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], taken: int
) -> None:
    real = os.pwritev

    def short(fd: int, given: Sequence[bytes], position: int) -> int:
        if taken >= sum(map(len, given)):
            return real(fd, given, position)
        return os.pwrite(fd, b"".join(given)[:taken], position)

    monkeypatch.setattr(os, "pwritev", short)
    write_at(file.open_for_writing(), pieces, 5)
    assert file.path.read_bytes() == bytes(5) + b"".join(pieces)
