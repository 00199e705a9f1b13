"""How good the alerts are: a simulated day through sift and watch, scored against the truth.

The town is clean, or has mishaps: readings that are late, repeated, malformed, or faults.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks._figures import Figure, say, shorten
from benchmarks._processes import waiting
from pumphouse.client.base import ReaderOptions
from pumphouse.client.opening import open_client
from pumphouse.clock import SystemClock
from pumphouse.homes import sift, watch
from pumphouse.homes.incidents import MANY
from pumphouse.homes.mishaps import Mishaps
from pumphouse.homes.place import Place
from pumphouse.homes.schema import ALERTS_HUB, MINUTE_MS, SENSORS_HUB, Alert, decode_alert
from pumphouse.homes.score import Score, due_by, overall, score
from pumphouse.homes.sending import send
from pumphouse.homes.sensors import Town
from pumphouse.homes.slices import TownSource
from pumphouse.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST = 29_866_560  # a Tuesday, midnight
SEED = 1
DAY = 1440
LAST_MINUTES = 6  # an alert that is due right at the end would need a reading after it
LIMIT_S = 1800
TO_THE_END = {"availableNow": True}
CLEAN = Mishaps()
MISHAPS = Mishaps(late=0.01, duplicates=0.01, malformed=0.005, faults=0.002)


def figures(homes: int, minutes: int) -> Iterator[Figure]:
    """Recall and precision; on clean days nothing may be missed."""
    for name, mishaps, goal in (("clean", CLEAN, 100.0), ("with mishaps", MISHAPS, None)):
        town = Town(homes, SEED, MANY, mishaps)
        say(f"a day of {homes:,} homes, {name}")
        found, right = scored(town, minutes, raised(town, minutes))
        yield Figure(f"recall, {name}", shorten(found.recall * 100), "%", goal=goal)
        yield Figure(f"precision, {name}", shorten(right.precision * 100), "%", goal=goal)
        say(
            f"{name}: {found.found} of {found.incidents} incidents found, {right.right} of "
            f"{right.alerts} alerts right, {right.repeats} repeats"
        )


def scored(town: Town, minutes: int, alerts: list[Alert]) -> tuple[Score, Score]:
    """Of what was due, what was found; and of all that was raised, what was right."""
    end = FIRST + minutes
    due = due_by(town.truth(FIRST, end), (end - LAST_MINUTES) * MINUTE_MS)
    # What began before the first reading may be seen as well.
    return overall(score(due, alerts)), overall(score(town.truth(FIRST - 2 * DAY, end), alerts))


def raised(town: Town, minutes: int) -> list[Alert]:
    """The alerts of a day that is there already, through both stages."""
    with waiting("_homes_hub") as hub, tempfile.TemporaryDirectory() as folder:
        place = Place(str(hub.said["connection"]))
        asyncio.run(fill(town, minutes, place.connection))
        with quiet_session() as spark:
            settings = sift.SiftSettings(ahead_max_s=None)
            ended(sift.start(spark, place, f"{folder}/sift", settings, TO_THE_END))
            ended(watch.start(spark, place, f"{folder}/watch", None, TO_THE_END))
        return asyncio.run(alerts_in(place.connection))


async def fill(town: Town, minutes: int, connection: str) -> None:
    begin, end = FIRST * MINUTE_MS, (FIRST + minutes) * MINUTE_MS
    source = TownSource(town, begin, end, slot_s=60)
    async with open_client(connection, SENSORS_HUB) as client:
        await send(client, source, None, SystemClock(), asyncio.Event())


@contextmanager
def quiet_session() -> Iterator[SparkSession]:
    spark = session("score", "local[2]", {"spark.log.level": "OFF"})
    try:
        yield spark
    finally:
        spark.stop()


def ended(query: StreamingQuery) -> None:
    if not query.awaitTermination(LIMIT_S):
        raise TimeoutError(f"{query.name} did not come to its end in {LIMIT_S} s")


async def alerts_in(connection: str) -> list[Alert]:
    found: list[Alert] = []
    async with open_client(connection, ALERTS_HUB) as client:
        for partition in (await client.properties()).partitions:
            last = (await client.partition_properties(partition)).last_sequence
            reader = await client.reader(ReaderOptions(partition, prefetch=2000))
            following = 0
            while following <= last:
                events = await reader.receive(2000, 60)
                found += [decode_alert(event.body) for event in events]
                following = (events[-1].sequence or 0) + 1 if events else last + 1
    return found


if __name__ == "__main__":
    for figure in figures(300, DAY):
        print(figure.to_json())
