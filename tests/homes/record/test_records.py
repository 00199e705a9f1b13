"""The records are read back, and alerts are acknowledged and closed, in both databases."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.homes.record.alert_states import ACKNOWLEDGE, CLOSE, AlertState
from pumphouse.homes.record.connections import connect
from pumphouse.homes.record.database import Database, open_database
from pumphouse.homes.record.newest_values import SENSOR_MINUTES, SENSOR_VALUES
from pumphouse.homes.record.records import Records, open_records
from pumphouse.homes.schema import MINUTE_MS, Activity
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached

NOW = START_MS + 10 * MINUTE_MS
LATER_TABLES = (SENSOR_MINUTES, SENSOR_VALUES, "alert_states")


@pytest.fixture
def records(url: str, database: Database) -> Iterator[Records]:
    opened = open_records(url)
    yield opened
    opened.close()


def activities() -> list[Activity]:
    made = [activity(home, minute) for home in range(5) for minute in range(3)]
    return [*made, activity(1, 2, "smoke", None), activity(12_345, 1, "door", 1.0)]


def store(database: Database, made: list[Activity], first: int = 0) -> None:
    batch = as_tables(made, first=first)
    database.store(batch, reached(batch))


def expected_minutes(made: list[Activity]) -> Counter[tuple[int, str]]:
    return Counter((each.reading.at // MINUTE_MS * MINUTE_MS, each.reading.sensor) for each in made)


def minutes(records: Records) -> Counter[tuple[int, str]]:
    return Counter({(minute, sensor): n for minute, sensor, n in records.minutes(0)})


def values(records: Records) -> dict[tuple[str, str], tuple[object, ...]]:
    return {row[:2]: row[2:] for part in records.sensor_values() for row in part}


def expected_values(made: list[Activity]) -> dict[tuple[str, str], tuple[object, ...]]:
    newest: dict[tuple[str, str], tuple[object, ...]] = {}
    for reading in sorted((each.reading for each in made), key=lambda reading: reading.at):
        rest = (reading.value, reading.mode, reading.battery, reading.fault)
        newest[reading.home, reading.sensor] = (reading.at, reading.since, *rest)
    return newest


def test_minutes_and_current_values_are_those_of_all_rows(
    database: Database, records: Records
) -> None:
    made = activities()
    # In two batches, newer first, with rows of both.
    store(database, made[8:])
    store(database, made[:10], first=len(made) - 8)
    assert minutes(records) == expected_minutes(made)
    assert values(records) == expected_values(made)
    assert records.minutes(START_MS + MINUTE_MS + 1) == [
        row for row in records.minutes(0) if row[0] == START_MS + 2 * MINUTE_MS
    ]


def test_a_database_of_an_earlier_version_is_filled(url: str, database: Database) -> None:
    made = activities()
    store(database, made)
    batch = as_tables(alerts=[alert(1)])
    database.store(batch, reached(batch), NOW)
    old = connect(url)
    for table in LATER_TABLES:
        old.run(f"DROP TABLE {table}")
    old.close()
    records = open_records(url)
    assert minutes(records) == expected_minutes(made)
    assert values(records) == expected_values(made)
    (recorded,) = records.alerts(0, 10)
    assert (recorded.alert, recorded.state) == (alert(1), AlertState())
    assert records.mark(alert(1).id, CLOSE, "Ada", NOW).closed_by == "Ada"
    again = open_records(url)  # opening once more adds nothing
    assert minutes(again) == expected_minutes(made)
    records.close()
    again.close()


def test_activities_of_a_home_in_a_span_of_time(database: Database, records: Records) -> None:
    store(database, activities())
    found = records.activities("h000001", START_MS + MINUTE_MS, START_MS + 3 * MINUTE_MS)
    assert [(each.sensor, each.seq - START_MS // MINUTE_MS) for each in found] == [
        ("motion", 1),
        *sorted([("motion", 2), ("smoke", 2)]),
    ]
    assert {each.enqueued for each in found} == {START_MS}


def test_an_alert_is_acknowledged_and_closed_once(database: Database, records: Records) -> None:
    newer = alert(2, minute=1)
    batch = as_tables(alerts=[alert(1), newer])
    database.store(batch, reached(batch), NOW)
    first, second = alert(1).id, newer.id
    assert records.mark(first, ACKNOWLEDGE, "Ada", NOW + 1) == AlertState(NOW, NOW + 1, "Ada")
    assert records.mark(first, ACKNOWLEDGE, "Bob", NOW + 2) == AlertState(NOW, NOW + 1, "Ada")
    closed = records.mark(first, CLOSE, "Bo'b; --", NOW + 3)
    assert closed == AlertState(NOW, NOW + 1, "Ada", NOW + 3, "Bo'b; --")
    assert [(each.alert.id, each.state.is_open) for each in records.alerts(0, 10)] == [
        (first, False),
        (second, True),
    ]
    assert [each.alert.id for each in records.alerts(NOW, 10)] == [second]
    assert dict(records.alert_changes(NOW + 1)) == {first: closed}
    recorded = records.alert(second)
    assert recorded is not None
    assert (recorded.alert, recorded.enqueued, recorded.state.name) == (newer, START_MS, "open")
    assert records.alert("fire:h999999:1") is None
    with pytest.raises(OptionError, match="unknown action 'delete'"):
        records.mark(first, "delete", "Ada", NOW)


def test_an_alert_that_is_closed_before_it_is_recorded_stays_closed(
    database: Database, records: Records
) -> None:
    records.mark(alert(3).id, CLOSE, "Ada", NOW)
    batch = as_tables(alerts=[alert(3)])
    database.store(batch, reached(batch), NOW + 5)
    recorded = records.alert(alert(3).id)
    assert recorded is not None
    assert recorded.state == AlertState(NOW + 5, None, None, NOW, "Ada")


def test_consistent_reads_exclude_later_rows(database: Database, records: Records) -> None:
    store(database, [activity(1)])
    with records.consistent_reads():
        before = (records.positions(), values(records))
        store(database, [activity(2)], first=1)
        assert (records.positions(), values(records)) == before
    assert len(values(records)) == 2


def test_a_missing_file_and_a_failed_query_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "homes.db"
    with pytest.raises(PumphouseError, match=r"homes\.db does not exist yet"):
        open_records(str(path))
    assert not path.exists()
    open_database(str(path)).close()
    records = open_records(str(path))
    records.close()
    with pytest.raises(PumphouseError, match="the database of the records has failed"):
        records.positions()


def test_an_alert_without_texts_is_read(database: Database, records: Records) -> None:
    """The stage stores every alert with an id, a home and a time."""
    batch = as_tables(alerts=[replace(alert(4), text=None)])  # type: ignore[arg-type]
    database.store(batch, reached(batch))
    (recorded,) = records.alerts(0, 1)
    assert recorded.alert.text == ""


def test_records_are_read_without_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "homes.db"
    open_database(str(path)).close()
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pumphouse.homes.record.records import open_records\n"
        f"print(open_records({str(path)!r}).alerts(0, 5))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
