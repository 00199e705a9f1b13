"""Options of how to read and write: each has its effect. Readers are called without Spark."""

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
from tests.spark.conftest import Hub
from tests.spark.support.readers import Run, read_batch
from tests.spark.write.rows import two_rows, write


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


# -- listeners and credentials --------------------------------------------------------------------


@pytest.fixture(scope="module")
def listeners() -> Iterator[EmbeddedHub]:
    with EmbeddedHub({"sensors": 1}, tls_port=0, ws_port=0) as embedded:
        yield embedded


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_a_private_certificate_authority(listeners: EmbeddedHub, driver: str) -> None:
    hub, authority = Hub(listeners, "sensors"), str(listeners.ca_file)
    options = {
        "connectionString": listeners.connection_string("sensors", tls=True),
        "driver": driver,
    }
    with pytest.raises(Exception, match=r"not trusted.*option caFile names an authority"):
        read_batch(hub, **options)
    count = read_batch(hub).total()
    write(hub, two_rows(), **options, caFile=authority)
    assert read_batch(hub, **options, caFile=authority).total() == count + 2


def test_reading_and_writing_over_a_websocket(listeners: EmbeddedHub) -> None:
    hub = Hub(listeners, "sensors")
    websocket = hub.connection.replace(f":{listeners.port}", f":{listeners.ws_port}")
    count = read_batch(hub).total()
    write(hub, two_rows(), connectionString=websocket, transport="websocket")
    assert read_batch(hub, connectionString=websocket, transport="websocket").total() == count + 2


def options_with(**options: str) -> SourceOptions:
    namespace = {"fullyQualifiedNamespace": "ns.servicebus.windows.net", "name": "sensors"}
    return read_source(namespace | options, streaming=True, now_ms=0)


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
    credential = make_credential(options_with(credential=name, **parts).identity)
    assert type(credential) is kind
    credential.close()  # type: ignore[union-attr]


def test_without_azure_identity_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(OptionError, match=r"credential=default needs .*pip install 'pumphouse"):
        make_credential(options_with(credential="default").identity)


# -- what is read ---------------------------------------------------------------------------------


def test_reading_from_a_time() -> None:
    clock = MovableClock()
    with EmbeddedHub({"sensors": 1}, clock=clock) as embedded:
        timed = Hub(embedded, "sensors")
        timed.send("a", "b", partition="0")
        clock.advance(60)
        later = datetime.fromtimestamp(clock.now(), UTC).isoformat()
        timed.send("c", partition="0")
        assert read_batch(timed) == {"0": 3}
        assert read_batch(timed, startingTimestamp=later) == {"0": 1}
        assert read_batch(timed, endingPosition=later) == {"0": 2}


@pytest.mark.parametrize(
    ("discovery", "expected"), [("true", {"0": 1, "5": 1}), ("false", {"0": 1})]
)
def test_new_partitions_are_discovered_only_on_request(
    hub: Hub, event_hub: EmbeddedHub, discovery: str, expected: dict[str, int]
) -> None:
    options = {"dynamicPartitionDiscovery": discovery, "partitionDiscoveryInterval": "0s"}
    with Run(hub, **options) as run:
        assert run.batch() == {}
        event_hub.grow_hub("sensors", 6)
        hub.send("a", partition="0")
        hub.send("b", partition="5")
        assert run.batch() + run.batch() == expected


def test_an_idle_query_keeps_the_refresh_interval(hub: Hub) -> None:
    with Run(hub, metadataRefreshInterval="1h") as run:
        hub_state, pauses = run.query_run.hub_state, list[float]()
        hub_state.sleep = pauses.append
        for _ in range(3):
            run.plan()
        assert pauses  # nothing had changed
        assert all(3000 < seconds <= 3600 for seconds in pauses)
        pauses.clear()
        hub.send("a", partition="0")
        run.plan()
        run.plan()
        assert len(pauses) == 1  # the refresh after a change comes at once


# -- how ------------------------------------------------------------------------------------------


def test_options_reach_the_tasks(hub: Hub) -> None:
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
        (partition,) = run.plan()
    reading, retry = partition.task.reading, partition.task.identity.retry
    assert (reading.threads, reading.prefetch, reading.batch_bytes) == (3, 77, 1 << 20)
    assert (retry.attempts, retry.first_s, retry.most_s) == (5, 2.0, 7.0)


def test_the_wait_for_an_acknowledgement_is_bounded(hub: Hub) -> None:
    hub.embedded.faults.delay(3600, on="send")
    reason = (
        r"did not acknowledge rows 0 to 1 of the task in time \(0\.3 s for each .*see sendTimeout"
    )
    with pytest.raises(PumphouseError, match=reason):
        write(hub, two_rows(), sendTimeout="300ms")
    hub.embedded.faults.clear()
    write(hub, two_rows())
    assert read_batch(hub).total() >= 2
