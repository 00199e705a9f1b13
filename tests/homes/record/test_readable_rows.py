"""Rows that do not fit their table are skipped: they would fail their batch for ever."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.homes.record.stage import HUB, Recorder, RecordSettings, is_readable
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB
from tests.homes.record.rows import activity, alert, as_tables

ROWS = as_tables([activity(1), activity(2)], [alert(1), alert(2)])


def changed(hub: str, name: str, value: object) -> pa.Table:
    """The first row of a hub with one value changed."""
    rows = ROWS[hub]
    index = rows.column_names.index(name)
    column = pa.array([value, *rows[name].to_pylist()[1:]], rows.schema.field(name).type)
    return rows.set_column(index, rows.schema.field(name), column)


@pytest.mark.parametrize(
    ("hub", "name", "value"),
    [
        (ACTIVITY_HUB, "home", None),
        (ACTIVITY_HUB, "seq", None),
        (ACTIVITY_HUB, "at", None),
        (ACTIVITY_HUB, "at", -1),
        (ACTIVITY_HUB, "at", 2**63 - 1),
        (ACTIVITY_HUB, "home", "h" * 5000),
        (ACTIVITY_HUB, "sensor", "s" * 5000),
        (ALERTS_HUB, "id", None),
        (ALERTS_HUB, "id", "i" * 5000),
        (ALERTS_HUB, "at", 253_402_300_800_000),
    ],
)
def test_an_unreadable_row_is_skipped_and_counted(
    hub: str, name: str, value: object, tmp_path: Path
) -> None:
    rows = changed(hub, name, value)
    assert is_readable(hub, rows).to_pylist() == [False, True]
    recorder = Recorder.open(RecordSettings(str(tmp_path / "records"), str(tmp_path / "homes.db")))
    recorder.store(rows.append_column(HUB, pa.array([hub] * rows.num_rows)))
    recorder.close()
    assert (recorder.recorded.rows, recorder.recorded.unreadable) == (1, 1)


def test_a_readable_row_is_stored() -> None:
    for hub, rows in ROWS.items():
        assert is_readable(hub, rows).to_pylist() == [True, True]
    assert is_readable(ACTIVITY_HUB, changed(ACTIVITY_HUB, "at", 0)).to_pylist() == [True, True]
    assert is_readable(ACTIVITY_HUB, changed(ACTIVITY_HUB, "value", None)).to_pylist()[0]
