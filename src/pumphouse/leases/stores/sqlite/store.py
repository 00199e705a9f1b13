"""A store in one SQLite file, for many processes on one machine. Nothing but Python is needed.

Every call is one transaction in a thread of the store's own, so the event loop never waits for a
disk. Ages count by the machine's uptime (moments.py), read inside the transaction: setting the wall
clock changes nothing, and after a restart of the machine every lease has run out.

    processor.cycle -> SqliteStore -> DatabaseThread (thread) -> sqlitefile -> the file
                       ^^^^^^^^^^^ this module

A file on a network drive will not do: SQLite's shared memory does not reach another machine.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pumphouse.errors import CheckpointRefused, OptionError, StoreError
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Member,
    Ownership,
    Refused,
    Unknown,
    aged,
)
from pumphouse.leases.rules import checkpoint_fault
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.sqlite.clock import MachineTime, age_s, read_machine_time
from pumphouse.leases.stores.sqlite.file import (
    PASSING,
    code,
    open_file,
    roll_back,
    sentence,
    wait_at_most,
)
from pumphouse.leases.stores.sqlite.thread import DatabaseThread

T = TypeVar("T")

DEADLINE_S = 10.0
MEMBER_KEPT_S = 24 * 3600.0  # a host that has not beaten for so long is gone

HERE = "namespace = ? AND hub = ? AND consumer_group = ?"
ROW = "partition_id, owner, epoch, etag, successor, deadline_s, rate, pinned, boot, up_s, wall_s"
MARK = "partition_id, sequence, event_offset, enqueued_ms, epoch, etag"
PUT_ROW = f"INSERT OR REPLACE INTO ownership (namespace, hub, consumer_group, {ROW}) VALUES "
PUT_ROW += f"({', '.join('?' * 14)})"
PUT_MARK = f"INSERT OR REPLACE INTO checkpoint (namespace, hub, consumer_group, {MARK}) VALUES "
PUT_MARK += f"({', '.join('?' * 9)})"
MEMBER = "name, max_partitions, boot, up_s, wall_s"
PUT_MEMBER = f"INSERT OR REPLACE INTO member (namespace, hub, consumer_group, {MEMBER}) VALUES "
PUT_MEMBER += f"({', '.join('?' * 8)})"


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection, and what tells that it still leads to the file at the path."""

    db: sqlite3.Connection
    inode: int | None


