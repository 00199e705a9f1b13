"""A query as a tenant of its consumer group, on a local Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import main as cli
from pumphouse.leases.model import Group
from pumphouse.spark.lag.known_positions import parse_nested_json
from pumphouse.spark.tenancy.journal import Stretch, from_offset

from .conftest import Hub
from .tenants.leases import Leases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

UNTIL_S = 300
QUICK = {"leaseDuration": "8s", "renewInterval": "1s", "cycleInterval": "500ms"}


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def queries(spark: SparkSession) -> Iterator[None]:
    """No query outlives its test."""
    yield
    for query in spark.streams.active:
        query.stop()


class House:
    """A hub of four partitions, the leases of its group, and what queries made of its events."""

    def __init__(self, spark: SparkSession, hub: Hub, folder: Path) -> None:
        self.spark, self.hub, self.folder = spark, hub, folder
        self.store = f"sqlite:///{folder}/leases.db"
        self.leases = Leases(self.store, Group(hub.house.authority, hub.name))
        self.sent = dict.fromkeys("0123", 0)

    def send(self, count: int = 10) -> None:
        for partition in self.sent:
            first = self.sent[partition]
            bodies = (f"{partition}-{number:04d}" for number in range(first, first + count))
            self.hub.send(*bodies, partition=partition)
            self.sent[partition] += count

    def all_sent(self) -> list[str]:
        return [f"{one}-{number:04d}" for one, sent in self.sent.items() for number in range(sent)]

    def stream(self, **options: str) -> DataFrame:
        given = {
            "connectionString": self.hub.connection,
            "startingPosition": "earliest",
            "store": self.store,
            **QUICK,
            **options,
        }
        return self.spark.readStream.format("eventhubs").options(**given).load()

    def start(self, name: str, trigger: dict[str, Any] | None = None, **options: str) -> Sunk:
        given = {"host": name, "assignment": "steady"} | options
        return Sunk(self.stream(**given), self.folder / name, trigger)


class Sunk:
    """A stream into files, and what has come of it."""

    def __init__(
        self, frame: DataFrame, folder: Path, trigger: dict[str, Any] | None = None
    ) -> None:
        self.spark, self.folder = frame.sparkSession, folder
        rows = frame.selectExpr("cast(body as string) as body", "partition", "sequenceNumber")
        writer = rows.writeStream.format("json").option("path", str(folder / "rows"))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        chosen = trigger or {"processingTime": "0 seconds"}
        self.query: StreamingQuery = writer.trigger(**chosen).start()

    def bodies(self) -> list[str]:
        committed = self.folder / "rows"
        if not (committed / "_spark_metadata").exists():
            return []
        rows = self.spark.read.schema("body string").json(str(committed))
        return sorted(row[0] for row in rows.collect())

    def stop(self) -> None:
        self.query.stop()

    def journal(self, batch: int) -> dict[str, Stretch]:
        """What Spark has written down of a batch."""
        text = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text()
        return dict(from_offset("sensors", text.splitlines()[-1]).stretches)

    def tenancy(self) -> dict[str, Any]:
        progress = self.query.lastProgress
        if progress is None:
            return {}
        told = parse_nested_json(progress["sources"][0]["latestOffset"]) or {}
        found: dict[str, Any] = told.get("@tenancy", {})
        return found


@pytest.fixture
def house(spark: SparkSession, hub: Hub, tmp_path: Path) -> House:
    return House(spark, hub, tmp_path)


def test_a_run_that_ends_reads_everything_and_checkpoints_its_last_batch(house: House) -> None:
    house.send()
    alone = house.start("alone", {"availableNow": True})
    assert alone.query.awaitTermination(UNTIL_S)
    assert alone.bodies() == house.all_sent()
    assert house.leases.sequences() == dict.fromkeys("0123", 9)
    until(lambda: house.leases.owners() == dict.fromkeys("0123", ""))
    # From where to where, and under which epoch: a row that was given up keeps its own.
    epochs = house.leases.epochs()
    assert alone.journal(0) == {one: Stretch(0, 10, epochs[one]) for one in "0123"}


def test_the_last_batch_is_checkpointed_though_no_trigger_follows(house: House) -> None:
    """Spark never says that it is done; its folder does."""
    house.send()
    folder = str(house.folder / "alone" / "checkpoint")
    alone = house.start("alone", {"processingTime": "1 hour"}, checkpointLocation=folder)
    until(lambda: alone.bodies() == house.all_sent())
    alone.stop()
    until(lambda: house.leases.owners() == dict.fromkeys("0123", ""))
    assert house.leases.sequences() == dict.fromkeys("0123", 9)


def test_two_queries_share_and_are_seen_as_hosts(house: House) -> None:
    house.send()
    one = house.start("one")
    until(lambda: house.leases.sequences() == dict.fromkeys("0123", 9))
    two = house.start("spark-two", host="", queryName="two")
    until(lambda: Counter(house.leases.owners().values()) == {"one": 2, "spark-two": 2})
    house.send()
    until(lambda: len(one.bodies()) + len(two.bodies()) == 80)
    assert sorted([*one.bodies(), *two.bodies()]) == sorted(house.all_sent())
    until(lambda: len(one.tenancy().get("owns", ())) == 2)
    shown = CliRunner().invoke(
        cli, ["groups", "describe", "$Default", "--connection", house.hub.connection,
         "--store", house.store],
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "spark-two" in shown.output
    two.stop()  # in good order: what it owned is taken over at once, and nothing comes twice
    house.send()
    until(lambda: len(one.bodies()) + len(two.bodies()) == 120)
    assert sorted([*one.bodies(), *two.bodies()]) == sorted(house.all_sent())
