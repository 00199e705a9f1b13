"""Locks and deadlines of a lease file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import Checkpoint, Granted, Unknown, claim, renew
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.leases.contract.calls import first, granted, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.lease_files import locked, opened

PARTITIONS = 40


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
        assert hasty._opened is not None
        thread = hasty._opened.thread
        hanging = asyncio.create_task(thread.run(lambda until: mended.wait(), 3600))
        await asyncio.sleep(0)
        try:
            outcome = await write(hasty, claim(None, "0", "a"))
            await asyncio.gather(*(write(hasty, claim(None, "1", "a")) for _ in range(50)))
            assert thread._waiting == {}
            assert thread._thread._work_queue.qsize() == 0
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


# -- several event loops --------------------------------------------------------------------------


async def claim_all(store: SqliteStore, owner: str, together: threading.Barrier) -> set[str]:
    """Claim every free partition, at the same time as the other threads; returns those granted."""
    async with store:
        await asyncio.to_thread(together.wait, 60)
        claims = (claim(None, str(partition), owner) for partition in range(PARTITIONS))
        outcomes = await asyncio.gather(*(write(store, row) for row in claims))
        await store.beat(GROUP, owner)
    return {outcome.row.partition for outcome in outcomes if isinstance(outcome, Granted)}


async def test_event_loops_in_several_threads_share_one_store(path: Path) -> None:
    store, together = SqliteStore(path, deadline_s=60), threading.Barrier(4)
    threads = [
        asyncio.to_thread(asyncio.run, claim_all(store, owner, together)) for owner in "abcd"
    ]
    granted_to = await asyncio.gather(*threads)
    assert sorted(int(p) for each in granted_to for p in each) == list(range(PARTITIONS))
    async with store:
        stored = await rows(store)
    for owner, partitions in zip("abcd", granted_to, strict=True):
        assert {p for p, row in stored.items() if row.owner == owner} == partitions


def test_an_event_loop_that_ended_does_not_block_others(path: Path) -> None:
    """The first loop is left in the middle of its calls, and never closes its store."""
    store = SqliteStore(path, deadline_s=60)
    abandoned = asyncio.new_event_loop()
    try:
        abandoned.run_until_complete(store.__aenter__())
        assert store._opened is not None
        thread, mended = store._opened.thread, threading.Event()
        calls = [lambda until: mended.wait(60), lambda until: None]
        tasks = [abandoned.create_task(thread.run(call, 60)) for call in calls]
        abandoned.run_until_complete(asyncio.sleep(0))
        mended.set()
        asyncio.run(claim_one(store))
        for task in tasks:
            task.cancel()
        abandoned.run_until_complete(asyncio.wait(tasks))
    finally:
        abandoned.close()
    asyncio.run(claim_one(store, "1"))


async def claim_one(store: SqliteStore, partition: str = "0") -> None:
    async with store:
        await granted(store, claim(None, partition, "a"))
