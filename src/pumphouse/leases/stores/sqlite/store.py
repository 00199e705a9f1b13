"""A store in one SQLite file, for many processes on one machine. It needs only Python.

Every call is one transaction in the store's own thread, so the event loop never waits for a disk.
Ages count by the machine's uptime (clock.py), read inside the transaction, so that setting the wall
clock does not change them.

    processor.cycle -> SqliteStore -> DatabaseThread -> LeaseFile -> sqlite3
                       ^^^^^^^^^^^ this module

A network drive does not work: SQLite's shared memory does not reach another machine.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pumphouse.errors import CheckpointRefused, OptionError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    Unknown,
)
from pumphouse.leases.rules import checkpoint_fault
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.limits import ROWS_MAX
from pumphouse.leases.stores.sqlite.clock import MachineTime, read_machine_time
from pumphouse.leases.stores.sqlite.file import (
    open_file,
    roll_back,
    set_deadline,
    store_error,
)
from pumphouse.leases.stores.sqlite.rows import read_checkpoint, read_member, read_row
from pumphouse.leases.stores.sqlite.thread import DatabaseThread

T = TypeVar("T")

DEADLINE_S = 10.0
MEMBER_KEPT_S = 24 * 3600.0  # a host without a beat for this long is gone

IN_GROUP = "namespace = ? AND hub = ? AND consumer_group = ?"
TIME = "boot, up_s, wall_s"
ROW = f"partition_id, owner, epoch, etag, successor, deadline_s, rate, pinned, state, {TIME}"
CHECKPOINT = "partition_id, sequence, event_offset, enqueued_ms, epoch, etag"
MEMBER = f"name, max_partitions, {TIME}"


def _insert(table: str, columns: str) -> str:
    values = ", ".join("?" * (3 + len(columns.split(","))))
    return (
        f"INSERT OR REPLACE INTO {table} (namespace, hub, consumer_group, {columns}) "
        f"VALUES ({values})"
    )


PUT_ROW = _insert("ownership", ROW)
PUT_CHECKPOINT = _insert("checkpoint", CHECKPOINT)
PUT_MEMBER = _insert("member", MEMBER)


class LeaseFile:
    """The connection of one thread to the lease file: opened, used and closed by that thread.

    The thread may still be opening the file when the caller has stopped waiting. So the connection
    belongs to the thread, and a store that is opened again gets a new thread and a new LeaseFile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None
        self._inode: int | None = None

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def open(self, until: float) -> None:
        if self._db is None:
            self._db = open_file(self.path, until)
            self._inode = _inode(self.path)

    def connection(self) -> sqlite3.Connection:
        """The connection; StoreError if the path leads to another file by now."""
        if self._db is None:
            raise StoreError(f"lease file {self.path} is closed; use `async with`")
        inode = _inode(self.path)
        if inode is None or inode != self._inode:
            raise StoreError(
                f"lease file {self.path} was removed or replaced while it was in use; "
                "restart every host that uses it"
            )
        return self._db

    def close(self) -> None:
        db, self._db = self._db, None
        if db is None:
            return
        try:
            db.close()
        except sqlite3.Error as error:
            raise store_error(self.path, error) from None


class OpenedFile:
    """A lease file with the thread that uses it."""

    def __init__(self, path: Path) -> None:
        self.thread = DatabaseThread("pumphouse-sqlite")
        self.file = LeaseFile(path)


