"""A lease file: creates, opens and validates it, and translates its errors.

    LeaseFile -> open_file -> sqlite3.Connection
                 ^^^^^^^^^ this module

The file carries the id of its program (`application_id`) and the version of its tables
(`user_version`), so that a file of another program or of a later Pumphouse is not touched.
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

GROUP_COLUMNS = "namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL"
TIME_COLUMNS = "boot TEXT NOT NULL, up_s REAL NOT NULL, wall_s REAL NOT NULL"
SCHEMA = f"""
CREATE TABLE ownership (
    {GROUP_COLUMNS}, partition_id TEXT NOT NULL,
    owner TEXT NOT NULL, epoch INTEGER NOT NULL, etag TEXT NOT NULL,
    successor TEXT NOT NULL, deadline_s REAL, rate REAL, pinned INTEGER NOT NULL, {TIME_COLUMNS},
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITHOUT ROWID;
CREATE TABLE checkpoint (
    {GROUP_COLUMNS}, partition_id TEXT NOT NULL,
    sequence INTEGER, event_offset TEXT, enqueued_ms INTEGER,
    epoch INTEGER NOT NULL, etag TEXT NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITHOUT ROWID;
CREATE TABLE member (
    {GROUP_COLUMNS}, name TEXT NOT NULL, max_partitions INTEGER, {TIME_COLUMNS},
    PRIMARY KEY (namespace, hub, consumer_group, name)
) WITHOUT ROWID;
"""

# Errors that end without intervention: a call that fails with one can be repeated.
TRANSIENT_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR)
MESSAGES = {
    sqlite3.SQLITE_BUSY: "stays locked by another process",
    sqlite3.SQLITE_LOCKED: "stays locked by another process",
    sqlite3.SQLITE_READONLY: "is not writable; allow this user to write it and its directory",
    sqlite3.SQLITE_PERM: "is not accessible to this user; change its permissions",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check its directory and its permissions",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it, or remove it and restart every host",
    sqlite3.SQLITE_NOTADB: "is not a lease file and not a SQLite file; use another path",
}


def result_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if Python raised the error."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def error_text(path: Path, error: sqlite3.Error) -> str:
    return f"lease file {path} {MESSAGES.get(result_code(error), f'cannot be used: {error}')}"


def open_file(path: Path, until: float) -> sqlite3.Connection:
    """Open the file, or create it; StoreError if it cannot be used or is not a lease file."""
    _create(path)
    db = None
    try:
        db = sqlite3.connect(path, timeout=remaining_s(until), isolation_level=None)
        _prepare(db, path, until)
    except sqlite3.Error as error:
        _close(db)
        raise StoreError(error_text(path, error)) from None
    except BaseException:
        _close(db)
        raise
    return db


def set_busy_timeout(db: sqlite3.Connection, until: float) -> None:
    """Set how long SQLite itself waits for another process's lock.

    It is a little less than the remaining time, so that the caller gets the error about the lock
    before its own deadline.
    """
    db.execute(f"PRAGMA busy_timeout = {int(remaining_s(until) * 800)}")


def remaining_s(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _create(path: Path) -> None:
    """Create an empty file that only its owner may read, if it is missing.

    It is created under another name and then linked: closing a descriptor of the file itself would
    drop the locks that another store of this process may already hold on it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_dir():
            raise StoreError(f"lease file {path} is a directory; use a file in it")
        if not path.exists():
            _link_new(path)
    except OSError as error:
        raise StoreError(f"lease file {path} cannot be created: {error.strerror}") from None


def _link_new(path: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    os.close(descriptor)
    try:
        with suppress(FileExistsError):  # another process has created it
            os.link(name, path)
    finally:
        os.unlink(name)


def _prepare(db: sqlite3.Connection, path: Path, until: float) -> None:
    if not _is_lease_file(db, path):
        retry_while_locked(until, lambda: _create_tables(db, path))
    mode = retry_while_locked(
        until, lambda: str(db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    )
    if mode != "wal":
        raise StoreError(
            f"lease file {path} is on a file system where processes cannot share a SQLite file "
            f"(its journal mode stays {mode!r}); use a local disk"
        )
    # A granted lease must survive a power cut: its epoch may be in use.
    db.execute("PRAGMA synchronous = FULL")


def _is_lease_file(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables exist: False in a new file; StoreError in a file of another program."""
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if application == APPLICATION_ID and version == VERSION:
        return True
    if application == APPLICATION_ID and version > VERSION:
        raise StoreError(
            f"lease file {path} was made by a later Pumphouse (its version is {version}, this one "
            f"supports {VERSION}); upgrade, or use another file"
        )
    tables = int(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application or version or tables:
        raise StoreError(f"lease file {path} belongs to another program; use another file")
    return False


def _create_tables(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _is_lease_file(db, path):  # another process may have created them
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def retry_while_locked(until: float, step: Callable[[], T]) -> T:
    """Repeat while the file is locked: SQLite does not wait for every kind of lock itself."""
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if result_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
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
