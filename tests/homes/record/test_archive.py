"""A reader of the archive finds each row once, after repeated batches, merges and crashes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.errors import OptionError, RecordsContended, RecordsDamaged
from pumphouse.homes.record import archive as archive_module
from pumphouse.homes.record.archive import Archive, Snapshot, snapshot
from pumphouse.homes.record.folder import FileInfo, Folder, LocalFolder, open_folder
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, DAY_MS, HOUR_MS, MINUTE_MS
from tests.azurite.fixtures import Storage
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached


class Crash(Exception):
    """Stands for the end of the process."""


class Crashing:
    """A folder that crashes after a number of writes, before the next one or in it."""

    def __init__(self, inner: Folder, after: int) -> None:
        self.inner, self.left = inner, after

    def count(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def read(self, name: str) -> tuple[bytes, str] | None:
        return self.inner.read(name)

    def write(self, name: str, data: bytes) -> None:
        self.count()
        self.inner.write(name, data)

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        self.count()
        return self.inner.replace(name, data, tag)

    def delete(self, name: str) -> None:
        self.count()
        self.inner.delete(name)

    def list(self, prefix: str) -> list[FileInfo]:
        return self.inner.list(prefix)


class Now:
    """A clock in milliseconds that the test moves."""

    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture(params=["local", "blob"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return open_folder(tmp_path / "records")
    storage: Storage = request.getfixturevalue("storage")
    return open_folder(f"{storage.direct};Container={storage.container}")


def batch(number: int, rows: int = 10, minutes: int = 1) -> dict[str, pa.Table]:
    """The n-th batch of a stream, with one alert."""
    made = [activity(row, minute=number * minutes) for row in range(rows)]
    activities = as_tables(made, first=number * rows)
    return activities | as_tables(alerts=[alert(number, number * minutes)], first=number)


def append(archive: Archive, *numbers: int, minutes: int = 1) -> None:
    for number in numbers:
        rows = batch(number, minutes=minutes)
        archive.append(rows, reached(rows))


def sequences(view: Snapshot, hub: str = ACTIVITY_HUB) -> list[int]:
    rows = view.table(hub)
    return [] if rows is None else sorted(rows["sequence"].to_pylist())


def view(folder: Folder) -> Snapshot:
    return Snapshot(folder, archive_module.read_manifest(folder)[0])


def test_rows_are_stored_by_the_hour_of_their_event_time(folder: Folder, now: Now) -> None:
    archive = Archive(folder, now)
    rows = as_tables([activity(1, 5), activity(1, 65), activity(2, 70), activity(2, 26 * 60)])
    assert archive.append(rows, reached(rows)) == 4
    folders = {file.hour.folder: file.rows for file in view(folder).files(ACTIVITY_HUB)}
    assert folders == {
        "activity/date=2026-10-15/hour=02": 1,
        "activity/date=2026-10-15/hour=03": 2,
        "activity/date=2026-10-16/hour=04": 1,
    }
    assert {file.name.rpartition("/")[0] for file in folder.list("activity/")} == set(folders)
    second = view(folder).table(ACTIVITY_HUB, START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    assert second is not None
    assert second.num_rows == 2


def test_a_repeated_batch_changes_nothing(folder: Folder, now: Now) -> None:
    append(Archive(folder, now), 0, 1)
    later = Archive(folder, now)
    append(later, 1)
    assert later.positions == {ACTIVITY_HUB: {"0": 20}, ALERTS_HUB: {"0": 2}}
    wider = as_tables([activity(row) for row in range(15)], first=15)  # overlaps
    assert later.append(wider, reached(wider)) == 10
    assert sequences(view(folder)) == list(range(30))
    assert sequences(view(folder), ALERTS_HUB) == [0, 1]


def test_a_merge_of_small_files_does_not_change_the_rows(folder: Folder, now: Now) -> None:
    archive = Archive(folder, now)
    append(archive, *range(15))
    before = view(folder)
    append(archive, 15)
    assert archive.tidy() == 2  # activities, and alerts
    assert len(view(folder).files(ACTIVITY_HUB)) == 1
    assert sequences(view(folder)) == list(range(160))
    assert sequences(before) == list(range(150))  # an earlier snapshot can still be read
    merged = view(folder).table(ACTIVITY_HUB)
    assert merged is not None
    assert merged["home"].to_pylist() == sorted(merged["home"].to_pylist())
    now.ms += archive_module.GRACE_MS
    archive.tidy()
    names = [file.name for file in folder.list("activity/")]
    assert names == [file.name for file in view(folder).files(ACTIVITY_HUB)]


def test_late_rows_are_stored_in_their_hour(folder: Folder, now: Now) -> None:
    archive = Archive(folder, now)
    append(archive, *range(4), minutes=60)
    late = as_tables([activity(7, minute=3)], first=40)
    archive.append(late, reached(late))
    hours = sorted(file.hour_ms for file in view(folder).files(ACTIVITY_HUB))
    assert hours == [START_MS, *(START_MS + hour * HOUR_MS for hour in range(4))]


def test_past_days_can_still_be_read(folder: Folder, now: Now) -> None:
    archive = Archive(folder, now)
    append(archive, *range(4), minutes=24 * 60)
    archive.tidy()
    assert len(view(folder).manifest.days) == 4  # two of each hub
    append(archive, 4, minutes=24 * 60)
    late = as_tables([activity(7, minute=3)], first=50)
    archive.append(late, reached(late))
    archive.tidy()
    assert sequences(view(folder)) == list(range(51))
    assert len(view(folder).files(ACTIVITY_HUB, START_MS, START_MS + DAY_MS - HOUR_MS)) == 2


class MemoryFolder:
    """A folder in memory, because hundreds of crashes on a disk would be slow."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.writes = 0

    def read(self, name: str) -> tuple[bytes, str] | None:
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.writes += 1
        self.files[name] = (data, str(self.writes))

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        assert (self.files[name][1] if name in self.files else None) == tag
        self.write(name, data)
        return str(self.writes)

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def list(self, prefix: str) -> list[FileInfo]:
        return [FileInfo(name, 0) for name in self.files if name.startswith(prefix)]


