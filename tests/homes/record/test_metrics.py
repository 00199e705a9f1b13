"""The metrics of the stage `record` equal the rows of the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.clock import MovableClock
from pumphouse.homes.record.database import Database
from pumphouse.homes.record.metrics import OTHER, RecordMetrics
from pumphouse.homes.record.recorded import StoredRows
from pumphouse.homes.record.stage import HUB, Recorder, RecordSettings
from pumphouse.homes.schema import ACTIVITY_HUB, ALERT_KINDS, ALERTS_HUB
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached
from tests.telemetry.page import recording, scrape, series


@pytest.fixture
def metrics() -> Iterator[RecordMetrics]:
    with recording():
        opened = RecordMetrics()
        yield opened
        opened.close()


def alerts() -> dict[str, float]:
    return {dict(key[1])["kind"]: value for key, value in scrape("homes_alerts_total").items()}


def test_a_database_reads_back_what_it_has_added(database: Database) -> None:
    first, again = as_tables([activity(1), activity(2)], [alert(3)]), as_tables([activity(1)])
    assert database.store(first, reached(first)).stored == StoredRows()
    database.reads_back = True
    # A batch that Spark repeats, and a reading that was sent twice, add nothing.
    assert database.store(first, reached(first)).stored == StoredRows([], [], [])
    more = as_tables([activity(1), activity(5, 1)], [alert(3), alert(4, 2)], first=7)
    stored = database.store(more, reached(more)).stored
    assert list(stored.activities) == [activity(5, 1).reading.at]
    assert list(stored.alerts) == [("fire", alert(4, 2).at, START_MS)]
    assert again  # its row is in `more` too


def test_delays_and_kinds(metrics: RecordMetrics) -> None:
    assert alerts() == dict.fromkeys((*ALERT_KINDS, OTHER), 0)
    rows = StoredRows(
        [START_MS, START_MS + 4_000, START_MS + 9_000],
        [("fire", START_MS, START_MS + 3_000), ("<script>", START_MS, None), (None, START_MS, 0)],
    )
    metrics.record(rows, START_MS + 6_000)
    assert alerts() == dict.fromkeys(ALERT_KINDS, 0) | {"fire": 1, OTHER: 2}
    page = scrape("homes_sent_to_")
    assert page[series("homes_sent_to_alert_seconds_sum")] == 3 + 6 + 0
    assert page[series("homes_sent_to_alert_seconds_bucket", le="5.0")] == 2
    # The clock of a sensor may be ahead.
    assert page[series("homes_sent_to_row_seconds_sum")] == 6 + 2 + 0
    assert page[series("homes_sent_to_row_seconds_count")] == 3


def test_a_recorder_counts_rows_once_also_if_the_archive_fails(
    metrics: RecordMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RecordSettings(str(tmp_path / "records"), f"sqlite://{tmp_path}/homes.db")
    recorder = Recorder.open(settings, MovableClock(), metrics)
    rows = as_batch([activity(1), activity(2)], [alert(3), replace(alert(4), kind="break-in")])
    with monkeypatch.context() as patch:
        patch.setattr(recorder._archive, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recorder.store(rows)
    recorder.store(rows)
    recorder.close()
    counted = alerts()
    assert (counted["fire"], counted["break-in"], sum(counted.values())) == (1, 1, 2)
    assert scrape("homes_sent_to_row_seconds_count") == {
        series("homes_sent_to_row_seconds_count"): 2
    }


def as_batch(activities: list[object], alerts: list[object]) -> pa.Table:
    """Both hubs in one table, as Spark passes them."""
    tables = as_tables(activities, alerts)  # type: ignore[arg-type]
    parts = [
        table.append_column(HUB, pa.array([hub] * table.num_rows))
        for hub, table in ((hub, tables[hub]) for hub in (ACTIVITY_HUB, ALERTS_HUB))
    ]
    return pa.concat_tables(parts, promote_options="default")
