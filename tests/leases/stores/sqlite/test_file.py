"""A lease file: creation, foreign and damaged files, failures while opening and closing."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.model import Checkpoint, claim, renew
from pumphouse.leases.stores.sqlite.file import (
    APPLICATION_ID,
    VERSION,
    _create_tables,
    _prepare,
    open_file,
)
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.leases.contract.calls import checkpoints, first, granted, rows
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.lease_files import damage, mode_of, opened, remove_file


class SlowOpening:
    """The first opening waits for `released`; later ones do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.open_file", self)

    def __call__(self, path: Path, until: float) -> sqlite3.Connection:
        self.threads.append(threading.current_thread())
        if len(self.threads) == 1:
            self.begun.set()
            self.released.wait(60)
        return open_file(path, until)


def files(path: Path) -> list[str]:
    """The last connection to close removes the other files."""
    return [file.name for file in path.parent.iterdir()]


async def test_a_cancelled_opening_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, store = SlowOpening(monkeypatch), SqliteStore(path)
    opening = asyncio.create_task(store.__aenter__())
    await asyncio.to_thread(slow.begun.wait, 60)
    opening.cancel()
    await asyncio.sleep(0.01)
    slow.released.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert repr(store) == f"<SqliteStore {path} | closed>"
    assert files(path) == ["leases.db"]
    async with store:
        await first(store)
    assert files(path) == ["leases.db"]


async def test_a_store_can_be_opened_while_its_last_opening_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, store = SlowOpening(monkeypatch), SqliteStore(path)
    opening = asyncio.create_task(store.__aenter__())
    await asyncio.to_thread(slow.begun.wait, 60)
    for _ in range(2):  # the second while it waits for the thread
        opening.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with store:
        await first(store)
        slow.released.set()
        await asyncio.to_thread(slow.threads[0].join, 60)
        assert "0" in await rows(store)
    assert files(path) == ["leases.db"]


class Stubborn(sqlite3.Connection):
    def close(self) -> None:
        super().close()
        raise sqlite3.OperationalError("it will not close")


def open_stubborn(path: Path, until: float) -> sqlite3.Connection:
    open_file(path, until).close()
    return sqlite3.connect(path, isolation_level=None, factory=Stubborn)


async def test_a_failure_to_close_is_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.open_file", open_stubborn)
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=r"leases\.db cannot be used: it will not close"):
        async with store:
            await first(store)
    assert repr(store) == f"<SqliteStore {path} | closed>"


async def test_a_file_removed_while_opening_is_detected(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_lose(path: Path, until: float) -> sqlite3.Connection:
        db = open_file(path, until)
        remove_file(path, None)
        return db

    monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.open_file", open_and_lose)
    async with opened(path) as store:
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.list_ownership(GROUP)


# -- creation, foreign and damaged files ---------------------------------------------------------


async def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "leases.db"
    async with opened(path) as store:
        await first(store)
        for file in path.parent.iterdir():
            assert mode_of(file) == 0o600, file
    assert mode_of(path.parent) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["leases.db"]


async def test_an_existing_file_keeps_its_mode(path: Path) -> None:
    async with opened(path):
        pass
    os.chmod(path, 0o660)
    async with opened(path) as store:
        await first(store)
    assert mode_of(path) == 0o660


async def expect_refusal(path: Path, words: str) -> None:
    with pytest.raises(StoreError, match=words) as raised:
        async with opened(path):
            pass
    assert str(path) in str(raised.value)


async def test_a_file_of_another_program_is_not_touched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE people (name TEXT)")
    await expect_refusal(path, "another program")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("people",)]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


async def test_a_file_of_a_later_version_is_not_touched(path: Path) -> None:
    async with opened(path):
        pass
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    await expect_refusal(path, "later Pumphouse.*upgrade")


async def test_an_empty_file_becomes_a_lease_file(tmp_path: Path) -> None:
    descriptor, name = tempfile.mkstemp(dir=tmp_path)
    os.close(descriptor)
    async with opened(Path(name)) as store:
        await first(store)