class File:
    """The file as one thread has it: that of a lane opens it, uses it and, last of all, closes it.

    A lane's thread may still be about to open when nobody waits for it any more. So what it opens
    is its own, and a store that is opened again gets another thread and another of these.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: Opened | None = None

    def open(self, until: float) -> None:
        if self.opened is None:
            db = open_file(self.path, until)
            self.opened = Opened(db, _inode(self.path))

    def connection(self) -> sqlite3.Connection:
        """The connection, unless it leads to a file that others will not find any more."""
        if self.opened is None:
            raise StoreError(f"lease file {self.path} has been closed meanwhile")
        inode = _inode(self.path)
        if inode is None or inode != self.opened.inode:
            raise StoreError(
                f"lease file {self.path} was removed or replaced while it was in use; "
                "start every host that uses it anew"
            )
        return self.opened.db

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is None:
            return
        try:
            opened.db.close()
        except sqlite3.Error as error:
            raise StoreError(sentence(self.path, error)) from None


class SqliteStore:
    """Keeps rows in a file. Open it with `async with`, once or several times at once.

    `deadline_s` bounds every call, the wait for other processes included.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], MachineTime] = read_machine_time,
    ) -> None:
        if str(path) in ("", ".", ":memory:"):
            raise OptionError(f"{str(path)!r} is no path of a lease file; name one, or use memory:")
        if not deadline_s > 0:
            raise OptionError(f"deadline_s must be above 0 (got {deadline_s})")
        self.path = Path(path)
        self._deadline_s = deadline_s
        self._clock = clock
        self._users = 0
        self._process = os.getpid()
        self._thread: DatabaseThread | None = None
        self._file = File(self.path)

    def __repr__(self) -> str:
        return f"<SqliteStore {self.path} | {'open' if self._file.opened else 'closed'}>"

    async def __aenter__(self) -> Self:
        self._users += 1
        self._process = os.getpid()
        self._thread = self._thread or DatabaseThread("pumphouse-sqlite")
        try:
            await self._within(File.open)
        except BaseException:
            with suppress(StoreError):  # why it could not be opened says more
                await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._users == 0 and self._thread is not None:
            lane, file = self._thread, self._file
            self._thread, self._file = None, File(self.path)
            await lane.close(file.close, self._deadline_s)

    # -- the four methods, and members ------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        def read(db: sqlite3.Connection) -> Listing:
            rows = db.execute(f"SELECT {ROW} FROM ownership WHERE {HERE}", _key(group)).fetchall()
            members = db.execute(
                f"SELECT {MEMBER} FROM member WHERE {HERE}", _key(group)
            ).fetchall()
            now = self._clock()
            return Listing(
                tuple(_row(row, now) for row in rows), tuple(_member(one, now) for one in members)
            )

        return await self._reading(read)

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        def read(db: sqlite3.Connection) -> list[Checkpoint]:
            found = db.execute(f"SELECT {MARK} FROM checkpoint WHERE {HERE}", _key(group))
            return [_mark(group, mark) for mark in found.fetchall()]

        return await self._reading(read)

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        if not (wanted := list(claims)):
            return []

        def write(db: sqlite3.Connection) -> list[ClaimOutcome]:
            return [self._claim(db, group, row) for row in wanted]

        try:
            return await self._writing(write)
        except _Passing as failed:
            return [Unknown(row, str(failed)) for row in wanted]

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        def write(db: sqlite3.Connection) -> CheckpointOutcome:
            return _update(db, checkpoint, rewind)

        try:
            return await self._writing(write)
        except _Passing as failed:
            return Unknown(checkpoint, str(failed))

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        def write(db: sqlite3.Connection) -> None:
            now, here = self._clock(), _key(group)
            for found in db.execute(f"SELECT {MEMBER} FROM member WHERE {HERE}", here).fetchall():
                if (gone := _member(found, now)).age_s > MEMBER_KEPT_S:
                    db.execute(f"DELETE FROM member WHERE {HERE} AND name = ?", (*here, gone.name))
            db.execute(PUT_MEMBER, (*here, name, max_partitions, now.boot, now.up_s, now.wall_s))

        await self._writing(write)

    async def leave(self, group: Group, name: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute(f"DELETE FROM member WHERE {HERE} AND name = ?", (*_key(group), name))

        await self._writing(write)

    def _claim(self, db: sqlite3.Connection, group: Group, wanted: Ownership) -> ClaimOutcome:
        now, here = self._clock(), _key(group)
        found = db.execute(
            f"SELECT {ROW} FROM ownership WHERE {HERE} AND partition_id = ?",
            (*here, wanted.partition),
        ).fetchone()
        stored = None if found is None else _row(found, now)
        if wanted.etag != (stored.etag if stored else ""):
            return Refused(wanted, stored)
        row = replace(wanted, etag=secrets.token_hex(8), age_s=0.0)
        values = (row.partition, row.owner, row.epoch, row.etag, row.successor)
        moment = (now.boot, now.up_s, now.wall_s)
        db.execute(PUT_ROW, (*here, *values, row.deadline_s, row.rate, row.pinned, *moment))
        return Granted(row)

    # -- transactions -----------------------------------------------------------------------------

    async def _reading(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._within(lambda file, until: _transact(file, "BEGIN", work, until))

    async def _writing(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._within(
            lambda file, until: _transact(file, "BEGIN IMMEDIATE", work, until)
        )

    async def _within(self, job: Callable[[File, float], T]) -> T:
        if self._thread is None:
            raise StoreError(f"lease file {self.path} is not open; use `async with`")
        if self._process != os.getpid():
            raise StoreError(
                f"lease file {self.path} was opened before this process forked off; open a store "
                "of its own in each process"
            )
        try:
            return await self._thread.run(partial(job, self._file), self._deadline_s)
        except TimeoutError:
            raise _Passing(
                f"lease file {self.path} did not answer within {self._deadline_s:g} s"
            ) from None


class _Passing(StoreError):
    """What may be over at the next try: of a write it means that its outcome is unknown."""


def _transact(file: File, begin: str, work: Callable[[sqlite3.Connection], T], until: float) -> T:
    db = file.connection()
    try:
        wait_at_most(db, until)
        db.execute(begin)
        result = work(db)
        db.execute("COMMIT")
        return result
    except sqlite3.Error as error:
        told = sentence(file.path, error)
        raise (_Passing if code(error) in PASSING else StoreError)(told) from None
    except (OverflowError, UnicodeError) as error:
        raise OptionError(f"a row cannot be kept in {file.path}: {error}") from None
    finally:
        roll_back(db)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _update(db: sqlite3.Connection, wanted: Checkpoint, rewind: bool) -> CheckpointOutcome:
    here = _key(wanted.group)
    found = db.execute(
        f"SELECT {MARK} FROM checkpoint WHERE {HERE} AND partition_id = ?",
        (*here, wanted.partition),
    ).fetchone()
    stored = None if found is None else _mark(wanted.group, found)
    if wanted.etag != (stored.etag if stored else ""):
        return Refused(wanted, stored)
    if not rewind and (fault := checkpoint_fault(stored, wanted)):
        raise CheckpointRefused(fault)
    mark = replace(wanted, etag=secrets.token_hex(8))
    place = (mark.sequence, mark.offset, mark.enqueued_ms)
    db.execute(PUT_MARK, (*here, mark.partition, *place, mark.epoch, mark.etag))
    return Granted(mark)


def _key(group: Group) -> tuple[str, str, str]:
    return group.namespace.lower(), group.hub.lower(), group.name.lower()


def _row(columns: Sequence[Any], now: MachineTime) -> Ownership:
    partition, owner, epoch, etag, successor, deadline_s, rate, pinned, *written = columns
    row = Ownership(partition, owner, epoch, etag, 0.0, successor, deadline_s, rate, bool(pinned))
    return aged(row, age_s(MachineTime(*written), now))


def _member(columns: Sequence[Any], now: MachineTime) -> Member:
    name, max_partitions, *beat = columns
    return Member(name, age_s(MachineTime(*beat), now), max_partitions)


def _mark(group: Group, columns: Sequence[Any]) -> Checkpoint:
    partition, sequence, offset, enqueued_ms, epoch, etag = columns
    return Checkpoint(group, partition, sequence, offset, epoch, etag, enqueued_ms)
