"""Lease files for tests: opened, locked, damaged and removed."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from pumphouse.leases.stores.sqlite.store import SqliteStore


@asynccontextmanager
async def opened(path: Path, deadline_s: float = 60) -> AsyncIterator[SqliteStore]:
    """A store with this deadline, except for opening and closing."""
    async with SqliteStore(path, deadline_s=60) as store:
        store._deadline_s = deadline_s
        yield store
        store._deadline_s = 60


def damage(path: Path, after: int) -> None:
    """Overwrite all but the beginning of a file with garbage."""
    whole = path.read_bytes()
    path.write_bytes(whole[:after] + os.urandom(len(whole) - after))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def remove_file(path: Path, replacement: bytes | None) -> None:
    path.rename(path.with_name("old.db"))
    if replacement is not None:
        path.write_bytes(replacement)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process during a write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")
