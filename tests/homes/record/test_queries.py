"""The example queries of docs/records.md, on records of both formats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pumphouse.homes.record.archive import Archive
from pumphouse.homes.record.delta import open_delta
from pumphouse.homes.record.folder import LocalFolder
from pumphouse.homes.schema import DAY_MS
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "records.md").read_text()
DAYS, HOURS, HOMES = 4, 3, 20  # days from 2026-10-15, hours from 02:00


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def batches() -> list[dict[str, Any]]:
    return [
        as_tables(
            [activity(home, day * 1440 + hour * 60) for home in range(HOMES)],
            [alert(home, day * 1440 + hour * 60) for home in range(hour)],
            first=(day * HOURS + hour) * HOMES,
        )
        for day in range(DAYS)
        for hour in range(HOURS)
    ]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records as Parquet files, with a file that no manifest names, and with lists of past days."""
    folder = tmp_path / "results" / "records"
    archive = Archive(LocalFolder(folder), lambda: START_MS + DAYS * DAY_MS)
    for batch in batches():
        assert archive.append(batch, reached(batch)) > 0
        assert archive.append(batch, reached(batch)) == 0
        archive.tidy()
    first = next(iter(sorted(folder.glob("activity/*/*/*.parquet"))))
    first.with_name("left-by-a-crash.parquet").write_bytes(first.read_bytes())
    assert list(folder.glob("_days/activity/*.json"))
    monkeypatch.chdir(tmp_path)
    return folder


def statements(block: str) -> list[str]:
    return [part.strip() for part in block.split(";") if part.strip()]


def run_all(connection: Any, block: str) -> list[Sequence[Any]]:
    return [connection.execute(statement).fetchall() for statement in statements(block)]


def test_the_queries_for_duckdb(records: Path) -> None:
    opening, queries = blocks("sql")
    with duckdb.connect() as connection:
        run_all(connection, opening)
        movements, most, before = run_all(connection, queries)
        counts = connection.execute(
            "SELECT count(*), count(DISTINCT sequence) FROM activity"
        ).fetchone()
    assert counts == (DAYS * HOURS * HOMES, DAYS * HOURS * HOMES)
    assert movements == [("02", 20.0), ("03", 20.0), ("04", 20.0)]
    assert most == [("h000000", "fire", DAYS * 2), ("h000001", "fire", DAYS)]
    assert {sensor for _, sensor, _, _ in before} == {"motion"}
    assert len({alert_id for alert_id, *_ in before}) == len(before) == DAYS * 2


@pytest.mark.xdist_group("homes")
@pytest.mark.timeout(400)
def test_the_queries_for_spark(
    spark: SparkSession, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = blocks("py")[0].replace("results/records", str(records))
    exec(code, {"spark": spark})
    shown = capsys.readouterr().out
    assert re.search(r"2026-10-15\|\s+2\|\s+2\|\s+0\|", shown)
    assert re.search(r"\|fire\|\s*-?\d", shown)
    counted = spark.sql("SELECT count(*) AS n, count(DISTINCT at, home) AS d FROM activity").first()
    assert counted is not None
    assert (counted.n, counted.d) == (DAYS * HOURS * HOMES, DAYS * HOURS * HOMES)


def test_the_query_of_a_delta_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = open_delta(str(tmp_path / "results" / "delta"))
    for batch in batches()[:4]:
        archive.append(batch, reached(batch))
    monkeypatch.chdir(tmp_path)
    exec(blocks("py")[1], {})
    shown = capsys.readouterr().out
    assert shown == "[('2026-10-15', 'motion', 60), ('2026-10-16', 'motion', 20)]\n"
