"""A lease file: creates, opens and validates it, and translates its errors.

    LeaseFile -> open_file -> sqlite3.Connection
                 ^^^^^^^^^ this module

The file carries the id of its program (`application_id`) and the version of its tables
(`user_version`), so that a file of another program or of a later Pumphouse is not touched. A file
may have been prepared by someone else: it must have our tables and no views or triggers, its values
have a largest size, and a statement ends at its deadline.
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

from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.stores.limits import printable

T = TypeVar("T")

APPLICATION_ID = 0x50756D70  # "Pump"
VERSION = 1
RETRY_S = 0.02
# The largest value, row or statement. A host's name is the longest text that we write.
VALUE_BYTES_MAX = 1 << 20
# How many steps of SQLite's virtual machine run between two checks of the deadline.
STEPS = 10_000

GROUP_COLUMNS = "namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL"
TIME_COLUMNS = "boot TEXT NOT NULL, up_s REAL NOT NULL, wall_s REAL NOT NULL"
SCHEMA = f"""
CREATE TABLE ownership (
    {GROUP_COLUMNS}, partition_id TEXT NOT NULL,
    owner TEXT NOT NULL, epoch INTEGER NOT NULL, etag TEXT NOT NULL,
    successor TEXT NOT NULL, deadline_s REAL, rate REAL, pinned INTEGER NOT NULL, {TIME_COLUMNS},
    state TEXT,
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

# Table -> its columns, without `state`, which an earlier Pumphouse did not write.
_GROUP = {"namespace", "hub", "consumer_group"}
_TIME = {"boot", "up_s", "wall_s"}
_OWNERSHIP = {"owner", "epoch", "etag", "successor", "deadline_s", "rate", "pinned"}
_POSITION = {"sequence", "event_offset", "enqueued_ms", "epoch", "etag"}
COLUMNS = {
    "ownership": {"partition_id"} | _OWNERSHIP | _GROUP | _TIME,
    "checkpoint": {"partition_id"} | _POSITION | _GROUP,
    "member": {"name", "max_partitions"} | _GROUP | _TIME,
}

# These errors can end without intervention: a call that fails with one can be repeated.
TRANSIENT_CODES = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_INTERRUPT,
)
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
    sqlite3.SQLITE_TOOBIG: f"has a value of more than {VALUE_BYTES_MAX} bytes; remove its row",
    sqlite3.SQLITE_INTERRUPT: "did not respond in time",
}


def result_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if Python raised the error."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """The error to raise: StoreUnavailable if a later call may succeed."""
    code = result_code(error)
    kind = StoreUnavailable if code in TRANSIENT_CODES else StoreError
    # The text is made printable, because SQLite may quote contents of the file in it.
    reason = MESSAGES.get(code) or f"cannot be used: {printable(str(error))}"
    return kind(f"lease file {path} {reason}")


def open_file(path: Path, until: float) -> sqlite3.Connection:
    """Open the file, or create it; StoreError if it cannot be used or is not a lease file."""
    _create(path)
    db = None
    try:
        db = sqlite3.connect(path, timeout=remaining_s(until), isolation_level=None)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
        end_at_deadline(db, until)
        _prepare(db, path, until)
    except sqlite3.Error as error:
        _close(db)
        raise store_error(path, error) from None
    except BaseException:
        _close(db)
        raise
    return db


def set_deadline(db: sqlite3.Connection, until: float) -> None:
    """Bound the statements that follow: their waits for other processes, and their own work."""
    end_at_deadline(db, until)
    set_busy_timeout(db, until)


def end_at_deadline(db: sqlite3.Connection, until: float) -> None:
    """Interrupt statements that still run at `until`: a crafted file could make them endless."""
    db.set_progress_handler(lambda: time.monotonic() > until, STEPS)


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
    db.execute("PRAGMA trusted_schema = OFF")
    if not retry_while_locked(until, lambda: _has_tables(db, path)):
        retry_while_locked(until, lambda: _create_tables(db, path))
    _check_schema(db, path)
    if not _has_states(db):
        retry_while_locked(until, lambda: _add_states(db))
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


def _has_tables(db: sqlite3.Connection, path: Path) -> bool:
    """Look in one transaction: another process may create the tables meanwhile."""
    db.execute("BEGIN")
    try:
        return _is_lease_file(db, path)
    finally:
        roll_back(db)


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


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """StoreError unless the tables are plain tables with our columns.

    A view or trigger would run statements of its author. A later Pumphouse may add columns, tables
    and indexes.
    """
    kinds = dict(db.execute("SELECT name, type FROM sqlite_master LIMIT 1000").fetchall())
    unexpected = sorted(str(kind) for kind in kinds.values() if kind in ("view", "trigger"))
    if unexpected:
        raise _not_ours(path, f"it has a {unexpected[0]}")
    for table, columns in COLUMNS.items():
        existing = {str(column[1]) for column in db.execute(f"PRAGMA table_info({table})")}
        if missing := sorted(columns - existing):
            raise _not_ours(path, f"table {table} has no column {missing[0]}")
    virtual = "SELECT count(*) FROM sqlite_master WHERE sql LIKE 'create virtual%'"
    if db.execute(virtual).fetchone()[0]:
        raise _not_ours(path, "it has a virtual table")


def _not_ours(path: Path, reason: str) -> StoreError:
    return StoreError(f"lease file {path} was changed by another program: {reason}; use another")


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


def _has_states(db: sqlite3.Connection) -> bool:
    return any(column[1] == "state" for column in db.execute("PRAGMA table_info(ownership)"))


def _add_states(db: sqlite3.Connection) -> None:
    """Add the column `state` to a file that an earlier Pumphouse created.

    Earlier versions can still use the file, because they name the columns that they write and so
    leave `state` empty. So VERSION was not raised for this column.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _has_states(db):  # another process may have added it
            db.execute("ALTER TABLE ownership ADD COLUMN state TEXT")
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