class SqliteStore:
    """Keeps rows in a file. Open it with `async with`, once or several times at the same time.

    Several event loops of a process, in different threads, may use one store. `deadline_s` bounds
    every call, including the wait for other processes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], MachineTime] = read_machine_time,
    ) -> None:
        if str(path) in ("", ".", ":memory:"):
            raise OptionError(f"{str(path)!r} is not a lease file: use a path, or memory:")
        if not deadline_s > 0:
            raise OptionError(f"deadline_s must be above 0 (got {deadline_s})")
        self.path = Path(path)
        self._deadline_s = deadline_s
        self._clock = clock
        self._users = 0
        self._process = os.getpid()
        # Of the attributes above and below, in `async with`; never held while waiting.
        self._lock = threading.Lock()
        self._opened: OpenedFile | None = None

    def __repr__(self) -> str:
        opened = self._opened
        is_open = opened is not None and opened.file.is_open
        return f"<SqliteStore {self.path} | {'open' if is_open else 'closed'}>"

    async def __aenter__(self) -> Self:
        with self._lock:
            self._users += 1
            self._process = os.getpid()
            self._opened = self._opened or OpenedFile(self.path)
        try:
            await self._run(LeaseFile.open)
        except BaseException:
            with suppress(StoreError):  # the first error matters more
                await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            last = self._opened if self._users == 0 else None
            if last is not None:
                self._opened = None
        if last is not None:
            await last.thread.close(last.file.close, self._deadline_s)

    # -- ownership --------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        def read(db: sqlite3.Connection) -> Listing:
            rows = _select(db, "ownership", ROW, group)
            members = _select(db, "member", MEMBER, group)
            now = self._clock()
            return Listing(
                tuple(read_row(columns, now) for columns in rows),
                tuple(read_member(columns, now) for columns in members),
            )

        return await self._read(read)

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        if not (requested := list(claims)):
            return []

        def write(db: sqlite3.Connection) -> list[ClaimOutcome]:
            return [self._claim(db, group, row) for row in requested]

        try:
            return await self._write(write)
        except StoreUnavailable as error:
            return [Unknown(row, str(error)) for row in requested]

    def _claim(self, db: sqlite3.Connection, group: Group, requested: Ownership) -> ClaimOutcome:
        now = self._clock()
        columns = _select_partition(db, "ownership", ROW, group, requested.partition)
        stored = None if columns is None else read_row(columns, now)
        if requested.etag != (stored.etag if stored else ""):
            return Refused(requested, stored)
        row = replace(requested, etag=secrets.token_hex(8), age_s=0.0)
        values: tuple[Any, ...] = (row.partition, row.owner, row.epoch, row.etag, row.successor)
        values += (row.deadline_s, row.rate, row.pinned, row.state or None)
        db.execute(PUT_ROW, (*_key(group), *values, now.boot, now.up_s, now.wall_s))
        return Granted(row)

    # -- checkpoints ------------------------------------------------------------------------------

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        def read(db: sqlite3.Connection) -> list[Checkpoint]:
            rows = _select(db, "checkpoint", CHECKPOINT, group)
            return [read_checkpoint(group, columns) for columns in rows]

        return await self._read(read)

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        def write(db: sqlite3.Connection) -> CheckpointOutcome:
            return _update(db, checkpoint, rewind)

        try:
            return await self._write(write)
        except StoreUnavailable as error:
            return Unknown(checkpoint, str(error))

    # -- members ----------------------------------------------------------------------------------

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        def write(db: sqlite3.Connection) -> None:
            now, key = self._clock(), _key(group)
            for columns in _select(db, "member", MEMBER, group):
                if (member := read_member(columns, now)).age_s > MEMBER_KEPT_S:
                    _delete_member(db, group, member.name)
            db.execute(PUT_MEMBER, (*key, name, max_partitions, now.boot, now.up_s, now.wall_s))

        await self._write(write)

    async def leave(self, group: Group, name: str) -> None:
        await self._write(lambda db: _delete_member(db, group, name))

    # -- transactions -----------------------------------------------------------------------------

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda file, until: _transact(file, "BEGIN", work, until))

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda file, until: _transact(file, "BEGIN IMMEDIATE", work, until))

    async def _run(self, job: Callable[[LeaseFile, float], T]) -> T:
        """Run a job in the thread, within the deadline."""
        if (opened := self._opened) is None:
            raise StoreError(f"lease file {self.path} is not open; use `async with`")
        if self._process != os.getpid():
            raise StoreError(
                f"lease file {self.path} was opened before this process was forked; open a "
                "separate store in each process"
            )
        try:
            return await opened.thread.run(partial(job, opened.file), self._deadline_s)
        except TimeoutError:
            raise StoreUnavailable(
                f"lease file {self.path} did not respond within {self._deadline_s:g} s"
            ) from None


def _transact(
    file: LeaseFile, begin: str, work: Callable[[sqlite3.Connection], T], until: float
) -> T:
    db = file.connection()
    try:
        set_deadline(db, until)
        db.execute(begin)
        result = work(db)
        db.execute("COMMIT")
        return result
    except sqlite3.Error as error:
        raise store_error(file.path, error) from None
    except StoreError as error:
        raise StoreError(f"lease file {file.path}: {error}") from None
    except (OverflowError, UnicodeError) as error:
        raise OptionError(f"a row cannot be stored in {file.path}: {error}") from None
    finally:
        roll_back(db)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _update(db: sqlite3.Connection, requested: Checkpoint, rewind: bool) -> CheckpointOutcome:
    group = requested.group
    columns = _select_partition(db, "checkpoint", CHECKPOINT, group, requested.partition)
    stored = None if columns is None else read_checkpoint(group, columns)
    if requested.etag != (stored.etag if stored else ""):
        return Refused(requested, stored)
    if not rewind and (fault := checkpoint_fault(stored, requested)):
        raise CheckpointRefused(fault)
    written = replace(requested, etag=secrets.token_hex(8))
    position = (written.sequence, written.offset, written.enqueued_ms)
    values = (*_key(group), written.partition, *position, written.epoch, written.etag)
    db.execute(PUT_CHECKPOINT, values)
    return Granted(written)


# -- SQL ------------------------------------------------------------------------------------------


def _select(db: sqlite3.Connection, table: str, columns: str, group: Group) -> list[Sequence[Any]]:
    statement = f"SELECT {columns} FROM {table} WHERE {IN_GROUP} LIMIT {ROWS_MAX + 1}"
    rows = db.execute(statement, _key(group)).fetchall()
    if len(rows) > ROWS_MAX:
        raise StoreError(f"table {table} has more than {ROWS_MAX} rows of {group}; remove some")
    return rows


def _select_partition(
    db: sqlite3.Connection, table: str, columns: str, group: Group, partition: str
) -> Sequence[Any] | None:
    row: Sequence[Any] | None = db.execute(
        f"SELECT {columns} FROM {table} WHERE {IN_GROUP} AND partition_id = ?",
        (*_key(group), partition),
    ).fetchone()
    return row


def _delete_member(db: sqlite3.Connection, group: Group, name: str) -> None:
    db.execute(f"DELETE FROM member WHERE {IN_GROUP} AND name = ?", (*_key(group), name))


def _key(group: Group) -> tuple[str, str, str]:
    return group.namespace.lower(), group.hub.lower(), group.name.lower()
