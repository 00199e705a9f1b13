"""Runs single stages on a filled hub, one after the other, in one Spark session.

bench(...) -> StageBench -> sift, watch, record: to the end of the hub -> StageCost
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
from benchmarks._spark_start import start_query
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
# The settings of the pipeline, with the progress of every batch.
SETTINGS = {
    **pipeline.SETTINGS,
    **pipeline.LOCAL_FILES,
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


@dataclass(frozen=True, slots=True)
class StageCost:
    """The input and the costs of a stage, without its first batch as warm-up."""

    rows: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        if not self.rows:
            raise ValueError("only one batch: use more events or a smaller events_max")
        return self.rows / self.seconds

    def cpu_us(self, *processes: str) -> float:
        return sum(self.cpu_s[name] for name in processes or self.cpu_s) / self.rows * 1e6


@dataclass(frozen=True, slots=True)
class StageBench:
    """Runs stages on the events of a hub."""

    spark: SparkSession
    namespace: HomesNamespace
    hub: int
    folder: str

    @property
    def database(self) -> Path:
        return Path(self.folder) / "homes.db"

    def sift(self, events_max: int = 200_000) -> StageCost:
        settings = sift.SiftSettings(ahead_max_s=None, events_max=events_max, alarms=True)
        return self.measure(
            lambda: sift.start(
                self.spark, self.namespace, f"{self.folder}/sift", settings, TO_THE_END
            )
        )

    def watch(self, events_max: int = 400_000) -> StageCost:
        settings = watch.WatchSettings(events_max=events_max, alarms=False)
        return self.measure(
            lambda: watch.start(
                self.spark, self.namespace, f"{self.folder}/watch", settings, TO_THE_END
            )
        )

    def record(self, events_max: int = 200_000) -> StageCost:
        settings = RecordSettings(
            f"{self.folder}/records", str(self.database), events_max=events_max
        )
        recorder = Recorder.open(settings)
        try:
            return self.measure(
                lambda: record.start(
                    self.spark,
                    self.namespace,
                    f"{self.folder}/record",
                    settings,
                    TO_THE_END,
                    recorder,
                )
            )
        finally:
            recorder.close()

    def measure(self, start: Callable[[], StreamingQuery]) -> StageCost:
        query = start_query(start)
        await_first(query)
        with Meter() as meter:
            before, driver_s, hub_s = len(batches_of(query)), time.process_time(), cpu_s(self.hub)
            await_end(query)
            spent = {DRIVER: time.process_time() - driver_s, HUB: cpu_s(self.hub) - hub_s}
        batches = batches_of(query)[before:]
        rows, seconds = (
            sum(batch["rows"] for batch in batches),
            sum(map(trigger_ms, batches)) / 1000,
        )
        by_kind = meter.spent()
        return StageCost(rows, seconds, {**spent, JVM: by_kind[JVM], WORKERS: by_kind[WORKERS]})


@contextmanager
def bench(simulator: HomeSimulator, first_minute: int, minutes: int) -> Iterator[StageBench]:
    """A Spark session, and a hub with the readings of some minutes."""
    with start_child("_homes_hub") as hub, tempfile.TemporaryDirectory() as folder:
        namespace = HomesNamespace(str(hub.result["connection"]))
        progress(f"filling the hub with {minutes:,} minutes of {simulator.homes:,} homes")
        asyncio.run(fill(simulator, first_minute, minutes, namespace.connection))
        with quiet_session() as spark:
            yield StageBench(spark, namespace, hub.pid, folder)


async def fill(simulator: HomeSimulator, first_minute: int, minutes: int, connection: str) -> None:
    begin, end = first_minute * MINUTE_MS, (first_minute + minutes) * MINUTE_MS
    source = SimulatorSource(simulator, begin, end, choose_slot_s(simulator.homes, None))
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
    """Wait for the end of the first batch."""
    deadline = time.monotonic() + LIMIT_S
    while query.isActive and query.lastProgress is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{query.name} processed no batch in {LIMIT_S:g} s")
        time.sleep(0.02)


def await_end(query: StreamingQuery) -> None:
    if not query.awaitTermination(int(LIMIT_S)):
        raise TimeoutError(f"{query.name} did not end in {LIMIT_S:g} s")
