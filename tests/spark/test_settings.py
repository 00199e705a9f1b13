"""Options that say how: each of them changes what is done. Asked as Spark asks, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import azure.identity as azure
import pytest

from pumphouse.clock import MovableClock
from pumphouse.errors import OptionError, PumphouseError
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark import source
from pumphouse.spark.identity import make_credential
from pumphouse.spark.options import SourceOptions, read_source
from pumphouse.spark.read.connections import connections

from .conftest import Hub
from .runs import Run, read_batch
from .test_troubles_writing import two, write


@pytest.fixture(autouse=True)
def _this_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "leave_on_sigterm", lambda: None)
    yield
    connections.close()


# -- by which door, and as whom -------------------------------------------------------------------


@pytest.fixture(scope="module")
def doors() -> Iterator[EmbeddedHub]:
    with EmbeddedHub({"sensors": 1}, tls_port=0, ws_port=0) as house:
        yield house


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_an_authority_of_ones_own(doors: EmbeddedHub, driver: str) -> None:
    hub, authority = Hub(doors, "sensors"), str(doors.ca_file)
    options = {"connectionString": doors.connection_string("sensors", tls=True), "driver": driver}
    with pytest.raises(Exception, match=r"not trusted.*option caFile names an authority"):
        read_batch(hub, **options)
    count = read_batch(hub).total()
    write(hub, two(), **options, caFile=authority)
    assert read_batch(hub, **options, caFile=authority).total() == count + 2


def test_over_a_websocket(doors: EmbeddedHub) -> None:
    hub = Hub(doors, "sensors")
    door = hub.connection.replace(f":{doors.port}", f":{doors.ws_port}")
    count = read_batch(hub).total()
    write(hub, two(), connectionString=door, transport="websocket")
    assert read_batch(hub, connectionString=door, transport="websocket").total() == count + 2


def as_whom(**options: str) -> SourceOptions:
    place = {"fullyQualifiedNamespace": "ns.servicebus.windows.net", "name": "sensors"}
    return read_source(place | options, streaming=True, now_ms=0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("default", azure.DefaultAzureCredential),
        ("managed_identity", azure.ManagedIdentityCredential),
        ("environment", azure.EnvironmentCredential),
        ("azure_cli", azure.AzureCliCredential),
        ("client_secret", azure.ClientSecretCredential),
    ],
)
def test_every_credential_has_its_class(name: str, kind: type) -> None:
    parts = {"tenantId": "t", "clientId": "c", "clientSecret": "s"}
    credential = make_credential(as_whom(credential=name, **parts).identity)
    assert type(credential) is kind
    credential.close()  # type: ignore[union-attr]


def test_without_azure_identity_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(OptionError, match=r"credential=default needs .*pip install 'pumphouse"):
        make_credential(as_whom(credential="default").identity)


# -- what is read ---------------------------------------------------------------------------------


def test_from_a_time_on() -> None:
    clock = MovableClock()
    with EmbeddedHub({"sensors": 1}, clock=clock) as house:
        timed = Hub(house, "sensors")
        timed.send("a", "b", partition="0")
        clock.advance(60)
        later = datetime.fromtimestamp(clock.now(), UTC).isoformat()
        timed.send("c", partition="0")
        assert read_batch(timed) == {"0": 3}
        assert read_batch(timed, startingTimestamp=later) == {"0": 1}
        assert read_batch(timed, endingPosition=later) == {"0": 2}


@pytest.mark.parametrize(("wanted", "found"), [("true", {"0": 1, "5": 1}), ("false", {"0": 1})])
def test_new_partitions_are_looked_for_or_not(
    hub: Hub, event_hub: EmbeddedHub, wanted: str, found: dict[str, int]
) -> None:
    options = {"dynamicPartitionDiscovery": wanted, "partitionDiscoveryInterval": "0s"}
    with Run(hub, **options) as run:
        assert run.batch() == {}
        event_hub.grow_hub("sensors", 6)
        hub.send("a", partition="0")
        hub.send("b", partition="5")
        assert run.batch() + run.batch() == found


def test_an_idle_query_asks_no_more_often_than_it_is_told(hub: Hub) -> None:
    with Run(hub, metadataRefreshInterval="1h") as run:
        hub_state, paused = run.reader.driver.hub_state, list[float]()
        hub_state.sleep = paused.append
        for _ in range(3):
            run.plan()
        assert paused  # nothing was new
        assert all(3000 < seconds <= 3600 for seconds in paused)
        paused.clear()
        hub.send("a", partition="0")
        run.plan()
        run.plan()
        assert len(paused) == 1  # the look after news comes at once


# -- how ------------------------------------------------------------------------------------------


def test_they_reach_those_who_act(hub: Hub) -> None:
    options = {
        "threadPoolSize": "3",
        "prefetchCount": "77",
        "arrowBatchBytes": "1m",
        "retry.total": "5",
        "retry.backoff": "2s",
        "retry.max": "7s",
    }
    hub.send("a", partition="0")
    with Run(hub, **options) as run:
        (part,) = run.plan()
    reading, retry = part.task.reading, part.task.identity.retry
    assert (reading.at_once, reading.prefetch, reading.batch_bytes) == (3, 77, 1 << 20)
    assert (retry.attempts, retry.first_s, retry.most_s) == (5, 2.0, 7.0)


def test_an_acknowledgement_is_not_waited_for_without_end(hub: Hub) -> None:
    hub.house.faults.delay(3600, on="send")
    why = r"did not acknowledge rows 0 to 1 of the task in time \(0\.3 s for each .*see sendTimeout"
    with pytest.raises(PumphouseError, match=why):
        write(hub, two(), sendTimeout="300ms")
    hub.house.faults.clear()
    write(hub, two())
    assert read_batch(hub).total() >= 2
