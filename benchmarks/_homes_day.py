"""A simulated day through the stages, and judged anew: in how many results do they differ?

HomeSimulator -> hub -> sift, watch, record -> sums, alerts -> differences <- judge <- HomeSimulator
                                                      ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from benchmarks._figures import progress
from benchmarks._homes_judge import Cells, alerts_anew, counted_anew, matters, raw
from benchmarks._homes_plant import alerts_in
from benchmarks._homes_stages import bench
from pumphouse.homes.record import sums
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch

MISHAPS = ReadingFaults(late=0.01, duplicates=0.01, malformed=0.005, faults=0.002)
FIRST = 29_866_560  # a Tuesday, midnight
SEED = 1
GRACE_MS = round(watch.WatchSettings().grace_s * 1000)
BATCH = 20_000  # small, so that much passes from one batch to the next


def differences(homes: int, minutes: int) -> Mapping[str, tuple[int, int]]:
    """Of each result: how many there are, and how many of them differ or are on one side only."""
    town = HomeSimulator(homes, SEED, MANY, MISHAPS)
    with bench(town, FIRST, minutes) as ready:
        ready.sift(5 * BATCH)
        ready.watch(BATCH)
        ready.record(BATCH)
        kept = {table.table: stored(ready.database, table) for table in sums.TABLES}
        raised = {one.id for one, _ in asyncio.run(alerts_in(ready.place.connection))}
    progress("judging every reading anew")
    activities = list(matters(raw(town, FIRST, minutes)))
    found = {
        table.table: unlike(kept[table.table], counted_anew(table, activities))
        for table in sums.TABLES
    }
    anew = alerts_anew(homes, activities, GRACE_MS)
    return found | {"alerts": (len(anew), len(anew ^ raised))}


def unlike(kept: Cells, anew: Cells) -> tuple[int, int]:
    keys = kept.keys() | anew.keys()
    return len(anew), sum(kept.get(key) != anew.get(key) for key in keys)


def stored(path: Path, table: sums.SumTable) -> Cells:
    names = ", ".join([table.time, table.key, *sums.MEASURES])
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(f"SELECT {names} FROM {table.table}").fetchall()
    return {(start, key): list(values) for start, key, *values in rows}
