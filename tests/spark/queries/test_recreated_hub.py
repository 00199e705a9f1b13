"""A hub that was deleted and created again, and has grown past the offsets of a query.

Readers are called as Spark calls them, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from pumphouse.spark import source
from pumphouse.spark.generation import HUB_KEY
from pumphouse.spark.read.connections import connections
from pumphouse.spark.source import BatchReader
from pumphouse.spark.versions.features import SHARING
from tests.spark.conftest import Hub
from tests.spark.support.readers import (
    PRUNED,
    SCHEMA,
    PrunedRun,
    Run,
    both_drivers,
    count_rows,
    options_for,
)

LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


def create_again(hub: Hub, events: int) -> None:
    hub.embedded.delete_hub(hub.name)
    hub.embedded.create_hub(hub.name, 4)
    hub.send(*(f"new {number}" for number in range(events)), partition="0")


def send_old(hub: Hub) -> None:
    hub.send(*(f"old {number}" for number in range(100)), partition="0")


@both_drivers
@pytest.mark.parametrize("restarted", [True, False])
def test_a_hub_created_again_is_noticed_though_it_has_grown_past_the_offset(
    hub: Hub, restarted: bool, driver: str
) -> None:
    send_old(hub)
    with Run(hub, driver=driver) as run, Run(hub, driver=driver) as other:
        assert run.batch() == {"0": 100}
        create_again(hub, 160)
        again = other if restarted else run
        again.offset = run.offset
        with pytest.raises(Exception, match=r"hub sensors was re-created: the checkpoint is of"):
            again.plan()


@pytest.mark.parametrize("restarted", [True, False])
def test_a_hub_created_again_is_read_from_its_beginning_if_that_is_allowed(
    hub: Hub, restarted: bool
) -> None:
    send_old(hub)
    with Run(hub, **LENIENT) as run, Run(hub, **LENIENT) as other:
        assert run.batch() == {"0": 100}
        create_again(hub, 160)
        again = other if restarted else run
        again.offset = run.offset
        assert again.batch() == {"0": 160}
        assert again.batch() == {}


def test_a_hub_created_again_with_as_many_events_is_read(hub: Hub) -> None:
    """The numbers of the new offset equal those of the old one."""
    send_old(hub)
    with Run(hub, **LENIENT) as run:
        assert run.batch() == {"0": 100}
        create_again(hub, 100)
        assert run.batch() == {"0": 100}
        assert run.batch() == {}


@pytest.mark.parametrize(
    ("driver", "kind", "feedback"),
    [
        ("native", Run, "true"),
        ("native", PrunedRun, "true"),
        ("native", Run, "false"),
        ("native", PrunedRun, "false"),
        ("azure", PrunedRun, "false"),
    ],
)
def test_a_task_notices_that_the_hub_was_created_again_after_its_batch_was_planned(
    hub: Hub, driver: str, kind: type[Run], feedback: str
) -> None:
    send_old(hub)
    options = {"driver": driver, "taskFeedback": feedback}
    with kind(hub, **options) as run, Run(hub, **options, **LENIENT) as lenient:
        (task,), (lenient_task,) = run.plan(), lenient.plan()
        create_again(hub, 160)
        with pytest.raises(Exception, match=r"re-created while a batch was read: events 0 to 99"):
            list(run.reader.read(task))
        assert count_rows(lenient.reader, lenient_task) == {}
        assert lenient.batch() == {"0": 160}


@pytest.mark.parametrize(
    ("driver", "schema"), [("native", SCHEMA), ("native", PRUNED), ("azure", PRUNED)]
)
def test_a_task_of_a_batch_query_notices_that_the_hub_was_created_again(
    hub: Hub, driver: str, schema: StructType
) -> None:
    send_old(hub)
    given = options_for(hub, driver=driver)
    reader, lenient = BatchReader(given, schema), BatchReader(given | LENIENT, schema)
    (task, *_), (lenient_task, *_) = reader.partitions(), lenient.partitions()
    assert [batch.schema.names for batch in reader.read(task)] == [schema.names]
    create_again(hub, 160)
    with pytest.raises(Exception, match=r"re-created while a batch was read: events 0 to 99"):
        list(reader.read(task))
    assert list(lenient.read(lenient_task)) == []


def test_a_batch_of_the_earlier_hub_is_not_replayed_with_events_of_the_new_one(hub: Hub) -> None:
    send_old(hub)
    with Run(hub, **LENIENT) as run:
        start = run.reader.initialOffset()
        end = run.reader.driver.latest_offset(start, 1000)
    create_again(hub, 160)
    with Run(hub, **LENIENT) as replayed:
        assert list(replayed.reader.partitions(start, end)) == []
    with Run(hub) as strict, pytest.raises(Exception, match="re-created"):
        strict.reader.partitions(start, end)


def test_a_journal_without_a_creation_time_is_continued(hub: Hub) -> None:
    """As version 0.1 and the Scala connector wrote it; the next batch adds the time."""
    send_old(hub)
    old = {"sensors": {"0": 40, "1": 0, "2": 0, "3": 0}}
    with Run(hub) as run:
        run.offset = old
        assert run.batch() == {"0": 60}
        assert run.offset[HUB_KEY]["created"] > 0
        run.offset = old | {"sensors": {"0": 100, "1": 0, "2": 0, "3": 0}}
        assert run.plan() == []
        assert HUB_KEY not in run.offset  # nothing is new: the offset stays the same


def test_a_hub_created_again_is_noticed_by_a_run_whose_journal_has_no_creation_time(
    hub: Hub,
) -> None:
    """Before its first batch with events, which adds the time."""
    send_old(hub)
    old = {"sensors": {"0": 100, "1": 0, "2": 0, "3": 0}}
    with Run(hub) as run, Run(hub, **LENIENT) as lenient:
        run.offset = lenient.offset = old
        assert run.plan() == lenient.plan() == []
        create_again(hub, 160)
        with pytest.raises(Exception, match=r"hub sensors was re-created: the checkpoint is of"):
            run.plan()
        assert lenient.batch() == {"0": 160}
        assert lenient.batch() == {}


@pytest.mark.needs(SHARING)
def test_a_query_that_shares_its_group_notices_a_hub_created_again(
    hub: Hub, tmp_path: Path
) -> None:
    """By its own journal, and by a checkpoint that is older than the hub."""
    shared = {
        "assignment": "steady", "store": f"sqlite:///{tmp_path}/leases.db", "cycleInterval": "1s",
    }  # fmt: skip
    send_old(hub)
    with Run(hub, **shared) as run:
        assert run.batch() == {"0": 100}
        assert run.reader.driver.latest_offset(run.offset, 1000) == run.offset  # commits
        journalled = run.offset
    create_again(hub, 160)
    reason = "hub sensors was re-created"
    for offset in (journalled, {}):
        with Run(hub, **shared) as again:
            again.offset = offset
            with pytest.raises(Exception, match=reason):
                again.plan()
    for offset in (journalled, {}):
        with Run(hub, **shared, **LENIENT) as lenient:
            lenient.offset = offset
            assert lenient.batch() == {"0": 160}
