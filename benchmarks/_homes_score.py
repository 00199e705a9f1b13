"""How good the alerts are: a simulated day through sift and watch, scored against the truth.

The town is clean, or has mishaps: readings that are late, repeated, malformed, or faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks._alert_score import Score, due_by, overall, score
from benchmarks._figures import Figure, progress, shorten
from benchmarks._homes_plant import alerts_in
from benchmarks._homes_stages import bench
from pumphouse.homes.schema import MINUTE_MS, Alert
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator

FIRST = 29_866_560  # a Tuesday, midnight
SEED = 1
DAY = 1440
BATCH = 50_000  # of watch: a batch of sift's, hours of so small a town, is cut anywhere
LAST_MINUTES = 6  # an alert that is due right at the end would need a reading after it
CLEAN = ReadingFaults()
MISHAPS = ReadingFaults(late=0.01, duplicates=0.01, malformed=0.005, faults=0.002)


def figures(homes: int, minutes: int) -> Iterator[Figure]:
    """Recall and precision; on clean days nothing may be missed."""
    for name, mishaps, goal in (("clean", CLEAN, 100.0), ("with mishaps", MISHAPS, None)):
        town = HomeSimulator(homes, SEED, MANY, mishaps)
        found, right = scored(town, minutes, raised(town, minutes))
        what = f"{minutes // 60} h of {homes:,} homes, {name}"
        progress(
            f"{what}: {found.found} of {found.incidents} incidents found, {right.right} of "
            f"{right.alerts} alerts right, {right.repeats} repeats"
        )
        yield Figure(
            f"{what}: recall of {found.incidents:,} incidents",
            shorten(found.recall * 100), "%", goal=goal,
        )  # fmt: skip
        yield Figure(
            f"{what}: precision of {right.alerts:,} alerts",
            shorten(right.precision * 100), "%", goal=goal,
        )  # fmt: skip


def scored(town: HomeSimulator, minutes: int, alerts: list[Alert]) -> tuple[Score, Score]:
    """Of what was due, what was found; and of all that was raised, what was right."""
    end = FIRST + minutes
    due = due_by(town.truth(FIRST, end), (end - LAST_MINUTES) * MINUTE_MS)
    # What began before the first reading may be seen as well.
    return overall(score(due, alerts)), overall(score(town.truth(FIRST - 2 * DAY, end), alerts))


def raised(town: HomeSimulator, minutes: int) -> list[Alert]:
    """The alerts of a day that is there already, through both stages."""
    with bench(town, FIRST, minutes) as ready:
        ready.sift()
        ready.watch(BATCH)
        return [alert for alert, _ in asyncio.run(alerts_in(ready.place.connection))]
