"""A batch, its sums and its position: all of it once, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.errors import ConnectionFailed, OptionError
from pumphouse.homes.record import sums as minutes
from pumphouse.homes.record.database import Database, DatabaseConnection, StoreResult
from pumphouse.homes.record.database_url import open_database
from pumphouse.homes.record.postgres import PostgresConnection
from pumphouse.homes.record.sqlite import SqliteConnection
from pumphouse.homes.record.tables import TABLES
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, HOUR_MS, MINUTE_MS, Activity
from tests.homes.record.postgres_server import PostgresServer
from tests.homes.record.recount import recount
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/new/homes.db"
    server: PostgresServer = request.getfixturevalue("server")
    return server.database()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


def link(url: str) -> DatabaseConnection:
    if url.startswith("postgresql:"):
        return PostgresConnection(url)
    return SqliteConnection(url.removeprefix("sqlite://"))


def ask(url: str, query: str) -> list[tuple[object, ...]]:
    opened = link(url)
    try:
        return sorted(tuple(row) for row in opened.query(query))
    finally:
        opened.close()


def count(url: str, table: str) -> int:
    (number,) = ask(url, f"SELECT count(*) FROM {table}")[0]
    assert isinstance(number, int)
    return number


def store(database: Database, *activities: Activity, first: int = 0) -> StoreResult:
    rows = as_tables(activities, first=first)
    return database.store(rows, reached(rows))


def test_every_column_comes_back(database: Database, url: str) -> None:
    odd = activity(3, 1, "smoke", None)
    batch = as_tables([activity(1), odd], [alert(2)])
    assert database.store(batch, reached(batch)) == StoreResult(rows=3)
    for hub, rows in batch.items():
        names = list(TABLES[hub].columns)
        told = [tuple(row[name] for name in names) for row in rows.to_pylist()]
        assert ask(url, f"SELECT {', '.join(names)} FROM {hub}") == sorted(told)
    assert ask(url, "SELECT fault FROM activity WHERE value IS NULL") == [("no answer",)]
    assert database.positions() == {ACTIVITY_HUB: {"0": 2}, ALERTS_HUB: {"0": 1}}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:hunter2@[::1/x", "invalid URL of the database: end of string"),
        ("postgresql://me:hunt%zzer2@h/x", "invalid URL of the database: invalid percent"),
        ("postgresql://me:hunter2@h/x?foo=1", "invalid URL of the database: invalid URI"),
        (
            "postgresql://me:hunter2@127.0.0.1:1/x",
            "PostgreSQL: .* port 1 failed: Connection",
        ),
        ("mysql://me:hunter2@h/x", "unsupported database: use sqlite:///PATH or postgresql:"),
        ("blob://account/x", "unsupported database blob:"),
        ("AccountName=x;AccountKey=hunter2", "unsupported database: use"),
        ("/proc/nowhere/homes.db", "/proc/nowhere/homes.db cannot be used as a database: "),
        ("/proc/version", "/proc/version cannot be used as a database: "),
    ],
)
def test_a_database_that_is_none_is_said_so_without_the_password(url: str, says: str) -> None:
    with pytest.raises((OptionError, ConnectionFailed), match=says) as refused:
        open_database(url)
    assert "hunter2" not in str(refused.value)
    assert "hunt%zzer2" not in str(refused.value)


def test_text_that_not_every_database_holds(database: Database, url: str) -> None:
    """A batch that cannot be stored would come again and again."""
    told = activity(3, 1, "smoke", None)
    faults = ["cut\0off", 'quo"ted', "two\nlines", "\\.", "", "\N{SNOWMAN}"]
    odd = [
        replace(told, reading=replace(told.reading, fault=fault, seq=number))
        for number, fault in enumerate(faults)
    ]
    assert store(database, *odd).rows == len(odd)
    stored = [fault for _, fault in ask(url, "SELECT seq, fault FROM activity")]
    assert stored[1:] == faults[1:]
    assert stored[0] in ("cut\0off", "cut\N{REPLACEMENT CHARACTER}off")


def test_a_batch_that_comes_again_changes_nothing(database: Database, url: str) -> None:
    batch = [activity(home) for home in range(10)]
    assert store(database, *batch).rows == 10
    assert store(database, *batch) == StoreResult()
    again = open_database(url)  # after a crash, cut anew
    assert store(again, *batch[5:], activity(10), activity(11), first=5) == StoreResult(rows=2)
    again.close()
    assert count(url, "activity") == 12
    assert ask(url, "SELECT sum(readings) FROM minutes") == [(12,)]


def test_a_reading_that_was_sent_twice_counts_once(database: Database, url: str) -> None:
    twice = [activity(1), activity(2), activity(1)]
    assert store(database, *twice) == StoreResult(rows=3, repeats=1)
    assert store(database, activity(2), activity(3), first=3) == StoreResult(rows=2, repeats=1)
    assert count(url, "activity") == 3
    assert ask(url, "SELECT home, readings FROM home_hours") == [
        ("h000001", 1.0),
        ("h000002", 1.0),
        ("h000003", 1.0),
    ]
    alerts = as_tables(alerts=[alert(1), alert(1)])
    assert database.store(alerts, reached(alerts)).repeats == 1
    assert count(url, "alerts") == 1


def test_late_readings_count_and_are_counted(database: Database, url: str) -> None:
    on_time = minutes.DELAY_MS // MINUTE_MS
    assert store(database, activity(0, 60), activity(0, 0)).late == 0  # nothing came before
    late, prompt = activity(0, 60 - on_time - 1), activity(0, 60 - on_time)
    assert store(database, late, prompt, first=2) == StoreResult(rows=2, late=1)
    assert store(database, activity(1, 1), first=4).late == 1
    found = ask(url, "SELECT minute, readings, late FROM minutes")
    after = [((minute - START_MS) // MINUTE_MS, *rest) for minute, *rest in found]  # type: ignore[operator]
    assert after == [(0, 1, 0), (1, 1, 1), (49, 1, 1), (50, 1, 0), (60, 1, 0)]


def many() -> list[Activity]:
    """Two hours and a half of some homes, with everything that is summed."""
    made = []
    for minute in range(150):
        for home in range(4):
            made.append(activity(home, minute, "motion", float(1 + (home + minute) % 3)))
        made.append(activity(minute % 4, minute, "smoke", 61.5 if minute % 7 else None))
        made.append(activity(minute % 4, minute, "door", 1.0))
    return made


def recounted(
    activities: Sequence[Activity], span_ms: int, by_region: bool
) -> list[tuple[object, ...]]:
    """In plain words."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for one in activities:
        read = one.reading
        key = (read.at // span_ms * span_ms, one.region if by_region else read.home)
        value = read.value or 0.0
        opened = read.sensor in ("door", "window") and one.why == "change" and value == 1
        alarm = read.sensor == "smoke" and value >= 60
        moved = value if read.sensor == "motion" else 0.0
        told = [1, moved, opened, alarm, read.fault is not None]
        sums[key] = [have + new for have, new in zip(sums[key], told, strict=True)]
    return sorted((*key, *values) for key, values in sums.items())


def test_the_sums_are_those_of_all_rows_counted_anew(database: Database, url: str) -> None:
    activities = many()
    for first in range(0, len(activities), 130):  # with the end of each batch in the next again
        start = max(0, first - 20)
        store(database, *activities[start : first + 130], first=start)
    names = ", ".join(minutes.MEASURES)
    for sums, span, by_region in (
        (minutes.MINUTES, MINUTE_MS, True),
        (minutes.HOME_HOURS, HOUR_MS, False),
    ):
        kept = ask(url, f"SELECT {sums.time}, {sums.key}, {names} FROM {sums.table}")
        assert kept == recounted(activities, span, by_region)
        assert kept == ask(url, recount(sums, "activity"))
    assert ask(url, "SELECT sum(faults), sum(alarms) FROM minutes") == [(22, 128)]


class Failing:
    """A connection that fails at the n-th call: what is not committed is gone."""

    def __init__(self, inner: DatabaseConnection, after: int) -> None:
        self.inner, self.left = inner, after

    def __getattr__(self, name: str) -> object:
        if name in ("run", "stage", "many", "commit"):
            if self.left == 0:
                raise ConnectionError("gone")
            self.left -= 1
        return getattr(self.inner, name)


def test_all_of_a_batch_or_nothing(database: Database, url: str) -> None:
    store(database, activity(0))
    batch = as_tables([activity(0), activity(1), activity(2)], [alert(1)])
    for after in range(100):
        inner = link(url)
        failing = Database(inner)
        failing._connection = Failing(inner, after)  # type: ignore[assignment]
        try:
            failing.store(batch, reached(batch))
        except ConnectionError:
            assert (count(url, "activity"), count(url, "alerts")) == (1, 0)
            assert ask(url, "SELECT sum(readings) FROM home_hours") == [(1,)]
            assert database.positions() == {ACTIVITY_HUB: {"0": 1}}
        else:
            break
        finally:
            inner.close()
    assert after > 5
    assert (count(url, "activity"), count(url, "alerts")) == (3, 1)


def test_two_writers_take_turns_and_store_once(url: str) -> None:
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
    assert ask(url, "SELECT sum(readings) FROM minutes") == [(50,)]


def test_text_stays_as_it_is(database: Database, url: str) -> None:
    batch = as_tables(alerts=[alert(1)])
    texts = ['a,b\n"c"\\', "", "\\.", "\N{SNOWMAN} ' ; --", "\\N"]
    rows = pa.concat_tables([batch[ALERTS_HUB]] * len(texts))
    rows = rows.set_column(rows.column_names.index("text"), "text", pa.array(texts))
    ids = pa.array([str(number) for number in range(len(texts))])
    rows = rows.set_column(rows.column_names.index("id"), "id", ids)
    database.store({ALERTS_HUB: rows}, {})
    assert [text for _, text in ask(url, "SELECT id, text FROM alerts")] == texts


def test_what_is_no_database() -> None:
    with pytest.raises(OptionError, match="unsupported database"):
        open_database("blob://account/container")
