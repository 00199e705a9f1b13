"""A simulated day through the stream, and counted anew: in how many sums do they differ?

The judge reads every raw reading by the reference of the schema, one at a time, and drops repeats
with a set: no Spark, no SQL.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks._figures import say
from benchmarks._homes_run import plant, sending
from pumphouse.errors import BadRecord
from pumphouse.homes import minutes as sums
from pumphouse.homes.mishaps import Mishaps
from pumphouse.homes.schema import Activity, activity_of, decode_reading
from pumphouse.homes.sensors import Town

MISHAPS = Mishaps(late=0.01, duplicates=0.01, malformed=0.005, faults=0.002)
SHARES = ("late", "duplicates", "malformed", "faults")
FIRST = 29_866_560  # a Tuesday, midnight
SEED = 1
LIMIT_S = 1800.0
Sums = dict[tuple[int, str], list[float]]


def differences(homes: int, minutes: int) -> int:
    """How many sums differ, and rows that one side has and the other has not."""
    town = Town(homes, SEED, mishaps=MISHAPS)
    expected = counted_anew(town, minutes)
    words = [word for name in SHARES for word in (f"--{name}", getattr(MISHAPS, name))]
    begin = ("--from", f"{FIRST * 60}", "--minutes", minutes, "--rate", "max")
    with plant("sift,record", "local[2]", "--accelerated") as (running, connection):
        with sending(running, connection, homes, *begin, *words):
            total = int(sum(row[0] for row in expected["minutes"].values()))
            say(f"waiting for {total:,} activities")
            running.until(lambda look: look["record"]["counts"].get("rows", 0) >= total, LIMIT_S)
        found = {one.table: kept(running.data / "homes.db", one) for one in sums.TABLES}
    return sum(
        found[table].get(key) != expected[table].get(key)
        for table in found
        for key in found[table].keys() | expected[table].keys()
    )


def counted_anew(town: Town, minutes: int) -> dict[str, Sums]:
    counted: dict[str, Sums] = {one.table: defaultdict(new_cell) for one in sums.TABLES}
    for activity in activities(town, minutes):
        for one in sums.TABLES:
            start = activity.reading.at // one.span_ms * one.span_ms
            key = activity.region if one.key == "region" else activity.reading.home
            cell = counted[one.table][start, key]
            for place, value in enumerate(measures(activity)):
                cell[place] += value
    return counted


def new_cell() -> list[float]:
    return [0.0] * len(sums.MEASURES)


def activities(town: Town, minutes: int) -> Iterator[Activity]:
    seen = set()
    for minute in range(FIRST, FIRST + minutes):
        for body in town.minute(minute).bodies():
            try:
                found = activity_of(decode_reading(body))
            except BadRecord:
                continue
            if found is not None and found.reading.identity not in seen:
                seen.add(found.reading.identity)
                yield found


def measures(one: Activity) -> tuple[float, ...]:
    read, value = one.reading, one.reading.value or 0.0
    opened = read.sensor in ("door", "window") and one.why == "change" and value == 1
    smoke = read.sensor == "smoke" and value >= 60
    return 1.0, value if read.sensor == "motion" else 0.0, opened, smoke, read.fault is not None


def kept(path: Path, one: sums.Sums) -> Sums:
    names = ", ".join([one.time, one.key, *sums.MEASURES])
    with sqlite3.connect(path) as file:
        rows = file.execute(f"SELECT {names} FROM {one.table}").fetchall()
    file.close()
    return {(start, key): list(values) for start, key, *values in rows}
