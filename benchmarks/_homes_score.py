"""Recall and precision of the alerts of a simulated day, with and without reading faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks._alert_score import Score, due_by, overall, score
from benchmarks._figures import Figure, progress, shorten
from benchmarks._homes_pipeline import alerts_in
from benchmarks._homes_stages import bench
from pumphouse.homes.schema import MINUTE_MS, Alert
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator

FIRST = 29_866_560  # a Tuesday, midnight
SEED = 1
DAY = 1440
BATCH = 50_000  # of watch: smaller than a batch of sift, so that it ends at any event
LAST_MINUTES = 6  # an alert due at the very end would need a later reading
CLEAN = ReadingFaults()
READING_FAULTS = ReadingFaults(late=0.01, duplicates=0.01, malformed=0.005, faults=0.002)


def figures(homes: int, minutes: int) -> Iterator[Figure]:
    """Recall and precision; both must be 100 % without reading faults."""
    for name, faults, goal in (
        ("clean", CLEAN, 100.0),
        ("with reading faults", READING_FAULTS, None),
    ):
        simulator = HomeSimulator(homes, SEED, MANY, faults)
        due, alerts = scored(simulator, minutes, raised(simulator, minutes))
        what = f"{minutes // 60} h of {homes:,} homes, {name}"
        progress(
            f"{what}: {due.found} of {due.incidents} incidents found, {alerts.right} of "
            f"{alerts.alerts} alerts correct, {alerts.repeats} duplicates"
        )
        yield Figure(
            f"{what}: recall of {due.incidents:,} incidents",
            shorten(due.recall * 100), "%", goal=goal,
        )  # fmt: skip
        yield Figure(
            f"{what}: precision of {alerts.alerts:,} alerts",
            shorten(alerts.precision * 100), "%", goal=goal,
        )  # fmt: skip


def scored(simulator: HomeSimulator, minutes: int, alerts: list[Alert]) -> tuple[Score, Score]:
    """The scores of the due incidents (recall) and of all alerts (precision)."""
    end = FIRST + minutes
    due = due_by(simulator.truth(FIRST, end), (end - LAST_MINUTES) * MINUTE_MS)
    # Incidents that began before the first reading may raise alerts too.
    return overall(score(due, alerts)), overall(
        score(simulator.truth(FIRST - 2 * DAY, end), alerts)
    )


def raised(simulator: HomeSimulator, minutes: int) -> list[Alert]:
    """The alerts that sift and watch raise for a simulated day."""
    with bench(simulator, FIRST, minutes) as ready:
        ready.sift()
        ready.watch(BATCH)
        return [alert for alert, _ in asyncio.run(alerts_in(ready.namespace.connection))]
