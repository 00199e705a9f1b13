"""Lease files that someone else has prepared: refused in time, with the row or table named."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.model import Checkpoint, Unknown, claim
from pumphouse.leases.stores.sqlite.file import VALUE_BYTES_MAX
from pumphouse.leases.stores.sqlite.store import ROW
from tests.leases.contract.calls import checkpoint_of, first, granted, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.lease_files import opened

NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
ENDLESS = f"{NUMBERS} SELECT max(x) FROM n"


def edit(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement, values)


async def lease_file(path: Path) -> None:
    """A file with one row, one checkpoint and one member."""
    async with opened(path) as store:
        await first(store)
        checkpoint_of(await store.update_checkpoint(Checkpoint(GROUP, "0", 1, "10", 1)))
        await store.beat(GROUP, "a", 4)


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("epoch", "seven"),
        ("epoch", -1),
        ("epoch", 2**63 - 1),
        ("epoch", 1.5),
        ("epoch", b"\x01"),
        ("owner", b"\xff\xfe"),
        ("etag", b"x"),
        ("successor", b""),
        ("deadline_s", "soon"),
        ("deadline_s", float("inf")),
        ("deadline_s", 1e300),
        ("rate", "fast"),
        ("rate", float("inf")),
        ("boot", b"x"),
        ("up_s", "long"),
        ("wall_s", float("-inf")),
        ("partition_id", b"0\x1b[31m\n"),
    ],
)
async def test_an_ownership_with_an_invalid_value_is_named(
    path: Path, column: str, value: object
) -> None:
    await lease_file(path)
    edit(path, f"UPDATE ownership SET {column} = ?", values=(value,))
    async with opened(path) as store:
        with pytest.raises(
            StoreError, match=r"leases\.db: the ownership row of.* has the"
        ) as raised:
            await store.list_ownership(GROUP)
        assert str(raised.value).isprintable()
        assert len(await store.list_checkpoints(GROUP)) == 1  # the store stays usable


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("sequence", "many"),
        ("sequence", -2),
        ("sequence", 0.5),
        ("event_offset", b"10"),
        ("event_offset", "1" * 5000),
        ("enqueued_ms", 2**62),
        ("enqueued_ms", -1),
        ("epoch", "x"),
        ("epoch", -5),
    ],
)
async def test_a_checkpoint_with_an_invalid_value_is_named_and_not_replaced(
    path: Path, column: str, value: object
) -> None:
    await lease_file(path)
    edit(path, f"UPDATE checkpoint SET {column} = ?", values=(value,))
    async with opened(path) as store:
        with pytest.raises(StoreError, match="the checkpoint of partition '0' has the"):
            await store.list_checkpoints(GROUP)
        with pytest.raises(StoreError, match="the checkpoint of partition '0' has the"):
            await store.update_checkpoint(Checkpoint(GROUP, "0", 2, "20", 1))
        assert list(await rows(store)) == ["0"]


@pytest.mark.parametrize(("column", "value"), [("max_partitions", 0), ("max_partitions", "x"),
                                               ("up_s", b"1"), ("name", b"a")])  # fmt: skip
async def test_a_member_with_an_invalid_value_is_named(
    path: Path, column: str, value: object
) -> None:
    await lease_file(path)
    edit(path, f"UPDATE member SET {column} = ?", values=(value,))
    async with opened(path) as store:
        with pytest.raises(StoreError, match=r"the member .* has the"):
            await store.list_ownership(GROUP)


async def test_an_unknown_state_reads_as_none(path: Path) -> None:
    await lease_file(path)
    edit(path, "UPDATE ownership SET state = 'of a later version'")
    async with opened(path) as store:
        assert (await rows(store))["0"].state == ""


async def test_text_that_is_not_unicode_is_an_error_without_control_characters(path: Path) -> None:
    await lease_file(path)
    edit(path, "UPDATE ownership SET owner = CAST(x'1b5b33316dff' AS TEXT)")
    async with opened(path) as store:
        with pytest.raises(StoreError, match=r"leases\.db cannot be used") as raised:
            await store.list_ownership(GROUP)
        assert str(raised.value).isprintable()


async def test_a_huge_value_is_not_loaded(path: Path) -> None:
    await lease_file(path)
    edit(path, f"UPDATE ownership SET owner = printf('%.*c', {VALUE_BYTES_MAX + 1}, 'x')")
    async with opened(path) as store:
        with pytest.raises(StoreError, match=f"a value of more than {VALUE_BYTES_MAX} bytes"):
            await store.list_ownership(GROUP)


async def test_more_rows_than_any_group_has_are_not_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumphouse.leases.stores.sqlite.store.ROWS_MAX", 3)
    async with opened(path) as store:
        await store.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(3)])
        assert len(await rows(store)) == 3
        await granted(store, claim(None, "3", "a"))
        with pytest.raises(StoreError, match="table ownership has more than 3 rows of"):
            await store.list_ownership(GROUP)


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["DROP TABLE checkpoint"], "table checkpoint has no column"),
        (["ALTER TABLE member DROP COLUMN up_s"], "table member has no column up_s"),
        (["DROP TABLE member", f"CREATE VIEW member AS {ENDLESS}"], "it has a view"),
        (
            [f"CREATE TRIGGER t BEFORE INSERT ON ownership BEGIN {ENDLESS}; END"],
            "it has a trigger",
        ),
        (["CREATE VIRTUAL TABLE f USING fts5(x)"], "it has a virtual table"),
    ],
)
async def test_a_file_with_other_tables_is_refused(
    path: Path, statements: list[str], words: str
) -> None:
    await lease_file(path)
    edit(path, *statements)
    with pytest.raises(StoreError, match=f"changed by another program: {words}"):
        async with opened(path):
            pass


async def test_an_endless_statement_ends_at_the_deadline(path: Path) -> None:
    """A view that is created while the file is open is not seen when it is opened."""
    async with opened(path, deadline_s=0.3) as store:
        names = [*ROW.split(", "), "namespace", "hub", "consumer_group"]
        columns = ", ".join(f"max(x) AS {name}" for name in names)
        edit(path, "DROP TABLE ownership")
        edit(path, f"CREATE VIEW ownership AS {NUMBERS} SELECT {columns} FROM n")
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not respond"):
            await store.list_ownership(GROUP)
        assert isinstance(await write(store, claim(None, "0", "a")), Unknown)
        store._deadline_s = 60
        assert await store.list_checkpoints(GROUP) == []  # the thread is free again
        assert time.monotonic() - started < 30
