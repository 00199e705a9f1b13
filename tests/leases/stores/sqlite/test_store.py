"""Locks and deadlines of a lease file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import Checkpoint, Unknown, claim, renew
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.leases.contract.calls import first, granted, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.lease_files import locked, opened


async def test_a_write_is_unknown_if_the_file_stays_locked(path: Path) -> None:
    async with opened(path) as patient, opened(path, deadline_s=0.2) as hasty:
        row = await first(patient)
        with locked(path):
            (outcome,) = await hasty.claim_ownership(GROUP, [renew(row)])
            assert isinstance(outcome, Unknown)
            assert "leases.db" in outcome.why
            raised = await hasty.update_checkpoint(Checkpoint(GROUP, "0", 1, "1", 1))
            assert isinstance(raised, Unknown)
            with pytest.raises(StoreUnavailable):
                await hasty.beat(GROUP, "a")
            # Readers do not wait for writers.
            assert (await rows(patient))["0"].etag == row.etag
        assert (await rows(patient))["0"].etag == row.etag
        await granted(patient, renew(row))


async def test_a_locked_file_is_named_in_the_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def do_not_wait(db: sqlite3.Connection, until: float) -> None:
        db.execute("PRAGMA busy_timeout = 0")

    monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.set_deadline", do_not_wait)
    async with opened(path) as store:
        with locked(path):
            outcome = await write(store, claim(None, "0", "a"))
            assert isinstance(outcome, Unknown)
            assert "stays locked by another process" in outcome.why
            with pytest.raises(StoreUnavailable, match="stays locked by another process"):
                await store.beat(GROUP, "a")
        await first(store)


async def test_a_call_past_its_deadline_is_not_made(path: Path) -> None:
    """Its caller already has the outcome unknown, so it must not be made later."""
    async with opened(path) as patient, opened(path, deadline_s=0.2) as hasty:
        mended = threading.Event()
        assert hasty._thread is not None
        hanging = asyncio.create_task(hasty._thread.run(lambda until: mended.wait(), 3600))
        await asyncio.sleep(0)
        try:
            outcome = await write(hasty, claim(None, "0", "a"))
            await asyncio.gather(*(write(hasty, claim(None, "1", "a")) for _ in range(50)))
            assert (
                hasty._thread._thread._work_queue.qsize() == 0
            )  # they wait where they can be cancelled
        finally:
            mended.set()
            await hanging
        assert isinstance(outcome, Unknown)
        hasty._deadline_s = 60
        assert await hasty.list_checkpoints(GROUP) == []  # it ran after the claim
        assert await rows(patient) == {}


async def test_a_permanently_locked_file_cannot_be_opened(path: Path) -> None:
    async with opened(path) as store:
        await first(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=r"locked|did not respond"):
            async with SqliteStore(path, deadline_s=0.2):
                pass
    async with opened(path) as store:
        assert "0" in await rows(store)
