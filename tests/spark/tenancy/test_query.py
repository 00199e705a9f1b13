"""Queries on a local Spark that share a consumer group."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import main as cli
from pumphouse.leases.model import Group
from pumphouse.spark.lag.known_positions import parse_nested_json
from pumphouse.spark.tenancy.journal import JournalRange, from_offset
from pumphouse.spark.versions.features import SHARING
from tests.spark.conftest import Hub
from tests.spark.support.queries import FileSink
from tests.spark.support.waiting import until
from tests.spark.tenancy.support.lease_view import LeaseView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.needs(SHARING),
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("queries"),
]

UNTIL_S = 300
SHORT_TIMES = {"leaseDuration": "8s", "renewInterval": "1s", "cycleInterval": "500ms"}


class QueryGroup:
    """A hub of four partitions, the leases of its group, and queries that read it."""

    def __init__(self, spark: SparkSession, hub: Hub, folder: Path) -> None:
        self.spark, self.hub, self.folder = spark, hub, folder
        self.store = f"sqlite:///{folder}/leases.db"
        self.leases = LeaseView(self.store, Group(hub.embedded.authority, hub.name))
        self.sent = dict.fromkeys("0123", 0)

    def send(self, count: int = 10) -> None:
        for partition in self.sent:
            first = self.sent[partition]
            bodies = (f"{partition}-{number:04d}" for number in range(first, first + count))
            self.hub.send(*bodies, partition=partition)
            self.sent[partition] += count

    def all_sent(self) -> list[str]:
        return [
            f"{name}-{number:04d}" for name, sent in self.sent.items() for number in range(sent)
        ]

    def stream(self, **options: str) -> DataFrame:
        given = {
            "connectionString": self.hub.connection,
            "startingPosition": "earliest",
            "store": self.store,
            **SHORT_TIMES,
            **options,
        }
        return self.spark.readStream.format("eventhubs").options(**given).load()

    def start(self, name: str, trigger: dict[str, Any] | None = None, **options: str) -> TenantSink:
        given = {"host": name, "assignment": "steady"} | options
        return TenantSink(self.stream(**given), self.folder / name, **(trigger or {}))


class TenantSink(FileSink):
    """A stream of a tenant into files."""

    def journal(self, batch: int) -> dict[str, JournalRange]:
        """What Spark has journalled for a batch."""
        text = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text()
        return dict(from_offset("sensors", text.splitlines()[-1]).ranges)

    def tenancy(self) -> dict[str, Any]:
        progress = self.query.lastProgress
        if progress is None:
            return {}
        latest = parse_nested_json(progress["sources"][0]["latestOffset"]) or {}
        tenancy: dict[str, Any] = latest.get("@tenancy", {})
        return tenancy


@pytest.fixture
def group(spark: SparkSession, hub: Hub, tmp_path: Path) -> QueryGroup:
    return QueryGroup(spark, hub, tmp_path)


def test_a_run_that_ends_reads_everything_and_checkpoints_its_last_batch(group: QueryGroup) -> None:
    group.send()
    alone = group.start("alone", {"availableNow": True})
    assert alone.query.awaitTermination(UNTIL_S)
    assert alone.bodies() == group.all_sent()
    until(lambda: group.leases.owners() == dict.fromkeys("0123", ""), UNTIL_S)
    assert group.leases.sequences() == dict.fromkeys("0123", 9)  # written before the release
    # The journal has the range and the epoch; a released row keeps its epoch.
    epochs = group.leases.epochs()
    assert alone.journal(0) == {name: JournalRange(0, 10, epochs[name]) for name in "0123"}


def test_the_last_batch_is_checkpointed_without_another_trigger(group: QueryGroup) -> None:
    """Its commit is seen in the checkpoint folder only."""
    group.send()
    folder = group.folder / "alone" / "checkpoint"
    alone = group.start("alone", {"processingTime": "1 hour"}, checkpointLocation=str(folder))
    until(lambda: (folder / "commits" / "0").exists(), UNTIL_S)
    assert alone.bodies() == group.all_sent()
    alone.query.stop()
    until(lambda: group.leases.owners() == dict.fromkeys("0123", ""), UNTIL_S)
    assert group.leases.sequences() == dict.fromkeys("0123", 9)


def test_two_queries_share_and_are_shown_as_hosts(group: QueryGroup) -> None:
    group.send()
    one = group.start("one")
    until(lambda: group.leases.sequences() == dict.fromkeys("0123", 9), UNTIL_S)
    two = group.start("spark-two", host="", queryName="two")
    until(lambda: Counter(group.leases.owners().values()) == {"one": 2, "spark-two": 2}, UNTIL_S)
    group.send()
    until(lambda: len(one.bodies()) + len(two.bodies()) >= 80, UNTIL_S, "80 events")
    assert sorted([*one.bodies(), *two.bodies()]) == sorted(group.all_sent())
    until(lambda: len(one.tenancy().get("owns", ())) == 2, UNTIL_S)
    shown = CliRunner().invoke(
        cli, ["groups", "describe", "$Default", "--connection", group.hub.connection,
         "--store", group.store],
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "spark-two" in shown.output
    # Spark commits a batch after its files are visible; a query that stops before is read again.
    until(lambda: group.leases.sequences() == dict.fromkeys("0123", 19), UNTIL_S, "checkpoints")
    two.query.stop()  # its partitions are taken over at once, and no event is read twice
    group.send()
    until(lambda: len(one.bodies()) + len(two.bodies()) >= 120, UNTIL_S, "120 events")
    assert sorted([*one.bodies(), *two.bodies()]) == sorted(group.all_sent())
