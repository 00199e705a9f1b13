"""A stream of several hubs, whose reader is called as Spark calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pumphouse.errors import AuthError, OptionError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark import source
from pumphouse.spark.lag.known_positions import progress_of_sources
from pumphouse.spark.offsets import DataLoss
from pumphouse.spark.read.connections import connections
from pumphouse.spark.source import StreamReader
from pumphouse.spark.versions.features import SHARING
from tests.spark.conftest import Hub
from tests.spark.support.readers import FAST_RETRIES, with_wrong_key

SCHEMA = StructType(
    [StructField("hub", StringType(), False), StructField("sequenceNumber", LongType())]
)
ALL = 1 << 60
TENANT = {"assignment": "steady", "host": "one", "cycleInterval": "200ms"}


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


@pytest.fixture
def hubs(event_hub: EmbeddedHub) -> dict[str, Hub]:
    """Two hubs, with 30 and 10 events."""
    made = {}
    for name, count in (("doors", 30), ("sensors", 10)):
        event_hub.create_hub(name, 2)
        made[name] = Hub(event_hub, name)
        made[name].send(*map(str, range(count)), partition="0")
    return made


class Run:
    """One run of a stream of several hubs."""

    def __init__(self, hub: Hub, **options: str) -> None:
        given = {
            "connectionString": hub.embedded.connection_string(),
            "startingPosition": "earliest",
        }
        self.reader = StreamReader(given | FAST_RETRIES | options, SCHEMA)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.stop()

    def plan(
        self, start: dict[str, Any], rows: int | None = ALL, everything: bool = False
    ) -> dict[str, Any]:
        return self.reader.driver.latest_offset(start, rows, everything)

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> Counter[str]:
        """The number of rows of each hub."""
        rows = Counter[str]()
        for task in self.reader.partitions(start, end):
            for batch in self.reader.read(task):
                rows.update(batch.column("hub").to_pylist())
        return rows


def numbers(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {name: numbers for name, numbers in offset.items() if not name.startswith("@")}


def test_a_batch_reads_every_hub_and_each_row_names_its_hub(hubs: dict[str, Hub]) -> None:
    with Run(hubs["doors"], name="doors,sensors") as run:
        start = run.reader.initialOffset()
        end = run.plan(start)
        assert run.read(start, end) == {"doors": 30, "sensors": 10}
        assert numbers(end) == {"doors": {"0": 30, "1": 0}, "sensors": {"0": 10, "1": 0}}
        assert run.plan(end) == end  # nothing is new
        hubs["sensors"].send("x", partition="1")
        later = run.plan(end)
        assert run.read(end, later) == {"sensors": 1}
        report = run.reader.driver.report()
        lags = progress_of_sources({"sources": [{"endOffset": end, "latestOffset": report}]})
        assert [(each.hub, dict(each.latest)) for each in lags] == [*numbers(later).items()]
        assert {each.reader for each in lags} == {f"{hubs['doors'].embedded.authority}/$default"}


def test_a_limit_is_shared_in_proportion_to_what_waits(hubs: dict[str, Hub]) -> None:
    with Run(hubs["doors"], name="doors,sensors", maxEventsPerTrigger="8") as run:
        start, rows = run.reader.initialOffset(), []
        run.reader.driver.end_at_newest()
        hubs["doors"].send("too late", partition="0")
        while (end := run.plan(start, run.reader.driver.default_limit())) != start:
            rows.append(run.read(start, end))
            start = end
        assert rows[0] == {"doors": 6, "sensors": 2}
        assert sum(rows, Counter()) == {"doors": 30, "sensors": 10}
        assert max(each.total() for each in rows) == 8


def test_a_batch_waits_for_enough_events_of_all_hubs(hubs: dict[str, Hub]) -> None:
    with Run(hubs["doors"], name="doors,sensors", minEventsPerTrigger="41") as run:
        start = run.reader.initialOffset()
        assert run.plan(start) == start
        hubs["sensors"].send("x", partition="1")
        assert run.read(start, run.plan(start)) == {"doors": 30, "sensors": 11}


def test_a_checkpoint_of_one_hub_is_continued_with_another_one_added(hubs: dict[str, Hub]) -> None:
    with Run(hubs["doors"], name="doors") as alone:
        end = alone.plan(alone.reader.initialOffset())
    with Run(hubs["doors"], name="Doors,sensors", startingPosition="latest") as run:
        pinned = run.plan(end)
        assert run.read(end, pinned) == {}  # Spark journals the start of the new hub
        last = run.plan(pinned)
        assert run.read(pinned, last) == {"sensors": 10}
    with Run(hubs["doors"], name="Doors,sensors") as replay:
        assert replay.read(pinned, last) == {"sensors": 10}
    with Run(hubs["doors"], name="doors") as alone, pytest.raises(OptionError, match="as before"):
        alone.plan(last)
    with Run(hubs["doors"], name="doors,") as run, pytest.raises(DataLoss, match="hub sensors is"):
        run.plan(last)
    hubs["doors"].send("x", partition="1")
    with Run(hubs["doors"], name="doors,", failOnDataLoss="false") as run:
        assert run.read(last, run.plan(last, None, everything=True)) == {"doors": 1}


def test_a_hub_that_appears_is_read_from_its_first_event(hubs: dict[str, Hub]) -> None:
    embedded = hubs["doors"].embedded
    options = {"namePattern": "(doors|door-.*)", "partitionDiscoveryInterval": "0s"}
    with Run(hubs["doors"], startingPosition="latest", **options) as run:
        start = run.reader.initialOffset()
        assert numbers(start) == {"doors": {"0": 30, "1": 0}}
        assert run.plan(start) == start
        embedded.create_hub("door-2", 1)
        Hub(embedded, "door-2").send(*"ab")
        pinned = run.plan(start)
        assert run.read(pinned, run.plan(pinned)) == {"door-2": 2}
        embedded.delete_hub("door-2")
        with pytest.raises(DataLoss, match="hub door-2 is in the checkpoint"):
            run.plan(pinned)


@pytest.mark.parametrize("key", ["Listen", "wrong"])
def test_a_pattern_needs_a_namespace_that_lists_its_hubs(hubs: dict[str, Hub], key: str) -> None:
    hub = hubs["doors"]
    if key == "wrong":
        connection = with_wrong_key(hub).replace(";EntityPath=doors", "")
    else:
        hub.embedded.create_rule("ear", [Claim.LISTEN])
        connection = hub.embedded.connection_string(rule="ear")
    with (
        Run(hub, connectionString=connection, namePattern=".*") as run,
        pytest.raises(AuthError, match=r"namePattern needs the claim Manage.*name=a,b"),
    ):
        run.reader.initialOffset()


def test_a_pattern_without_a_match_is_refused(hubs: dict[str, Hub]) -> None:
    with (
        Run(hubs["doors"], namePattern="x.*") as run,
        pytest.raises(OptionError, match=r"namePattern=x\.\* matches no hub .* doors, sensors"),
    ):
        run.reader.initialOffset()


def test_an_error_names_its_hub(hubs: dict[str, Hub]) -> None:
    with (
        Run(hubs["doors"], name="doors,sensors", partitions="0,5") as run,
        pytest.raises(OptionError, match="hub doors: invalid partitions"),
    ):
        run.reader.initialOffset()


@pytest.mark.needs(SHARING)
def test_a_tenant_shares_the_partitions_of_each_hub(hubs: dict[str, Hub], tmp_path: Path) -> None:
    options = {**TENANT, "name": "doors,sensors", "store": f"sqlite:///{tmp_path}/leases.db"}
    with Run(hubs["doors"], **options, maxEventsPerTrigger="20") as run:
        start, rows = run.reader.initialOffset(), Counter[str]()
        run.reader.driver.end_at_newest()
        while (end := run.plan(start, run.reader.driver.default_limit())) != start:
            rows += run.read(start, end)
            start = end
        assert rows == {"doors": 30, "sensors": 10}
    hubs["sensors"].send("x", partition="1")
    with Run(hubs["doors"], **options) as crashed:
        end = crashed.plan(start)
    with Run(hubs["doors"], **options) as again:
        assert again.read(start, end) == {"sensors": 1}
        assert again.plan(end) == end