def test_a_concurrent_creation_is_accepted(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for _ in range(2):
            _create_tables(db, path)
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert not db.in_transaction


def test_a_file_that_is_created_during_the_check_is_accepted(path: Path) -> None:
    """Another process creates the tables after the first of the statements that look for them."""
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as db,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other,
    ):

        def create(statement: str) -> None:
            if "user_version" in statement:
                db.set_trace_callback(None)
                with suppress(sqlite3.OperationalError):  # it is locked, and would wait
                    _create_tables(other, path)

        db.set_trace_callback(create)
        _prepare(db, path, time.monotonic() + 60)
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert not db.in_transaction


def test_a_file_that_is_not_a_database_is_refused(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)
    asyncio.run(expect_refusal(path, "is not a lease file"))
    assert path.read_text() == "Dear diary, " * 1000


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    await expect_refusal(tmp_path, "is a directory")


async def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await expect_refusal(tmp_path / "file" / "leases.db", "cannot be created")


@pytest.mark.parametrize("name", ["", ":memory:", "."])
def test_an_invalid_path_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="memory:"):
        SqliteStore(name)


def test_a_deadline_must_be_above_zero() -> None:
    with pytest.raises(OptionError, match="deadline_s"):
        SqliteStore("leases.db", deadline_s=0)


async def test_a_damaged_file_raises(path: Path) -> None:
    async with opened(path) as store:
        claims = [claim(None, str(n), "a" * 200) for n in range(500)]
        await store.claim_ownership(GROUP, claims)
    damage(path, after=4096)
    async with opened(path) as store:
        with pytest.raises(StoreError, match="is damaged"):
            await store.list_ownership(GROUP)
        with pytest.raises(StoreError, match="is damaged"):
            await store.claim_ownership(GROUP, [claim(None, "0", "b")])


async def test_a_full_disk_raises_and_nothing_is_written(path: Path) -> None:
    async with opened(path) as store:
        row = await first(store)
        await store._read(lambda db: db.execute("PRAGMA max_page_count = 1"))
        claims = [claim(None, str(n), "a" * 200) for n in range(1, 500)]
        with pytest.raises(StoreError, match="the disk is full"):
            await store.claim_ownership(GROUP, claims)
        assert list(await rows(store)) == ["0"]
        await granted(store, renew(row))  # a row that fits is still written


async def test_a_read_only_file_raises(path: Path) -> None:
    async with opened(path) as store:
        row = await first(store)
        await store._read(lambda db: db.execute("PRAGMA query_only = 1"))
        with pytest.raises(StoreError, match="is not writable"):
            await store.claim_ownership(GROUP, [renew(row)])
        assert "0" in await rows(store)


@pytest.mark.parametrize("replacement", [None, b""], ids=["removed", "replaced"])
async def test_a_removed_file_raises(path: Path, replacement: bytes | None) -> None:
    """Otherwise its users and those of a new file would not see each other."""
    async with opened(path) as store:
        row = await first(store)
        remove_file(path, replacement)
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.claim_ownership(GROUP, [renew(row)])
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.list_ownership(GROUP)


async def test_a_number_out_of_range_is_refused(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(OptionError, match="cannot be stored"):
            await store.update_checkpoint(Checkpoint(GROUP, "0", 2**64, "0", 1))
        assert await checkpoints(store) == {}
        await first(store)


async def test_a_file_of_an_earlier_version_gets_states_and_stays_usable_by_it(path: Path) -> None:
    async with opened(path) as store:
        await first(store)
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE ownership DROP COLUMN state")
        db.commit()
    async with opened(path) as store:
        row = await granted(store, renew((await rows(store))["0"], state="stopped"))
        assert (await rows(store))["0"].state == "stopped"
        with closing(sqlite3.connect(path)) as db:  # as an earlier version writes it
            names = [c[1] for c in db.execute("PRAGMA table_info(ownership)") if c[1] != "state"]
            listed = ", ".join(names)
            values = db.execute(f"SELECT {listed} FROM ownership").fetchone()
            marks = ", ".join("?" * len(names))
            db.execute(f"INSERT OR REPLACE INTO ownership ({listed}) VALUES ({marks})", values)
            db.commit()
        listed_row = (await rows(store))["0"]
        assert (listed_row.owner, listed_row.epoch, listed_row.state) == ("a", row.epoch, "")
