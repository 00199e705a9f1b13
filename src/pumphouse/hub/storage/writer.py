"""The one thread that writes to disk, and commits in groups.

While one round of writes is being synced, the next round collects: under load a sync is shared by
everything that arrived meanwhile, and without load nothing waits. A write is reported, on the event
loop, once it is as safe as the sync mode promises:

    always     after fdatasync: an acknowledged event survives a crash of the machine
    interval   after the write; fdatasync follows within a tenth of a second
    never      after the write; it survives a crash of the process, not of the machine

Writes of one log share a lane. When one fails (disk full, say) the lane is broken: what was queued
behind it fails too, so that no hole can open, and the file is cut back to before the failure.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

ALWAYS, INTERVAL, NEVER = "always", "interval", "never"
SYNC_MODES = (ALWAYS, INTERVAL, NEVER)
INTERVAL_S = 0.1
STOP_S = 30.0


class WritableFile(Protocol):
    """A file that the writer opens (and creates) when it first writes to it."""

    def open_for_writing(self) -> int: ...


@dataclass(slots=True)
class Lane:
    """The order of one log's writes, and what broke it."""

    broken: OSError | None = None
    sync_failed: bool = False  # worse than a failed write: nobody knows what is on the disk


@dataclass(slots=True)
class Write:
    """Bytes for a place in a file; `done` is called on the event loop, with the error if any."""

    lane: Lane
    file: WritableFile
    position: int
    data: bytes
    done: Callable[[OSError | None], None]
    error: OSError | None = field(default=None, init=False)


@dataclass(slots=True)
class Errand:
    """Something else to do on the writer's thread, after the writes that were put before it."""

    action: Callable[[], None]
    done: Callable[[OSError | None], None]
    error: OSError | None = field(default=None, init=False)


class Writer:
    """Takes writes from the event loop, reports back to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sync: str = ALWAYS) -> None:
        self.loop = loop
        self.sync = sync
        self._queue: list[Write | Errand] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._unsynced: dict[int, WritableFile] = {}
        self._thread = threading.Thread(target=self.run, name="pumphouse writer", daemon=True)
        self._thread.start()

    def put(self, job: Write | Errand) -> None:
        with self._changed:
            self._queue.append(job)
            self._changed.notify()

    def stop(self) -> None:
        """Write and sync what is queued, then end the thread. The last reports come on the loop."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(STOP_S)

    # -- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        while (jobs := self.take()) is not None:
            for writes, errands in turns(jobs):
                self.write_all(writes)
                # An errand may close or delete a file: before it, nothing may be left to sync.
                if self.sync == ALWAYS or errands or not jobs:
                    self.sync_all(writes)
                for errand in errands:
                    self.run_errand(errand)
            self.report(jobs)
        self.sync_all([])

    def take(self) -> list[Write | Errand] | None:
        """All that is queued; an empty list if it is time to sync, None if it is time to end."""
        with self._changed:
            idle_s = INTERVAL_S if self.sync == INTERVAL and self._unsynced else None
            while not self._queue and not self._stopping:
                if not self._changed.wait(idle_s):
                    return []
            jobs, self._queue = self._queue, []
            return jobs or None

    def run_errand(self, errand: Errand) -> None:
        try:
            errand.action()
        except OSError as failed:
            errand.error = failed

    def write_all(self, writes: list[Write]) -> None:
        for run in neighbours(writes):
            first = run[0]
            if first.lane.broken is None:
                try:
                    fd = first.file.open_for_writing()
                    write_at(fd, [write.data for write in run], first.position)
                    self._unsynced[fd] = first.file
                except OSError as failed:
                    self.break_lane(first, failed)
            for write in run:
                write.error = first.lane.broken

    def break_lane(self, first: Write, failed: OSError) -> None:
        first.lane.broken = failed
        with suppress(OSError):
            os.ftruncate(first.file.open_for_writing(), first.position)

    def sync_all(self, writes: list[Write]) -> None:
        """Sync every file that was written to; a file that cannot be synced breaks its lane."""
        failed_files: dict[int, OSError] = {}
        for fd, file in self._unsynced.items():
            try:
                os.fdatasync(fd)
            except OSError as failed:
                failed_files[id(file)] = failed
        self._unsynced.clear()
        for write in writes:
            if (error := failed_files.get(id(write.file))) is not None and write.error is None:
                write.lane.broken = write.error = error
                write.lane.sync_failed = True

    def report(self, jobs: list[Write | Errand]) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody is left to be told
            self.loop.call_soon_threadsafe(report_all, jobs)


def report_all(jobs: list[Write | Errand]) -> None:
    for job in jobs:
        job.done(job.error)


def turns(jobs: list[Write | Errand]) -> list[tuple[list[Write], list[Errand]]]:
    """Writes and the errands behind them, in the order they were put.

    A file may be deleted and then written anew under the same name: never the other way round.
    """
    rounds: list[tuple[list[Write], list[Errand]]] = [([], [])]
    for job in jobs:
        if isinstance(job, Errand):
            rounds[-1][1].append(job)
        elif rounds[-1][1]:
            rounds.append(([job], []))
        else:
            rounds[-1][0].append(job)
    return rounds


def neighbours(writes: list[Write]) -> list[list[Write]]:
    """Writes that continue one another, together: one system call serves them all."""
    runs: list[list[Write]] = []
    ends: dict[int, tuple[int, list[Write]]] = {}
    for write in writes:
        end, run = ends.get(id(write.file), (-1, []))
        if end != write.position or run[0].lane is not write.lane:
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
