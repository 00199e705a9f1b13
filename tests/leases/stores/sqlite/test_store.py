"""The lease file beyond the contract: processes, crashes, clocks and damaged files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.model import Checkpoint, Granted, Unknown, claim, nominate, renew
from pumphouse.leases.stores.sqlite.clock import MachineTime, age_s, read_machine_time
from pumphouse.leases.stores.sqlite.file import APPLICATION_ID, VERSION, _create_tables
from pumphouse.leases.stores.sqlite.store import MEMBER_KEPT_S, SqliteStore
from tests.leases.contract.calls import checkpoints, first, granted, members, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.racer import GROUP as RACED

RACER = Path(__file__).with_name("racer.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@asynccontextmanager
async def opened(path: Path, deadline_s: float = 60) -> AsyncIterator[SqliteStore]:
    """A store with this deadline, except for opening and closing."""
    async with SqliteStore(path, deadline_s=60) as store:
        store._deadline_s = deadline_s
        yield store
        store._deadline_s = 60


def spoil(path: Path, after: int) -> None:
    """Overwrite all but the beginning of a file with garbage."""
    whole = path.read_bytes()
    path.write_bytes(whole[:after] + os.urandom(len(whole) - after))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def take_away(path: Path, replacement: bytes | None) -> None:
    path.rename(path.with_name("old.db"))
    if replacement is not None:
        path.write_bytes(replacement)


# -- many processes -------------------------------------------------------------------------------


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


# -- locks and deadlines --------------------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process during a write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


async def test_a_write_is_unknown_if_the_file_stays_locked(path: Path) -> None:
    async with opened(path) as patient, opened(path, deadline_s=0.2) as hasty:
        row = await first(patient)
        with locked(path):
            (outcome,) = await hasty.claim_ownership(GROUP, [renew(row)])
            assert isinstance(outcome, Unknown)
            assert "leases.db" in outcome.why
            raised = await hasty.update_checkpoint(Checkpoint(GROUP, "0", 1, "1", 1))
            assert isinstance(raised, Unknown)
            with pytest.raises(StoreError):
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

    monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.set_busy_timeout", do_not_wait)
    async with opened(path) as store:
        with locked(path):
            outcome = await write(store, claim(None, "0", "a"))
            assert isinstance(outcome, Unknown)
            assert "stays locked by another process" in outcome.why
            with pytest.raises(StoreError, match="stays locked by another process"):
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
        with pytest.raises(StoreError, match=r"locked|did not respond"):
            async with SqliteStore(path, deadline_s=0.2):
                pass
    async with opened(path) as store:
        assert "0" in await rows(store)


# -- the clock ------------------------------------------------------------------------------------


class Machine:
    """A machine that the test reboots and whose wall clock it sets."""

    def __init__(self) -> None:
        self.boot, self.up_s, self.wall_s = "first", 5000.0, 1_700_000_000.0

    def __call__(self) -> MachineTime:
        return MachineTime(self.boot, self.up_s, self.wall_s)

    def run(self, seconds: float) -> None:
        self.up_s += seconds
        self.wall_s += seconds

    def restart(self, off_s: float) -> None:
        self.boot, self.up_s, self.wall_s = self.boot + "+", 1.0, self.wall_s + off_s


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
async def test_setting_the_wall_clock_changes_no_age(path: Path, jump_s: float) -> None:
    machine = Machine()
    async with SqliteStore(path, clock=machine) as store:
        await granted(store, nominate(await first(store, host="a"), "b", 30.0))
        await store.beat(GROUP, "a")
        machine.run(10)
        machine.wall_s += jump_s
        row = (await rows(store))["0"]
        assert (row.age_s, row.deadline_s) == (10, 20)
        assert (await members(store))["a"].age_s == 10


@pytest.mark.parametrize(
    ("off_s", "up_s", "age"),
    [
        (600.0, 1.0, 600.0),  # the wall clock shows how long it was off
        (-86400.0, 1.0, 1.0),  # the wall clock went back: at least the uptime
        (-86400.0, 45.0, 45.0),  # a lease expires at the latest this long after the boot
        (0.0, 90_000.0, 90_000.0),
    ],
)
async def test_after_a_reboot_an_age_is_never_too_short(
    path: Path, off_s: float, up_s: float, age: float
) -> None:
    machine = Machine()
    async with SqliteStore(path, clock=machine) as store:
        await first(store)
    machine.restart(off_s)
    machine.up_s = up_s
    async with SqliteStore(path, clock=machine) as store:
        assert (await rows(store))["0"].age_s == age


def test_without_a_boot_id_a_smaller_uptime_is_a_reboot() -> None:
    assert age_s(MachineTime("", 100.0, 1000.0), MachineTime("", 130.0, 5000.0)) == 30
    assert age_s(MachineTime("", 100.0, 1000.0), MachineTime("", 30.0, 5000.0)) == 4000


async def test_ages_count_by_the_machines_clock(path: Path) -> None:
    before = read_machine_time()
    async with opened(path) as store:
        await first(store)
        age = (await rows(store))["0"].age_s
    after = read_machine_time()
    assert before.boot == after.boot
    assert 0 <= age <= after.up_s - before.up_s


async def test_a_member_without_beats_for_a_day_is_removed(path: Path) -> None:
    machine = Machine()
    async with SqliteStore(path, clock=machine) as store:
        await store.beat(GROUP, "gone")
        machine.run(MEMBER_KEPT_S)
        await store.beat(GROUP, "here")
        assert sorted(await members(store)) == ["gone", "here"]
        machine.run(1)
        await store.beat(GROUP, "here")
        assert sorted(await members(store)) == ["here"]


# -- the file -------------------------------------------------------------------------------------


async def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "leases.db"
    async with opened(path) as store:
        await first(store)
        for one in path.parent.iterdir():
            assert mode_of(one) == 0o600, one
    assert mode_of(path.parent) == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["leases.db"]


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
    spoil(path, after=4096)
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
        take_away(path, replacement)
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
