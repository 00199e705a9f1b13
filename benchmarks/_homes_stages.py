"""Stages on what is there already, one after the other, in a session of our own.

filled(...) -> Backlog -> sift, watch, record: until nothing is left -> Alone
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._figures import progress
from benchmarks._processes import cpu_s, start_child
from benchmarks._spark import HUB, JVM, WORKERS, Meter, batches_of, trigger_ms
from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.homes import pipeline
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record import stage as record
from pumphouse.homes.record.stage import Recorder, RecordSettings
from pumphouse.homes.schema import MINUTE_MS, SENSORS_HUB
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.simulator.sender import send
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.simulator.time_slices import SimulatorSource, choose_slot_s
from pumphouse.homes.watch import stage as watch
from pumphouse.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DRIVER = "Python driver"
TO_THE_END = {"availableNow": True}
LIMIT_S = 900.0
# As the pipeline has them, but with a memory for every batch.
SETTINGS = {
    **pipeline.SETTINGS,
    **pipeline.LOCAL_FILES,
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


@dataclass(frozen=True, slots=True)
class Alone:
    """What a stage took in and what that cost, its first batch left out: that warms it up."""

    rows: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        if not self.rows:
            raise ValueError("there was one batch only: nothing is left to measure")
        return self.rows / self.seconds

    def cpu_us(self, *who: str) -> float:
        return sum(self.cpu_s[one] for one in who or self.cpu_s) / self.rows * 1e6


@dataclass(frozen=True, slots=True)
class Bench:
    """Stages to be run on what a hub holds."""

    spark: SparkSession
    place: HomesNamespace
    hub: int
    folder: str

    @property
    def database(self) -> Path:
        return Path(self.folder) / "homes.db"

    def sift(self, events_max: int = 200_000) -> Alone:
        settings = sift.SiftSettings(ahead_max_s=None, events_max=events_max)
        return self.alone(
            lambda: sift.start(self.spark, self.place, f"{self.folder}/sift", settings, TO_THE_END)
        )

    def watch(self, events_max: int = 400_000) -> Alone:
        settings = watch.WatchSettings(events_max=events_max)
        return self.alone(
            lambda: watch.start(
                self.spark, self.place, f"{self.folder}/watch", settings, TO_THE_END
            )
        )

    def record(self, events_max: int = 200_000) -> Alone:
        settings = RecordSettings(
            f"{self.folder}/records", str(self.database), events_max=events_max
        )
        recorder = Recorder.open(settings)
        try:
            return self.alone(
                lambda: record.start(
                    self.spark,
                    self.place,
                    f"{self.folder}/record",
                    settings,
                    TO_THE_END,
                    recorder,
                )
            )
        finally:
            recorder.close()

    def alone(self, start: Callable[[], StreamingQuery]) -> Alone:
        query = start()
        await_first(query)
        with Meter() as meter:
            before, ours, hub = len(batches_of(query)), time.process_time(), cpu_s(self.hub)
            ended(query)
            spent = {DRIVER: time.process_time() - ours, HUB: cpu_s(self.hub) - hub}
        batches = batches_of(query)[before:]
        rows, seconds = sum(one["rows"] for one in batches), sum(map(trigger_ms, batches)) / 1000
        found = meter.spent()
        return Alone(rows, seconds, {**spent, JVM: found[JVM], WORKERS: found[WORKERS]})


@contextmanager
def bench(town: HomeSimulator, first_minute: int, minutes: int) -> Iterator[Bench]:
    """A session, and a hub that holds the readings of some minutes."""
    with start_child("_homes_hub") as hub, tempfile.TemporaryDirectory() as folder:
        place = HomesNamespace(str(hub.result["connection"]))
        progress(f"filling the hub with {minutes:,} minutes of {town.homes:,} homes")
        asyncio.run(fill(town, first_minute, minutes, place.connection))
        with quiet_session() as spark:
            yield Bench(spark, place, hub.pid, folder)


async def fill(town: HomeSimulator, first_minute: int, minutes: int, connection: str) -> None:
    begin, end = first_minute * MINUTE_MS, (first_minute + minutes) * MINUTE_MS
    source = SimulatorSource(town, begin, end, choose_slot_s(town.homes, None))
    async with open_client(connection, SENSORS_HUB) as client:
        await send(client, source, None, SystemClock(), asyncio.Event())


@contextmanager
def quiet_session() -> Iterator[SparkSession]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session("benchmark", "local[2]", {**SETTINGS, "spark.log.level": "OFF"})
    try:
        yield spark
    finally:
        spark.stop()


def await_first(query: StreamingQuery) -> None:
    """Until its first batch is done."""
    deadline = time.monotonic() + LIMIT_S
    while query.isActive and query.lastProgress is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{query.name} did nothing in {LIMIT_S:g} s")
        time.sleep(0.02)


def ended(query: StreamingQuery) -> None:
    if not query.awaitTermination(int(LIMIT_S)):
        raise TimeoutError(f"{query.name} did not come to its end in {LIMIT_S:g} s")
