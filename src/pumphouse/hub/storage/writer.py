"""The thread that writes to disk, with group commit.

While one round of writes is synced, the next round collects: under load many writes share a sync,
and without load no write waits. A write is reported on the event loop as soon as it is as safe as
the sync mode promises:

    always     after fdatasync: an acknowledged event survives a crash of the machine
    interval   after the write; fdatasync follows within a tenth of a second, also under load
    never      after the write; it survives a crash of the process, not of the machine

The writes of one log form a stream. After a failure (for example a full disk) the stream accepts
no more: writes queued after the failed one fail too, so that the file has no gap, and the file is
truncated to before the failure. A failed sync also ends the stream, even if all its writes have
been reported before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from pumphouse.clock import boot_time
from pumphouse.hub.options import ALWAYS, INTERVAL
from pumphouse.hub.storage.backlog import Backlog
from pumphouse.logs import line

log = logging.getLogger("pumphouse.hub")

INTERVAL_S = 0.1
AT_ONCE = float("-inf")
STOP_S = 30.0
WRITE_OVERHEAD = 2048  # memory of a write besides its bytes: what its callbacks refer to
# Adjacent writes share a system call, without being joined: that would copy them. This is the
# largest number of pieces that the kernel accepts (IOV_MAX).
PIECES_MAX = 1024


Piece = bytes | bytearray | memoryview


class WritableFile(Protocol):
    """A file that is opened (and created) by the first write to it.

    `verify` is called before the file is used; it raises an OSError if that must not happen.
    """

    @property
    def path(self) -> Path: ...

    def open_for_writing(self, verify: Callable[[], None]) -> int: ...


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
    size: int
    pieces: Callable[[], Sequence[Piece]]  # called on the writer's thread
    done: Callable[[OSError | None], None]
    error: OSError | None = field(default=None, init=False)

    @property
    def cost(self) -> int:
        """Bytes of memory while it waits."""
        return self.size + WRITE_OVERHEAD


@dataclass(slots=True)
class FileTask:
    """Another action for the writer's thread, run after the writes that were put before it."""

    action: Callable[[], None]
    done: Callable[[OSError | None], None]
    error: OSError | None = field(default=None, init=False)
    cost = 0  # bytes; there are few of them


class UnsyncedFile(NamedTuple):
    """A file that was written to after its last sync, and the stream of those writes."""

    file: WritableFile
    stream: WriteStream


class Writer:
    """Takes writes from the event loop and reports back to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sync: str = ALWAYS,
        monotonic: Callable[[], float] = boot_time,
        backlog: Backlog | None = None,
        verify: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = loop
        self.sync = sync
        self.backlog = backlog or Backlog()
        self.monotonic = monotonic
        self.verify = verify  # called when a file is opened
        self._queue: list[Write | FileTask] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._unsynced: dict[int, UnsyncedFile] = {}
        self._sync_deadline: float | None = None
        self.on_sync: Callable[[float], None] | None = None  # called with the seconds of each sync
        self._thread = threading.Thread(target=self.run, name="pumphouse writer", daemon=True)
        self._thread.start()

    def put(self, job: Write | FileTask) -> None:
        self.backlog.add(job.cost)
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
                # Sync before tasks, which may close or delete a file.
                if tasks or self.sync_wait_s() == 0:
                    self.sync_all(writes)
                for task in tasks:
                    self.run_task(task)
            self.report(jobs)
        self.sync_all([])

    def take(self) -> list[Write | FileTask] | None:
        """All queued jobs; an empty list if a sync is due, None to end the thread."""
        with self._changed:
            while not self._queue and not self._stopping:
                wait_s = self.sync_wait_s()
                if wait_s == 0:
                    return []
                self._changed.wait(wait_s)
            jobs, self._queue = self._queue, []
            return jobs or None

    def sync_wait_s(self) -> float | None:
        return remaining_s(self._sync_deadline, self.monotonic())

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
                    fd = first.file.open_for_writing(self.verify)
                    pieces = [piece for write in adjacent for piece in write.pieces()]
                    write_at(fd, pieces, first.position)
                    self._unsynced[fd] = UnsyncedFile(first.file, first.stream)
                    self._sync_deadline = sync_deadline(
                        self.sync, self._sync_deadline, self.monotonic()
                    )
                except OSError as failure:
                    self.end_stream(first, failure)
            for write in adjacent:
                write.error = first.stream.error

    def end_stream(self, first: Write, failure: OSError) -> None:
        first.stream.error = failure
        # The log continues with a new stream. Whether the earlier writes are safe must therefore be
        # known before this failure is reported.
        self._sync_deadline = AT_ONCE
        with suppress(OSError):
            os.ftruncate(first.file.open_for_writing(self.verify), first.position)

    def sync_all(self, writes: list[Write]) -> None:
        """Sync every file that was written to; a failure ends the stream of the file."""
        for fd, unsynced in self._unsynced.items():
            began_s = self.monotonic()
            try:
                os.fdatasync(fd)
            except OSError as failure:
                self.end_unsynced(unsynced, failure)
            if self.on_sync is not None:
                self.on_sync(self.monotonic() - began_s)
        self._unsynced.clear()
        self._sync_deadline = None
        for write in writes:
            if write.stream.sync_failed and write.error is None:
                write.error = write.stream.error

    def end_unsynced(self, unsynced: UnsyncedFile, failure: OSError) -> None:
        unsynced.stream.error = unsynced.stream.error or failure
        unsynced.stream.sync_failed = True
        todo = "check the disk, then restart the hub: this partition accepts no events until then"
        log.error("%s", line("log_sync_failed", file=unsynced.file.path, error=failure, todo=todo))

    def report(self, jobs: list[Write | FileTask]) -> None:
        with suppress(RuntimeError):  # the loop is closed: no report is needed
            self.loop.call_soon_threadsafe(report_all, jobs, self.backlog)


def sync_deadline(sync: str, deadline: float | None, now: float) -> float | None:
    """The time of the next sync, after a write at `now`; None if this mode needs none.

    Later writes do not move a deadline: it belongs to the oldest write that is not synced.
    """
    if sync == ALWAYS:
        return AT_ONCE
    if sync == INTERVAL and deadline is None:
        return now + INTERVAL_S
    return deadline


def remaining_s(deadline: float | None, now: float) -> float | None:
    """Seconds until a deadline, 0 if it has passed; None without one."""
    return None if deadline is None else max(0.0, deadline - now)


def report_all(jobs: list[Write | FileTask], backlog: Backlog) -> None:
    for job in jobs:
        job.done(job.error)
    backlog.remove(sum(job.cost for job in jobs))


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
        ends[id(write.file)] = (write.position + write.size, run)
    return runs


def write_at(fd: int, pieces: Sequence[Piece], position: int) -> None:
    """Write pieces one after the other, however many of their bytes each system call takes."""
    while pieces:
        written = os.pwritev(fd, pieces[:PIECES_MAX], position)
        position += written
        pieces = without_first(pieces, written)


def without_first(pieces: Sequence[Piece], size: int) -> Sequence[Piece]:
    """The pieces without their first `size` bytes."""
    for number, piece in enumerate(pieces):
        if size < len(piece):
            return [memoryview(piece)[size:], *pieces[number + 1 :]]
        size -= len(piece)
    return []
