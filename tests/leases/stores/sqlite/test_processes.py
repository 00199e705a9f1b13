"""Many processes on one lease file: races, crashes, forks, threads."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pumphouse.errors import StoreError
from pumphouse.leases.model import Granted, claim
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.leases.contract.calls import checkpoints, first, members, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.lease_files import locked, opened
from tests.leases.stores.sqlite.racer import GROUP as RACED

RACER = Path(__file__).with_name("racer.py")


@contextmanager
def racers(path: Path, count: int, turns: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have opened the file and wait for a line to start."""
    command = [sys.executable, str(RACER), str(path)]
    started = [
        subprocess.Popen(
            [*command, f"racer-{n}", str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready 0\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.timeout(600)
async def test_eight_processes_lose_no_update(path: Path) -> None:
    """They also create the file concurrently."""
    turns = 15
    with racers(path, 8, turns) as racing:
        for process in racing:
            start(process)
        raised = [process.communicate()[0].splitlines() for process in racing]
        assert [process.returncode for process in racing] == [0] * 8
    lines = sorted(line for lines in raised for line in lines)
    everyone = range(1, 8 * turns + 1)
    assert lines == sorted([f"{word} {n}" for word in ("epoch", "count") for n in everyone])
    async with opened(path) as store:
        assert (await rows(store, RACED))["0"].epoch == 8 * turns
        assert (await checkpoints(store, RACED))["0"].sequence == 8 * turns
        assert sorted(await members(store, RACED)) == [f"racer-{n}" for n in range(8)]


@pytest.mark.timeout(600)
async def test_a_killed_process_leaves_a_consistent_file(path: Path) -> None:
    """Every granted write is stored, and at most one more, whose response was lost."""
    epoch = sequence = 0
    for reader in range(1, 7):
        with racers(path, 1, 1_000_000) as (process,):
            start(process)
            assert process.stdout is not None
            last = {"epoch": epoch, "count": sequence}
            for _ in range(7 * reader):
                word, number = process.stdout.readline().split()
                last[word] = int(number)
            process.kill()
            process.wait()
            # Not `communicate`: it does not see what `readline` has buffered.
            for line in process.stdout.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    word, number = line.split()
                    last[word] = int(number)
        async with opened(path) as store:
            epoch = (await rows(store, RACED))["0"].epoch
            mark = (await checkpoints(store, RACED))["0"].sequence
            assert epoch - last["epoch"] in (0, 1)
            assert mark is not None
            assert mark - last["count"] in (0, 1)
            sequence = mark
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_forked_process_must_open_its_own_store(path: Path) -> None:
    async with opened(path) as store:
        store._process -= 1  # as in the child of a fork
        with pytest.raises(StoreError, match="forked"):
            await store.list_ownership(GROUP)
        store._process += 1


async def test_the_event_loop_does_not_wait(path: Path) -> None:
    """While another process locks the file, other tasks continue."""
    async with opened(path) as store:
        with locked(path):
            claiming = asyncio.create_task(write(store, claim(None, "0", "a")))
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert not claiming.done()
        assert isinstance(await claiming, Granted)


async def test_several_hosts_of_one_process_may_share_a_store(path: Path) -> None:
    store = SqliteStore(path)
    async with store:
        async with store:
            await first(store)
        assert "0" in await rows(store)
    assert repr(store) == f"<SqliteStore {path} | closed>"
    async with store:
        assert "0" in await rows(store)
        assert repr(store) == f"<SqliteStore {path} | open>"


async def test_a_closed_store_raises(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="async with"):
        await store.list_ownership(GROUP)


async def test_no_thread_is_left_behind(path: Path) -> None:
    before = set(threading.enumerate())
    async with opened(path) as store:
        await first(store)
        (thread,) = set(threading.enumerate()) - before
        assert thread.name.startswith("pumphouse-sqlite")
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
