"""A hub that cannot be reached for a while. Readers are called as Spark calls them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

import pytest

from pumphouse.errors import AuthError, ConnectionFailed, PumphouseError
from pumphouse.spark import source
from pumphouse.spark.driver import base
from pumphouse.spark.outages import LONGEST_PAUSE_S, START_S, Outage, pause_s
from pumphouse.spark.read.connections import connections
from tests.spark.conftest import Hub
from tests.spark.support.network import Network
from tests.spark.support.readers import Run, read_batch
from tests.spark.support.waiting import until
from tests.spark.write.rows import two_rows, write

AWAY = ConnectionFailed("away")
# Each attempt fails at once: what waits is the stream, not the client.
NO_RETRY = {"retry.total": "0"}


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


@pytest.fixture
def network(hub: Hub) -> Iterator[Network]:
    with Network(hub.connection) as network:
        yield network


def restore_after_failures(network: Network, failures: int) -> threading.Thread:
    """Restore the network after so many refused connections."""
    before = network.refused

    def restore() -> None:
        until(lambda: network.refused >= before + failures)
        network.restore()

    thread = threading.Thread(target=restore, daemon=True)
    thread.start()
    return thread


# -- pure -----------------------------------------------------------------------------------------


def test_an_outage_may_last_as_long_as_the_option_allows() -> None:
    outage = Outage(600, contacted=True)
    assert [outage.failed(AWAY, now_s) for now_s in (5, 300, 604, 605)] == [True, True, True, False]
    outage.succeeded()
    assert outage.failed(AWAY, 700)
    assert (outage.failures, outage.since_s, outage.error) == (1, 700, "away")


def test_before_the_first_contact_a_query_waits_for_a_minute() -> None:
    outage = Outage(600)
    assert outage.failed(AWAY, 0)
    assert not outage.failed(AWAY, START_S)
    assert not Outage(0).failed(AWAY, 0)


def test_a_permanent_failure_is_no_outage() -> None:
    assert not Outage(600, contacted=True).failed(AuthError("wrong key"), 0)


def test_the_pause_grows_up_to_a_limit() -> None:
    rng = Random(1)
    assert pause_s(1, rng) < 1 < pause_s(4, rng) < pause_s(999, rng) <= LONGEST_PAUSE_S


# -- planning and reading -------------------------------------------------------------------------


def test_planning_waits_for_the_hub(hub: Hub, network: Network) -> None:
    with Run(hub, connectionString=network.connection, **NO_RETRY) as run:
        hub.send("a", partition="0")
        assert run.batch() == {"0": 1}
        hub.send("b", partition="0")
        network.cut()
        waiting = restore_after_failures(network, 2)
        assert run.batch() == {"0": 1}
        waiting.join()


def test_the_progress_shows_that_a_query_waits(
    hub: Hub, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PLANNING_WAITS_S", 0.0)
    with Run(hub, connectionString=network.connection, **NO_RETRY) as run:
        run.plan()
        assert "@waiting" not in run.report()
        network.cut()
        hub.send("a", partition="0")
        assert run.plan() == []  # an empty trigger
        report = run.report()
        assert report["@waiting"]["seconds"] >= 0
        assert "The host is 127.0.0.1" in next(iter(report["@error"]))
        network.restore()
        assert run.batch() == {"0": 1}
        assert "@waiting" not in run.report()


def test_a_run_that_ends_waits_until_the_hub_responds(
    hub: Hub, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch would end it with a backlog."""
    monkeypatch.setattr(base, "PLANNING_WAITS_S", 0.0)
    hub.send("a", partition="0")
    with Run(hub, connectionString=network.connection, **NO_RETRY) as run:
        run.offset = run.reader.initialOffset()
        run.reader.driver.end_at_newest()
        network.cut()
        waiting = restore_after_failures(network, 2)
        assert run.batch() == {"0": 1}
        waiting.join()


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_a_task_retries_the_rest_of_its_span(hub: Hub, network: Network, driver: str) -> None:
    hub.send(*["x" * 10_000] * 2000, partition="0")
    options = {"arrowBatchRows": "100", "driver": driver, **NO_RETRY}
    with Run(hub, connectionString=network.connection, **options) as run:
        (task,) = run.plan(2000)
        reading = run.reader.read(task)
        numbers = next(reading).column("sequenceNumber").to_pylist()
        network.cut()
        waiting = restore_after_failures(network, 2)
        for batch in reading:
            numbers += batch.column("sequenceNumber").to_pylist()
        assert numbers == list(range(2000))
        waiting.join()


def test_half_of_the_attaches_may_be_refused(hub: Hub) -> None:
    hub.embedded.faults.refuse(rate=0.5)
    with Run(hub, **NO_RETRY) as run:
        for _ in range(3):
            for partition in "0123":
                hub.send("a", partition=partition)
            assert run.batch() == dict.fromkeys("0123", 1)


def test_an_outage_that_lasts_too_long_ends_the_query(hub: Hub, network: Network) -> None:
    options = {"connectionString": network.connection, "outageTimeout": "1s", **NO_RETRY}
    with Run(hub, **options) as run:
        run.plan()
        network.cut()
        with pytest.raises(PumphouseError, match=r"The host is 127\.0\.0\.1, from"):
            until(lambda: bool(run.plan()))


def test_a_batch_query_does_not_wait(hub: Hub, network: Network) -> None:
    network.cut()
    with pytest.raises(PumphouseError):
        read_batch(hub, connectionString=network.connection, **NO_RETRY)


def test_a_stream_writer_waits_for_the_hub(hub: Hub, network: Network) -> None:
    network.cut()
    waiting = restore_after_failures(network, 2)
    write(hub, two_rows(), connectionString=network.connection, outageTimeout="1m", **NO_RETRY)
    waiting.join()
    assert len(hub.all_events()) == 2
