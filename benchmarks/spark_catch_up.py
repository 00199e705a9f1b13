"""Spark catches up with a backlog

A stream without options starts at the oldest of 2 million events of 1 KiB, in 16 partitions of a
hub on the same machine, and reads them into Spark's `noop` sink, on local[2]. Rates are rows per
second from planning to commit, from Spark's query progress, after a warm-up.

- **default options**: with the trigger `availableNow`, and with the default trigger. The peer is
  the best of some settings. The goal is 0.8 of its rate.
- **the settings**: `maxEventsPerTrigger` and `partitionsPerTask`, with `availableNow`. Each is
  measured as often as the default options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._processes import start_child
from benchmarks._spark import (
    CORES,
    ROWS_PER_S,
    catching_up,
    drained,
    fill,
    rows_and_seconds,
    spark_session,
)
from benchmarks.spark_source import ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, SIZE = 16, 1024
AVAILABLE_NOW, DEFAULT_TRIGGER = "availableNow", "the default trigger"


@dataclass(frozen=True, slots=True)
class Setting:
    events: int | None  # of a batch; None: everything
    tasks: int

    def __str__(self) -> str:
        events = "all" if self.events is None else f"{self.events:,}"
        return f"batches of {events} events in {self.tasks} tasks"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work; `rows` is per partition."""

    rounds: int
    rows: int
    settings: tuple[Setting, ...]
    warm: bool = True


FULL = Plan(
    rounds=3,
    rows=125_000,
    settings=tuple(
        Setting(events, tasks)
        for events in (200_000, 500_000, None)
        for tasks in (CORES, PARTITIONS)
    ),
)
QUICK = Plan(rounds=1, rows=4_000, settings=(Setting(None, CORES),), warm=False)


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with spark_session() as spark, start_child("_hub", 1, PARTITIONS) as hub:
        connection = hub.result["connection"]
        fill(connection, PARTITIONS, plan.rows, SIZE)
        yield from figures(spark, connection, plan)


def figures(spark: SparkSession, connection: str, plan: Plan) -> Iterator[Figure]:
    rows = plan.rows * PARTITIONS
    without_options = partial(default, spark, connection)

    def with_setting(setting: Setting) -> DataFrame:
        return ours(spark, connection, PARTITIONS, setting.events or rows, setting.tasks)

    sides: dict[str, Callable[[], tuple[int, float]]] = {
        AVAILABLE_NOW: partial(drained, without_options),
        DEFAULT_TRIGGER: lambda: rows_and_seconds(catching_up(without_options(), rows)),
    }
    for setting in plan.settings:
        sides[str(setting)] = partial(drained, partial(with_setting, setting))
    if plan.warm:
        drained(without_options)  # forks the workers and imports their modules
    results = alternate(plan.rounds, sides)
    rates = {name: [read / s for read, s in measured] for name, measured in results.items()}
    best = max(map(str, plan.settings), key=lambda name: median(rates[name]))
    for trigger in (AVAILABLE_NOW, DEFAULT_TRIGGER):
        name = f"default options, {trigger}, vs {best}"
        yield compare(name, ROWS_PER_S, rates[trigger], rates[best], goal=0.8)
    for setting in plan.settings:
        yield compare(str(setting), ROWS_PER_S, rates[str(setting)])


def default(spark: SparkSession, connection: str) -> DataFrame:
    source = spark.readStream.format("eventhubs")
    return source.options(connectionString=connection, startingPosition="earliest").load()


if __name__ == "__main__":
    sys.exit(run(measure))
