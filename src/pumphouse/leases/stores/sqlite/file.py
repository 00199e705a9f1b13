"""A lease file: how it is made, opened and judged, and its errors put into sentences.

    sqlite -> open_file -> sqlite3.Connection
              ^^^^^^^^^ this module

The file says whose it is (`application_id`) and which form its tables have (`user_version`), so
that a file of another program or of a later Pumphouse is left alone.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pumphouse.errors import StoreError

T = TypeVar("T")

APPLICATION_ID = 0x50756D70  # "Pump"
VERSION = 1
RETRY_S = 0.02

PLACE = "namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL"
WRITTEN = "boot TEXT NOT NULL, up_s REAL NOT NULL, wall_s REAL NOT NULL"
SCHEMA = f"""
CREATE TABLE ownership (
    {PLACE}, partition_id TEXT NOT NULL,
    owner TEXT NOT NULL, epoch INTEGER NOT NULL, etag TEXT NOT NULL,
    successor TEXT NOT NULL, deadline_s REAL, rate REAL, pinned INTEGER NOT NULL, {WRITTEN},
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITHOUT ROWID;
CREATE TABLE checkpoint (
    {PLACE}, partition_id TEXT NOT NULL,
    sequence INTEGER, event_offset TEXT, enqueued_ms INTEGER,
    epoch INTEGER NOT NULL, etag TEXT NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITHOUT ROWID;
CREATE TABLE member (
    {PLACE}, name TEXT NOT NULL, max_partitions INTEGER, {WRITTEN},
    PRIMARY KEY (namespace, hub, consumer_group, name)
) WITHOUT ROWID;
"""

# What passes by itself, so that a write that met with it may simply be tried again.
PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR)
WHAT_IS_WRONG = {
    sqlite3.SQLITE_BUSY: "is locked by another process for too long",
    sqlite3.SQLITE_LOCKED: "is locked by another process for too long",
    sqlite3.SQLITE_READONLY: "may not be written; allow this user to write it and its directory",
    sqlite3.SQLITE_PERM: "may not be used by this user",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check its directory and whose it is",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it, or remove it and let every host start anew",
    sqlite3.SQLITE_NOTADB: "is no lease file and no SQLite file at all; use another path",
}


def code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if the error is of Python's making."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def sentence(path: Path, error: sqlite3.Error) -> str:
    return f"lease file {path} {WHAT_IS_WRONG.get(code(error), f'cannot be used: {error}')}"


def open_file(path: Path, until: float) -> sqlite3.Connection:
    """The file, made if there is none; raises StoreError if it cannot be used or is not ours."""
    _create(path)
    db = None
    try:
        db = sqlite3.connect(path, timeout=remaining_s(until), isolation_level=None)
        _settle(db, path, until)
    except sqlite3.Error as error:
        _close(db)
        raise StoreError(sentence(path, error)) from None
    except BaseException:
        _close(db)
        raise
    return db


def wait_at_most(db: sqlite3.Connection, until: float) -> None:
    """How long SQLite itself waits for another process's lock.

    A little less than there is, so that whoever waits hears of the lock rather than of nothing.
    """
    db.execute(f"PRAGMA busy_timeout = {int(remaining_s(until) * 800)}")


def remaining_s(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _create(path: Path) -> None:
    """An empty file that only its owner may read, if there is none.

    It is made under another name and then linked: closing a descriptor of the file itself would
    drop the locks that another store of this process may already hold on it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_dir():
            raise StoreError(f"lease file {path} is a directory; name a file in it")
        if not path.exists():
            _link_new(path)
    except OSError as error:
        raise StoreError(f"lease file {path} cannot be made: {error.strerror}") from None


def _link_new(path: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    os.close(descriptor)
    try:
        with suppress(FileExistsError):  # another process was quicker
            os.link(name, path)
    finally:
        os.unlink(name)


def _settle(db: sqlite3.Connection, path: Path, until: float) -> None:
    if not _is_ours(db, path):
        patiently(until, lambda: _fill(db, path))
    mode = patiently(until, lambda: str(db.execute("PRAGMA journal_mode = WAL").fetchone()[0]))
    if mode != "wal":
        raise StoreError(
            f"lease file {path} is on a file system that processes cannot share a SQLite file on "
            f"(its journal mode stays {mode!r}); use a local disk"
        )
    # A lease that was granted must still be granted after a power cut: its epoch may be in use.
    db.execute("PRAGMA synchronous = FULL")


def _is_ours(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there; False if the file is new, an error if it is another's."""
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if application == APPLICATION_ID and version == VERSION:
        return True
    if application == APPLICATION_ID and version > VERSION:
        raise StoreError(
            f"lease file {path} was made by a later Pumphouse (its form is {version}, this one "
            f"knows {VERSION}); upgrade, or use another file"
        )
    tables = int(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application or version or tables:
        raise StoreError(f"lease file {path} belongs to another program; use another file")
    return False


def _fill(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _is_ours(db, path):  # another process may have been quicker
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def patiently(until: float, step: Callable[[], T]) -> T:
    """Try again while the file is locked: SQLite does not wait for every kind of lock itself."""
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if remaining_s(until) <= 0:
                raise
        time.sleep(RETRY_S)


def roll_back(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def _close(db: sqlite3.Connection | None) -> None:
    if db is not None:
        with suppress(sqlite3.Error):
            db.close()