def work(archive: Archive) -> None:
    """Batches, merges, the end of an hour and of days."""
    for number in range(20):
        minute = number if number < 17 else (number - 16) * 24 * 60
        rows = as_tables([activity(number, minute)], first=number)
        archive.append(rows, reached(rows))
        archive.tidy()


def test_a_crash_at_any_write_neither_loses_nor_duplicates_rows(now: Now) -> None:
    for after in range(1000):
        folder, crashed = MemoryFolder(), False
        try:
            work(Archive(Crashing(folder, after), now, grace_ms=0))
        except Crash:
            crashed = True
        stored = sequences(view(folder))
        assert stored == list(range(len(stored)))
        work(Archive(folder, now, grace_ms=0))  # the stream restarts with all batches
        assert sequences(view(folder)) == list(range(20))
        if not crashed:
            break
    assert 60 < after < 1000  # a crash at every write and every deletion


def test_a_listing_stays_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "other.parquet").write_text("")
    folder = LocalFolder(tmp_path / "records")
    assert folder.list("") == []
    for name in ("a/b/one", "a/two", "b/three"):
        folder.write(name, b"")
    assert {file.name for file in folder.list("")} == {"a/b/one", "a/two", "b/three"}
    assert {file.name for file in folder.list("a/")} == {"a/b/one", "a/two"}
    assert {file.name for file in folder.list("a/t")} == {"a/two"}


def test_files_left_by_a_crash_are_deleted(folder: Folder, now: Now) -> None:
    append(Archive(folder, now), 0)
    with pytest.raises(Crash):
        append(Archive(Crashing(folder, 1), now), 1)
    assert len(folder.list("activity/")) == 2
    after = Archive(folder, lambda: max(file.written_ms for file in folder.list("")) + MINUTE_MS)
    assert after.sweep() == 0  # it may be part of a running append
    later = Archive(folder, lambda: 1 << 60)
    assert later.sweep() == 1
    assert sequences(view(folder)) == list(range(10))


def test_a_second_writer_is_refused(folder: Folder, now: Now) -> None:
    first, second = Archive(folder, now), Archive(folder, now)
    append(first, 0)
    with pytest.raises(RecordsContended, match="only one pipeline"):
        append(second, 0)
    append(first, 1)
    assert sequences(view(folder)) == list(range(20))


def test_the_error_names_a_missing_file(tmp_path: Path, now: Now) -> None:
    append(Archive(LocalFolder(tmp_path), now), 0)
    (victim,) = tmp_path.glob("activity/*/*/*.parquet")
    victim.unlink()
    with pytest.raises(RecordsDamaged, match=victim.name):
        snapshot(tmp_path).table(ACTIVITY_HUB)


def test_other_programs_read_the_files_by_name(tmp_path: Path, now: Now) -> None:
    import pyarrow.dataset as ds

    append(Archive(LocalFolder(tmp_path), now), *range(3))
    names = [str(tmp_path / file.name) for file in snapshot(str(tmp_path)).files(ACTIVITY_HUB)]
    assert ds.dataset(names, format="parquet").to_table().num_rows == 30


def test_repr_omits_the_account_key(storage: Storage) -> None:
    text = repr(open_folder(f"{storage.direct};Container={storage.container}"))
    assert text == f"<BlobFolder {storage.container}>"


def test_a_lease_store_is_refused_as_folder() -> None:
    with pytest.raises(OptionError, match="bloblease"):
        open_folder("bloblease:AccountName=x;AccountKey=eA==;Container=c")
