"""Of two queries in one consumer group the newer one reads, and the older one fails.

Readers are called as Spark calls them, without Spark. Their tasks have the names of queries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.events import LATEST
from pumphouse.spark import source
from pumphouse.spark.driver import all_partitions, guard, hub_state
from pumphouse.spark.driver.epochs import EPOCH_MAX, HEADROOM, epoch_above, run_epoch
from pumphouse.spark.read import task as read_task
from pumphouse.spark.read.connections import connections
from pumphouse.spark.read.siblings import BATCH_EPOCH, TaskOrigin, is_reader_of_driver, probe_name
from tests.spark.conftest import Hub
from tests.spark.support.network import Network
from tests.spark.support.readers import Run, both_drivers
from tests.spark.support.waiting import until

OLDER = "41c83318-bdb3-450d-a84d-a449b8a4a06c"
NEWER = "09b48ed3-a7e2-4b15-9b04-49e54b15af3d"
FIRST = "11111111"  # the id of a run

ReadAs = Callable[[Run, str], Counter[str]]
every_feedback = pytest.mark.parametrize("feedback", ["true", "false"])


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    monkeypatch.setattr(guard, "RETRY_S", 0.05)
    monkeypatch.setattr(guard, "PAUSE_S", 0.02)
    yield
    connections.close()


@pytest.fixture
def read_as(monkeypatch: pytest.MonkeyPatch) -> ReadAs:
    """Reads the next batch of a run, as a batch of the query with this id."""

    def read(run: Run, query: str) -> Counter[str]:
        monkeypatch.setattr(read_task, "task_origin", lambda: TaskOrigin(query, FIRST, "1"))
        return run.batch()

    return read


def has_failed(run: Run) -> bool:
    """Whether the query has failed because the newer one has taken its group."""
    try:
        run.plan()
    except PumphouseError as failed:
        return f"has another reader with a higher epoch: the query with id {NEWER}" in str(failed)
    return False


@both_drivers
@every_feedback
def test_the_older_query_fails_though_its_triggers_and_those_of_the_newer_never_meet(
    hub: Hub, read_as: ReadAs, driver: str, feedback: str
) -> None:
    options = {"driver": driver, "taskFeedback": feedback}
    hub.send("a", partition="1")
    with Run(hub, **options) as older, Run(hub, **options) as newer:
        assert read_as(older, OLDER) == {"1": 1}
        assert read_as(newer, NEWER) == {"1": 1}
        until(lambda: has_failed(older))
        hub.send("b", partition="1")
        assert read_as(newer, NEWER) == {"1": 1}


def test_a_task_of_the_older_query_is_refused_between_two_batches_of_the_newer(
    hub: Hub, read_as: ReadAs
) -> None:
    hub.send("a", partition="0")
    with Run(hub) as older, Run(hub) as newer:
        assert read_as(older, OLDER) == {"0": 1}
        assert read_as(newer, NEWER) == {"0": 1}
        hub.send("b", partition="0")

        def is_refused() -> bool:
            try:
                return not read_as(older, OLDER)
            except PumphouseError as failed:
                return f"the query with id {NEWER}" in str(failed)

        until(is_refused)


def has_reader(hub: Hub, partition: str) -> bool:
    """Whether a reader with an epoch is attached: then the hub refuses those without."""

    async def attach() -> None:
        async with open_client(hub.connection) as client:
            await (await client.reader(ReaderOptions(partition, "$Default", LATEST))).close()

    try:
        asyncio.run(attach())
    except ReaderEvicted:
        return True
    return False


@pytest.mark.parametrize("options", [{}, {"partitions": "2,1"}])
def test_the_newer_query_reads_though_its_clock_is_an_hour_behind(
    hub: Hub,
    read_as: ReadAs,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
) -> None:
    guarded = "1" if options else "0"
    hub.send("a", partition="2")
    with Run(hub, **options) as older:
        assert read_as(older, OLDER) == {"2": 1}
        until(lambda: has_reader(hub, guarded))
        an_hour_ago = run_epoch() - 3_600_000 * BATCH_EPOCH
        monkeypatch.setattr(all_partitions, "run_epoch", lambda: an_hour_ago)
        with Run(hub, **options) as newer:
            for _ in range(2):
                assert read_as(newer, NEWER) == {"2": 1}
                hub.send("b", partition="2")
            until(lambda: has_failed(older))


def test_an_epoch_is_raised_above_that_of_a_reader_that_is_present() -> None:
    assert epoch_above(7 * BATCH_EPOCH, None) == 7 * BATCH_EPOCH
    assert epoch_above(7 * BATCH_EPOCH, 7 * BATCH_EPOCH - 1) == 7 * BATCH_EPOCH
    # The other query raises its epoch with every batch, until it notices.
    assert epoch_above(0, 7 * BATCH_EPOCH + 5) == 7 * BATCH_EPOCH + HEADROOM
    assert epoch_above(0, EPOCH_MAX) == 0  # the hub then names the reader with this epoch


def test_two_sources_of_a_query_read_the_same_hub(hub: Hub, read_as: ReadAs) -> None:
    with Run(hub) as first, Run(hub) as second:
        for _ in range(5):
            hub.send("a", partition="0")
            hub.send("b", partition="2")
            assert read_as(first, OLDER) == {"0": 1, "2": 1}
            assert read_as(second, OLDER) == {"0": 1, "2": 1}
            assert first.plan() == second.plan() == []


def test_the_guard_returns_after_an_outage(hub: Hub, read_as: ReadAs) -> None:
    hub.send("a", partition="0")
    with (
        Network(hub.connection) as network,
        Run(hub, connectionString=network.connection) as older,
        Run(hub) as newer,
    ):
        assert read_as(older, OLDER) == {"0": 1}
        network.cut()
        network.restore()
        assert read_as(newer, NEWER) == {"0": 1}
        until(lambda: has_failed(older))


def test_the_driver_reads_a_partition_that_its_guard_reads(
    hub: Hub, read_as: ReadAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of events, and whether a partition is frozen, are measured by readers."""
    monkeypatch.setattr(hub_state, "UNRESPONSIVE_S", 0.5)
    options = {"unavailablePartitions": "skip", "maxBytesPerTrigger": "1k", "partitions": "0"}
    with Run(hub, **options) as run:
        for _ in range(3):
            hub.send("a" * 100, "b" * 100, partition="0")
            assert read_as(run, OLDER) == {"0": 2}
        hub.send("c", partition="0")
        hub.embedded.faults.freeze("sensors", "0")
        assert run.plan() == []
        assert run.report()["@unavailable"] == {"0": 0}


def test_tasks_evict_the_readers_of_drivers() -> None:
    """The guard of a source of the same query, and a driver that only looks up something."""
    name = TaskOrigin(OLDER, FIRST, "1").reader_name("spark")

    def refused_by(other: str) -> ReaderEvicted:
        text = f"Receiver '{other}' with a higher epoch '7' already exists."
        return ReaderEvicted("amqp:link:stolen", text, 7)

    assert is_reader_of_driver(refused_by(f"spark-{OLDER}-{FIRST}-"), name)
    assert is_reader_of_driver(refused_by(probe_name("1a2b3c4d")), name)
    assert not is_reader_of_driver(refused_by(f"spark-{NEWER}-{FIRST}-"), name)
    assert not is_reader_of_driver(refused_by(name), name)
    assert not is_reader_of_driver(refused_by("spark-1a2b3c4d"), "spark-1a2b3c4d")
