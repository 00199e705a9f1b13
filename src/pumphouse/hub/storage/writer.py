"""The thread that writes to disk, with group commit.

While one round of writes is synced, the next round collects: under load many writes share a sync,
and without load no write waits. A write is reported on the event loop as soon as it is as safe as
the sync mode promises:

    always     after fdatasync: an acknowledged event survives a crash of the machine
    interval   after the write; fdatasync follows within a tenth of a second
    never      after the write; it survives a crash of the process, not of the machine

The writes of one log form a stream. After a failure (for example a full disk) the stream accepts
no more: writes queued after the failed one fail too, so that the file has no gap, and the file is
truncated to before the failure.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from pumphouse.hub.options import ALWAYS, INTERVAL

INTERVAL_S = 0.1
STOP_S = 30.0


class WritableFile(Protocol):
    """A file that is opened (and created) by the first write to it."""

    def open_for_writing(self) -> int: ...


@dataclass(slots=True)
class WriteStream:
    """The writes of one log, and the error that ended them."""

    error: OSError | None = None
    sync_failed: bool = False  # worse than a failed write: the content of the disk is unknown


@dataclass(slots=True)
class Write:
    """Bytes for a position in a file; `done` is called on the event loop, with the error if any."""

    stream: WriteStream
    file: WritableFile
    position: int
    data: bytes
    done: Callable[[OSError | None], None]
    error: OSError | None = field(default=None, init=False)


@dataclass(slots=True)
class FileTask:
    """Another action for the writer's thread, run after the writes that were put before it."""

    action: Callable[[], None]
    done: Callable[[OSError | None], None]
    error: OSError | None = field(default=None, init=False)


class Writer:
    """Takes writes from the event loop and reports back to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sync: str = ALWAYS) -> None:
        self.loop = loop
        self.sync = sync
        self._queue: list[Write | FileTask] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._unsynced: dict[int, WritableFile] = {}
        self._thread = threading.Thread(target=self.run, name="pumphouse writer", daemon=True)
        self._thread.start()

    def put(self, job: Write | FileTask) -> None:
        with self._changed:
            self._queue.append(job)
            self._changed.notify()

    def stop(self) -> None:
        """Write and sync what is queued, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(STOP_S)

    # -- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        while (jobs := self.take()) is not None:
            for writes, tasks in rounds(jobs):
                self.write_all(writes)
                # A task may close or delete a file: sync it first. No jobs: a sync is due (`take`).
                if self.sync == ALWAYS or tasks or not jobs:
                    self.sync_all(writes)
                for task in tasks:
                    self.run_task(task)
            self.report(jobs)
        self.sync_all([])

    def take(self) -> list[Write | FileTask] | None:
        """All queued jobs; an empty list if a sync is due, None to end the thread."""
        with self._changed:
            idle_s = INTERVAL_S if self.sync == INTERVAL and self._unsynced else None
            while not self._queue and not self._stopping:
                if not self._changed.wait(idle_s):
                    return []
            jobs, self._queue = self._queue, []
            return jobs or None

    def run_task(self, task: FileTask) -> None:
        try:
            task.action()
        except OSError as failure:
            task.error = failure

    def write_all(self, writes: list[Write]) -> None:
        for adjacent in join_adjacent(writes):
            first = adjacent[0]
            if first.stream.error is None:
                try:
                    fd = first.file.open_for_writing()
                    write_at(fd, [write.data for write in adjacent], first.position)
                    self._unsynced[fd] = first.file
                except OSError as failure:
                    self.end_stream(first, failure)
            for write in adjacent:
                write.error = first.stream.error

    def end_stream(self, first: Write, failure: OSError) -> None:
        first.stream.error = failure
        with suppress(OSError):
            os.ftruncate(first.file.open_for_writing(), first.position)

    def sync_all(self, writes: list[Write]) -> None:
        """Sync every file that was written to; a failure ends the streams of its writes."""
        failed_files: dict[int, OSError] = {}
        for fd, file in self._unsynced.items():
            try:
                os.fdatasync(fd)
            except OSError as failure:
                failed_files[id(file)] = failure
        self._unsynced.clear()
        for write in writes:
            if (error := failed_files.get(id(write.file))) is not None and write.error is None:
                write.stream.error = write.error = error
                write.stream.sync_failed = True

    def report(self, jobs: list[Write | FileTask]) -> None:
        with suppress(RuntimeError):  # the loop is closed: no report is needed
            self.loop.call_soon_threadsafe(report_all, jobs)


def report_all(jobs: list[Write | FileTask]) -> None:
    for job in jobs:
        job.done(job.error)


def rounds(jobs: list[Write | FileTask]) -> list[tuple[list[Write], list[FileTask]]]:
    """Split jobs into rounds, in order: some writes, then the tasks that were put after them.

    The order matters: a file may be deleted and then written again under the same name.
    """
    result: list[tuple[list[Write], list[FileTask]]] = [([], [])]
    for job in jobs:
        if isinstance(job, FileTask):
            result[-1][1].append(job)
        elif result[-1][1]:
            result.append(([job], []))
        else:
            result[-1][0].append(job)
    return result


def join_adjacent(writes: list[Write]) -> list[list[Write]]:
    """Runs of adjacent writes: one system call can write each run."""
    runs: list[list[Write]] = []
    ends: dict[int, tuple[int, list[Write]]] = {}
    for write in writes:
        end, run = ends.get(id(write.file), (-1, []))
        if end != write.position or run[0].stream is not write.stream:
            run = []
            runs.append(run)
        run.append(write)
        ends[id(write.file)] = (write.position + len(write.data), run)
    return runs


def write_at(fd: int, pieces: list[bytes], position: int) -> None:
    data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    while data:
        written = os.pwrite(fd, data, position)
        position += written
        data = data[written:]
