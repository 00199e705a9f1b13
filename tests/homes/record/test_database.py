"""A batch, its sums and its positions are stored once, in SQLite and in PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.errors import ConnectionFailed, OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.record import sums
from pumphouse.homes.record.database import Database, DatabaseConnection, StoreResult, open_database
from pumphouse.homes.record.postgres import PostgresConnection
from pumphouse.homes.record.sqlite import SqliteConnection
from pumphouse.homes.record.tables import TABLES
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, HOUR_MS, MINUTE_MS, Activity
from tests.homes.kinds.kinds_files import ALL_RULES, kinds_of
from tests.homes.record.recount import recount
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached


def connect(url: str) -> DatabaseConnection:
    if url.startswith("postgresql:"):
        return PostgresConnection(url)
    return SqliteConnection(url.removeprefix("sqlite://"))


def query(url: str, query: str) -> list[tuple[object, ...]]:
    opened = connect(url)
    try:
        return sorted(tuple(row) for row in opened.query(query))
    finally:
        opened.close()


def count(url: str, table: str) -> int:
    (number,) = query(url, f"SELECT count(*) FROM {table}")[0]
    assert isinstance(number, int)
    return number


def store(database: Database, *activities: Activity, first: int = 0) -> StoreResult:
    rows = as_tables(activities, first=first)
    return database.store(rows, reached(rows))


def test_every_column_is_stored(database: Database, url: str) -> None:
    faulty = activity(3, 1, "smoke", None)
    batch = as_tables([activity(1), faulty], [alert(2)])
    assert database.store(batch, reached(batch)) == StoreResult(rows=3)
    for hub, rows in batch.items():
        names = list(TABLES[hub].columns)
        expected = [tuple(row[name] for name in names) for row in rows.to_pylist()]
        assert query(url, f"SELECT {', '.join(names)} FROM {hub}") == sorted(expected)
    assert query(url, "SELECT fault FROM activity WHERE value IS NULL") == [("no answer",)]
    assert database.positions() == {ACTIVITY_HUB: {"0": 2}, ALERTS_HUB: {"0": 1}}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:hunter2@[::1/x", "invalid URL of the database: end of string"),
        ("postgresql://me:hunt%zzer2@h/x", "invalid URL of the database: invalid percent"),
        ("postgresql://me:hunter2@h/x?foo=1", "invalid URL of the database: invalid URI"),
        (
            "postgresql://me:hunter2@127.0.0.1:1/x",
            "cannot connect to PostgreSQL: .* port 1 failed: Connection",
        ),
        ("mysql://me:hunter2@h/x", "unsupported database: use sqlite:///PATH or postgresql:"),
        ("blob://account/x", "unsupported database blob:"),
        ("AccountName=x;AccountKey=hunter2", "unsupported database: use"),
        ("/proc/nowhere/homes.db", "/proc/nowhere/homes.db cannot be used as a database: "),
        ("/proc/version", "/proc/version cannot be used as a database: "),
    ],
)
def test_an_unusable_database_is_reported_without_the_password(url: str, message: str) -> None:
    with pytest.raises((OptionError, ConnectionFailed), match=message) as refused:
        open_database(url)
    assert "hunter2" not in str(refused.value)
    assert "hunt%zzer2" not in str(refused.value)


def test_text_with_nul_characters_is_stored(database: Database, url: str) -> None:
    """Spark would repeat a batch that cannot be stored for ever."""
    faulty = activity(3, 1, "smoke", None)
    faults = ["cut\0off", 'quo"ted', "two\nlines", "\\.", "", "\N{SNOWMAN}"]
    batch = [
        replace(faulty, reading=replace(faulty.reading, fault=fault, seq=number))
        for number, fault in enumerate(faults)
    ]
    assert store(database, *batch).rows == len(batch)
    stored = [fault for _, fault in query(url, "SELECT seq, fault FROM activity")]
    assert stored[1:] == faults[1:]
    assert stored[0] in ("cut\0off", "cut\N{REPLACEMENT CHARACTER}off")


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """It shows who was at home, and when. The modes of what exists are kept."""
    path = tmp_path / "new" / "homes.db"
    with closing(open_database(str(path))) as database:
        store(database, activity(1))
        modes = [each.stat().st_mode & 0o777 for each in (path.parent, *path.parent.iterdir())]
        assert modes == [0o700, 0o600, 0o600, 0o600]  # with its -wal and -shm
    path.chmod(0o640)
    open_database(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_repeated_batch_changes_nothing(database: Database, url: str) -> None:
    batch = [activity(home) for home in range(10)]
    assert store(database, *batch).rows == 10
    assert store(database, *batch) == StoreResult()
    restarted = open_database(url)  # after a crash, in batches of other sizes
    assert store(restarted, *batch[5:], activity(10), activity(11), first=5) == StoreResult(rows=2)
    restarted.close()
    assert count(url, "activity") == 12
    assert query(url, "SELECT sum(readings) FROM minutes") == [(12,)]


def test_a_duplicate_reading_is_stored_once(database: Database, url: str) -> None:
    twice = [activity(1), activity(2), activity(1)]
    assert store(database, *twice) == StoreResult(rows=3, duplicates=1)
    assert store(database, activity(2), activity(3), first=3) == StoreResult(rows=2, duplicates=1)
    assert count(url, "activity") == 3
    assert query(url, "SELECT home, readings FROM home_hours") == [
        ("h000001", 1.0),
        ("h000002", 1.0),
        ("h000003", 1.0),
    ]
    alerts = as_tables(alerts=[alert(1), alert(1)])
    assert database.store(alerts, reached(alerts)).duplicates == 1
    assert count(url, "alerts") == 1


def test_readings_behind_the_watermark_are_stored_and_counted(database: Database, url: str) -> None:
    on_time = sums.DELAY_MS // MINUTE_MS
    assert (
        store(database, activity(0, 60), activity(0, 0)).behind_watermark == 0
    )  # the first readings are never behind it
    behind, prompt = activity(0, 60 - on_time - 1), activity(0, 60 - on_time)
    assert store(database, behind, prompt, first=2) == StoreResult(rows=2, behind_watermark=1)
    assert store(database, activity(1, 1), first=4).behind_watermark == 1
    rows = query(url, "SELECT minute, readings, late FROM minutes")
    after = [((minute - START_MS) // MINUTE_MS, *rest) for minute, *rest in rows]  # type: ignore[operator]
    assert after == [(0, 1, 0), (1, 1, 1), (49, 1, 1), (50, 1, 0), (60, 1, 0)]


def many() -> list[Activity]:
    """Two and a half hours of some homes, with all summed measures."""
    made = []
    for minute in range(150):
        for home in range(4):
            made.append(activity(home, minute, "motion", float(1 + (home + minute) % 3)))
        made.append(activity(minute % 4, minute, "smoke", 61.5 if minute % 7 else None))
        made.append(activity(minute % 4, minute, "door", 1.0))
    return made


def expected_sums(
    activities: Sequence[Activity], span_ms: int, by_region: bool
) -> list[tuple[object, ...]]:
    """The expected sums, computed in Python."""
    totals: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for each in activities:
        read = each.reading
        key = (read.at // span_ms * span_ms, each.region if by_region else read.home)
        value = read.value or 0.0
        opened = read.sensor in ("door", "window") and each.why == "change" and value == 1
        alarm = read.sensor == "smoke" and value >= 60
        moved = value if read.sensor == "motion" else 0.0
        measures = [1, moved, opened, alarm, read.fault is not None]
        totals[key] = [old + new for old, new in zip(totals[key], measures, strict=True)]
    return sorted((*key, *values) for key, values in totals.items())


def test_the_sums_equal_a_count_of_all_rows(database: Database, url: str) -> None:
    activities = many()
    for first in range(0, len(activities), 130):  # batches overlap by 20 rows
        start = max(0, first - 20)
        store(database, *activities[start : first + 130], first=start)
    names = ", ".join(sums.MEASURES)
    for table, span, by_region in (
        (sums.MINUTES, MINUTE_MS, True),
        (sums.HOME_HOURS, HOUR_MS, False),
    ):
        stored = query(url, f"SELECT {table.time}, {table.key}, {names} FROM {table.table}")
        assert stored == expected_sums(activities, span, by_region)
        assert stored == query(url, recount(table, "activity"))
    assert query(url, "SELECT sum(faults), sum(alarms) FROM minutes") == [(22, 128)]


class Failing:
    """A connection that fails at the n-th call, without a commit."""

    def __init__(self, inner: DatabaseConnection, after: int) -> None:
        self.inner, self.left = inner, after

    def __getattr__(self, name: str) -> object:
        if name in ("run", "stage", "run_many", "commit"):
            if self.left == 0:
                raise ConnectionError("gone")
            self.left -= 1
        return getattr(self.inner, name)


def test_a_failed_transaction_stores_no_row_of_its_batch(database: Database, url: str) -> None:
    store(database, activity(0))
    batch = as_tables([activity(0), activity(1), activity(2)], [alert(1)])
    for after in range(100):
        inner = connect(url)
        failing = Database(inner)
        failing._connection = Failing(inner, after)  # type: ignore[assignment]
        try:
            failing.store(batch, reached(batch))
        except ConnectionError:
            assert (count(url, "activity"), count(url, "alerts")) == (1, 0)
            assert query(url, "SELECT sum(readings) FROM home_hours") == [(1,)]
            assert database.positions() == {ACTIVITY_HUB: {"0": 1}}
        else:
            break
        finally:
            inner.close()
    assert after > 5
    assert (count(url, "activity"), count(url, "alerts")) == (3, 1)


def test_concurrent_writers_store_each_row_once(url: str) -> None:
    open_database(url).close()
    rows = [activity(home) for home in range(50)]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            opened = open_database(url)
            for first in range(0, 50, 5):
                store(opened, *rows[first : first + 5], first=first)
            opened.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert count(url, "activity") == 50
    assert query(url, "SELECT sum(readings) FROM minutes") == [(50,)]


def test_text_is_stored_unchanged(database: Database, url: str) -> None:
    batch = as_tables(alerts=[alert(1)])
    texts = ['a,b\n"c"\\', "", "\\.", "\N{SNOWMAN} ' ; --", "\\N"]
    rows = pa.concat_tables([batch[ALERTS_HUB]] * len(texts))
    rows = rows.set_column(rows.column_names.index("text"), "text", pa.array(texts))
    ids = pa.array([str(number) for number in range(len(texts))])
    rows = rows.set_column(rows.column_names.index("id"), "id", ids)
    database.store({ALERTS_HUB: rows}, {})
    assert [text for _, text in query(url, "SELECT id, text FROM alerts")] == texts


def test_an_unsupported_url_is_refused() -> None:
    with pytest.raises(OptionError, match="unsupported database"):
        open_database("blob://account/container")


def test_alarms_of_added_kinds_are_summed() -> None:
    sensors = ["smoke", "smoke", "carbon-monoxide", "carbon-monoxide", "radon", "door"]
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE rows (sensor TEXT, value DOUBLE)")
    values = [59, 60, 49.5, 50, 4, 99]
    connection.executemany("INSERT INTO rows VALUES (?, ?)", zip(sensors, values, strict=True))
    for kinds, alarms in ((DEFAULT, 1), (kinds_of(ALL_RULES), 3)):
        expression = sums.measures(kinds)["alarms"]
        assert connection.execute(f"SELECT sum({expression}) FROM rows").fetchone() == (alarms,)
    connection.close()
