"""A reader of the Delta tables finds each row once, after repeated batches and crashes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pumphouse.errors import OptionError
from pumphouse.homes.record import delta
from pumphouse.homes.record.delta import DeltaArchive, open_delta
from pumphouse.homes.record.positions import BatchId
from pumphouse.homes.record.stage import RecordSettings, check
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from tests.homes.record.rows import activity, alert, as_tables, reached


def batch(first: int, count: int, minute: int = 0) -> dict[str, pa.Table]:
    activities = [activity(first + number, minute) for number in range(count)]
    return as_tables(activities, [alert(first, minute)], first=first)


def rows(folder: Path, hub: str = ACTIVITY_HUB) -> list[int]:
    table = DeltaTable(folder / hub).to_pyarrow_table()
    assert "date" in table.column_names
    return sorted(table["sequence"].to_pylist())


def put(archive: DeltaArchive, tables: dict[str, pa.Table], number: int, query: str = "q") -> int:
    return archive.append(tables, reached(tables), BatchId(query, number))


def test_a_batch_is_stored_once(tmp_path: Path) -> None:
    archive = open_delta(str(tmp_path))
    assert put(archive, batch(0, 3), 0) == 4
    assert put(archive, batch(0, 3), 0) == 0
    assert put(archive, batch(3, 2), 1) == 3
    assert put(open_delta(str(tmp_path)), batch(3, 2), 1) == 0
    assert rows(tmp_path) == [0, 1, 2, 3, 4]
    assert rows(tmp_path, ALERTS_HUB) == [0, 3]
    table = DeltaTable(tmp_path / ACTIVITY_HUB)
    assert table.transaction_version("pumphouse/query/q") == 1
    assert table.transaction_version("pumphouse/activity/0") == 5
    assert table.version() == 1  # repeated batches have no commit


def test_other_batches_after_a_lost_checkpoint_add_only_new_rows(tmp_path: Path) -> None:
    put(open_delta(str(tmp_path)), batch(0, 4), 7)
    assert put(open_delta(str(tmp_path)), batch(0, 6), 0, query="new") == 2
    assert rows(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_a_crash_between_the_tables_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, tables = open_delta(str(tmp_path)), batch(0, 3)
    commit = DeltaArchive._commit

    def crashing(self: DeltaArchive, hub: str, *rest: object) -> None:
        if hub == ALERTS_HUB:
            raise KeyboardInterrupt
        commit(self, hub, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaArchive, "_commit", crashing)
    with pytest.raises(KeyboardInterrupt):
        put(archive, tables, 0)
    monkeypatch.undo()
    assert rows(tmp_path) == [0, 1, 2]
    assert put(open_delta(str(tmp_path)), tables, 0) == 1
    assert (rows(tmp_path), rows(tmp_path, ALERTS_HUB)) == ([0, 1, 2], [0])


def test_two_writers_cannot_store_the_same_rows(tmp_path: Path) -> None:
    put(open_delta(str(tmp_path)), batch(0, 1), 0)
    first, second = open_delta(str(tmp_path)), open_delta(str(tmp_path))
    stale = second._current(ACTIVITY_HUB)
    assert stale is not None
    put(first, batch(1, 3), 1)
    tables = batch(1, 3)
    with pytest.raises(CommitFailedError, match="Concurrent"):
        second._commit(ACTIVITY_HUB, stale, tables[ACTIVITY_HUB], {"0": 4}, BatchId("q", 1))
    assert put(second, tables, 1) == 0
    assert rows(tmp_path) == [0, 1, 2, 3]


def test_merged_files_and_checkpoints_of_the_log_keep_rows_and_positions(tmp_path: Path) -> None:
    archive = open_delta(str(tmp_path))
    for number in range(delta.COMPACT_EVERY):
        put(archive, batch(number * 2, 2), number)
        merged = archive.tidy()
    assert merged > 0
    DeltaTable(tmp_path / ACTIVITY_HUB).create_checkpoint()
    again = open_delta(str(tmp_path))
    assert again.sweep() == 0  # younger than a week
    assert put(again, batch(14, 2), 0, query="new") == 0
    assert rows(tmp_path) == list(range(16))
    assert len(DeltaTable(tmp_path / ACTIVITY_HUB).file_uris()) == 1


def test_the_format_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "_manifest.json").write_text("{}")
    with pytest.raises(OptionError, match="has Parquet files of the format parquet: choose a"):
        check(RecordSettings(str(tmp_path), storage_format="delta"))
    key = "AccountName=x;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:1/x;Container=c"
    with pytest.raises(OptionError, match="delta needs --storage with a folder"):
        open_delta(key)
    check(RecordSettings(str(tmp_path / "delta"), storage_format="delta"))
