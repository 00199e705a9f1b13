"""The sums of the stream equal those of all raw readings."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks._homes_expected import expected_activities, expected_sums, raw_bodies
from pumphouse.client.factory import open_client
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record import stage as record
from pumphouse.homes.record import sums
from pumphouse.homes.record.stage import Recorded, Recorder, RecordSettings
from pumphouse.homes.schema import SENSORS_HUB
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator
from tests.homes.streams import TO_THE_END, finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("homes"), pytest.mark.timeout(600)]

FIRST, MINUTES = 29_866_980, 70  # a Monday morning, when people get up and leave
READING_FAULTS = ReadingFaults(
    late=0.05, duplicates=0.05, malformed=0.02, faults=0.02, low_battery=0.05, late_minutes=30
)


async def send(namespace: HomesNamespace, simulator: HomeSimulator, minutes: range) -> None:
    async with open_client(namespace.connection, SENSORS_HUB) as client:
        sender = await client.sender()
        for minute in minutes:
            await sender.send(simulator.minute(minute).events())


def run(spark: SparkSession, namespace: HomesNamespace, folder: Path) -> Recorded:
    """Run both stages to the end of the hubs; returns the totals."""
    simulated = sift.SiftSettings(ahead_max_s=None, events_max=5_000)
    where = str(folder / "sift")
    finish(lambda: sift.start(spark, namespace, where, simulated, TO_THE_END))
    settings = RecordSettings(None, f"sqlite://{folder}/homes.db", events_max=700)
    with closing(Recorder.open(settings)) as recorder:
        where = str(folder / "record")
        finish(lambda: record.start(spark, namespace, where, settings, TO_THE_END, recorder))
    return recorder.recorded


def forget_the_last_commit(checkpoint: Path) -> None:
    """Delete the last commit, as after a crash right before it: Spark repeats that batch."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_the_sums_of_the_stream_equal_those_of_the_raw_readings(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    """With late, duplicate and malformed readings, and a crash of both stages."""
    simulator, half = (
        HomeSimulator(homes=40, seed=11, reading_faults=READING_FAULTS),
        FIRST + MINUTES // 2,
    )
    asyncio.run(send(namespace, simulator, range(FIRST, half)))
    before = run(spark, namespace, tmp_path)
    for stage in ("sift", "record"):
        forget_the_last_commit(tmp_path / stage)
    asyncio.run(send(namespace, simulator, range(half, FIRST + MINUTES)))
    after = run(spark, namespace, tmp_path)

    activities = list(expected_activities(raw_bodies(simulator, FIRST, MINUTES)))
    assert (before.duplicates, after.duplicates > 0) == (
        0,
        True,
    )  # of the batch that sift sent again
    assert before.rows + after.rows - after.duplicates == len(activities)
    assert before.behind_watermark + after.behind_watermark > 0
    file = sqlite3.connect(tmp_path / "homes.db")
    for table in sums.TABLES:
        names = ", ".join([table.time, table.key, *sums.MEASURES])
        stored = sorted(file.execute(f"SELECT {names} FROM {table.table}").fetchall())
        expected = expected_sums(table, activities)
        assert stored == sorted((*key, *cell) for key, cell in expected.items())
        late = file.execute(f"SELECT sum(late) FROM {table.table}").fetchone()
        assert late == (before.behind_watermark + after.behind_watermark,)
    file.close()
