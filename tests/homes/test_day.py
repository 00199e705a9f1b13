"""What the stream has summed up is what counting all raw readings anew gives."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pumphouse.client.opening import open_client
from pumphouse.errors import BadRecord
from pumphouse.homes import minutes, record, sift
from pumphouse.homes.mishaps import Mishaps
from pumphouse.homes.place import Place
from pumphouse.homes.record import Recorder, RecordSettings
from pumphouse.homes.schema import SENSORS_HUB, Activity, activity_of, decode_reading
from pumphouse.homes.sensors import Town

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

FIRST, MINUTES = 29_866_980, 100  # a Monday morning, when people get up and leave
MISHAPS = Mishaps(
    late=0.05, duplicates=0.05, malformed=0.02, faults=0.02, low_battery=0.05, late_minutes=30
)


def raw(town: Town) -> Iterable[bytes]:
    for minute in range(FIRST, FIRST + MINUTES):
        yield from town.minute(minute).bodies()


def matters(bodies: Iterable[bytes]) -> Iterable[Activity]:
    """Judged one by one, and each once."""
    seen = set()
    for body in bodies:
        try:
            found = activity_of(decode_reading(body))
        except BadRecord:
            continue
        if found is not None and found.reading.identity not in seen:
            seen.add(found.reading.identity)
            yield found


def measures(one: Activity) -> list[float]:
    read, value = one.reading, one.reading.value or 0.0
    opened = read.sensor in ("door", "window") and one.why == "change" and value == 1
    smoke = read.sensor == "smoke" and value >= 60
    moved = value if read.sensor == "motion" else 0.0
    return [1.0, moved, opened, smoke, read.fault is not None]


def counted_anew(sums: minutes.Sums, activities: Iterable[Activity]) -> list[tuple[object, ...]]:
    found: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for one in activities:
        key = one.region if sums.key == "region" else one.reading.home
        cell = found[one.reading.at // sums.span_ms * sums.span_ms, key]
        for place, value in enumerate(measures(one)):
            cell[place] += value
    return sorted((*key, *cell) for key, cell in found.items())


async def send(place: Place, town: Town) -> None:
    async with open_client(place.connection, SENSORS_HUB) as client:
        sender = await client.sender()
        for minute in range(FIRST, FIRST + MINUTES):
            await sender.send(town.minute(minute).events())


def test_the_sums_of_the_stream_are_those_of_the_raw_readings(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    town = Town(homes=40, seed=11, mishaps=MISHAPS)
    asyncio.run(send(place, town))
    now = {"availableNow": True}
    simulated = sift.SiftSettings(ahead_max_s=None, events_max=7_000)
    sift.start(spark, place, f"{tmp_path}/sift", simulated, now).awaitTermination()
    settings = RecordSettings(None, f"sqlite://{tmp_path}/homes.db", events_max=700)
    recorder = Recorder.open(settings)
    record.start(spark, place, f"{tmp_path}/record", settings, now, recorder).awaitTermination()
    recorder.close()

    activities = list(matters(raw(town)))
    assert recorder.recorded.rows == len(activities)
    assert recorder.recorded.late > 0
    file = sqlite3.connect(tmp_path / "homes.db")
    for sums in minutes.TABLES:
        names = ", ".join([sums.time, sums.key, *minutes.MEASURES])
        kept = sorted(file.execute(f"SELECT {names} FROM {sums.table}").fetchall())
        assert kept == counted_anew(sums, activities)
        late = file.execute(f"SELECT sum(late) FROM {sums.table}").fetchone()
        assert late == (recorder.recorded.late,)
    file.close()
