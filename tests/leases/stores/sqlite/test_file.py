"""Opening and closing a lease file with failures: nothing stays open, every error is raised."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from pumphouse.errors import StoreError
from pumphouse.leases.stores.sqlite.file import open_file
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.leases.contract.calls import first, rows
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.test_store import opened, take_away


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


class SlowOpening:
    """The first opening waits for `released`; later ones do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.mended = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.open_file", self)

    def __call__(self, path: Path, until: float) -> sqlite3.Connection:
        self.threads.append(threading.current_thread())
        if len(self.threads) == 1:
            self.begun.set()
            self.mended.wait(60)
        return open_file(path, until)


def files(path: Path) -> list[str]:
    """The last connection to close removes the other files."""
    return [one.name for one in path.parent.iterdir()]


async def test_a_cancelled_opening_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, store = SlowOpening(monkeypatch), SqliteStore(path)
    opening = asyncio.create_task(store.__aenter__())
    await asyncio.to_thread(slow.begun.wait, 60)
    opening.cancel()
    await asyncio.sleep(0.01)
    slow.mended.set()
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
        slow.mended.set()
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
        take_away(path, None)
        return db

    monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.open_file", open_and_lose)
    async with opened(path) as store:
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.list_ownership(GROUP)
