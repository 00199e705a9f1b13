"""A simulated day through the stages, compared with the expected results.

HomeSimulator -> hub -> sift, watch, record -> sums, alerts -> differences <- expected results
                                                               ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from benchmarks._figures import progress
from benchmarks._homes_expected import (
    Cells,
    expected_activities,
    expected_alert_ids,
    expected_sums,
    raw_bodies,
)
from benchmarks._homes_pipeline import AT_ONCE, alerts_in
from benchmarks._homes_stages import bench
from pumphouse.homes.record import sums
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch

READING_FAULTS = ReadingFaults(late=0.01, duplicates=0.01, malformed=0.005, faults=0.002)
FIRST = 29_866_560  # a Tuesday, midnight
SEED = 1
GRACE_MS = round(watch.WatchSettings().grace_s * 1000)
BATCH = 20_000  # small, so that state passes through many batches


def differences(homes: int, minutes: int) -> Mapping[str, tuple[int, int]]:
    """By result: the number of rows, and how many of them differ or exist on one side only."""
    simulator = HomeSimulator(homes, SEED, MANY, READING_FAULTS)
    with bench(simulator, FIRST, minutes) as ready:
        ready.sift(5 * BATCH)
        alarms = raised_ids(ready.namespace.connection)  # watch would raise missing ones
        ready.watch(BATCH)
        ready.record(BATCH)
        stored = {table.table: stored_sums(ready.database, table) for table in sums.TABLES}
        raised = raised_ids(ready.namespace.connection)
    progress("computing the expected results from every reading")
    activities = list(expected_activities(raw_bodies(simulator, FIRST, minutes)))
    differing = {
        table.table: count_differences(stored[table.table], expected_sums(table, activities))
        for table in sums.TABLES
    }
    expected = expected_alert_ids(homes, activities, GRACE_MS)
    expected_alarms = {each for each in expected if each.startswith(AT_ONCE)}
    return differing | {
        "alerts": (len(expected), len(expected ^ {*raised})),
        "alarms of sift": (len(expected_alarms), len(expected_alarms ^ {*alarms})),
        "alerts sent, and duplicates": (len(raised), len(raised) - len({*raised})),
    }


def raised_ids(connection: str) -> list[str]:
    return [alert.id for alert, _ in asyncio.run(alerts_in(connection))]


def count_differences(stored: Cells, expected: Cells) -> tuple[int, int]:
    keys = stored.keys() | expected.keys()
    return len(expected), sum(stored.get(key) != expected.get(key) for key in keys)


def stored_sums(path: Path, table: sums.SumTable) -> Cells:
    names = ", ".join([table.time, table.key, *sums.MEASURES])
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(f"SELECT {names} FROM {table.table}").fetchall()
    return {(start, key): list(values) for start, key, *values in rows}
