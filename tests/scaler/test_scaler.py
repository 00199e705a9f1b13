"""`pumphouse scaler` with a client that protoc has compiled, a hub and a SQLite store."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import RpcError, StatusCode

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Call, refused
from tests.cli.conftest import call as call
from tests.lag.prometheus_server import free_port
from tests.scaler.scaler_process import Scaler, compiled_client, scaler, until

ROOT_KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
EVENTS = 30  # per partition
PARTITIONS = ("0", "1")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return compiled_client(tmp_path_factory.mktemp("client"))


@pytest.fixture
def hub() -> Iterator[EmbeddedHub]:
    with EmbeddedHub(hubs={"orders": 2}, root_key=ROOT_KEY) as hub:
        hub.create_group("orders", "counters")
        yield hub


@pytest.fixture
def running(hub: EmbeddedHub, modules: tuple[Any, Any], tmp_path: Path) -> Iterator[Scaler]:
    """A scaler of a hub whose store has a row of $Default."""
    checkpoint(hub, tmp_path, "$Default", -1)
    store, connection = ("--store", str(tmp_path / "leases.db")), hub.connection_string("orders")
    with scaler(modules, *store, connection=connection) as running:
        yield running


def send(hub: EmbeddedHub) -> None:
    async def work() -> None:
        async with open_client(hub.connection_string("orders")) as client:
            for partition in PARTITIONS:
                sender = await client.sender(partition)
                await sender.send([Event(b"order")] * EVENTS)
                await sender.close()

    asyncio.run(work())


def checkpoint(
    hub: EmbeddedHub, folder: Path, group: str, sequence: int | None, offset: str = "0"
) -> None:
    async def work() -> None:
        async with SqliteStore(folder / "leases.db") as store:
            key = Group(hub.authority, "orders", group)
            etags = {each.partition: each.etag for each in await store.list_checkpoints(key)}
            for partition in PARTITIONS:
                etag = etags.get(partition, "")
                written = Checkpoint(key, partition, sequence, offset, 1, etag)
                await store.update_checkpoint(written)

    asyncio.run(work())


def test_hosts_are_requested_while_events_wait(
    running: Scaler, hub: EmbeddedHub, tmp_path: Path
) -> None:
    assert not running.is_active()
    assert running.value() == 0
    send(hub)
    until(running.is_active)
    assert running.value() == 2 * EVENTS
    assert not running.is_active(activationLagThreshold=str(2 * EVENTS))
    checkpoint(hub, tmp_path, "$Default", EVENTS - 2)
    until(lambda: running.value() == 2)
    checkpoint(hub, tmp_path, "$Default", EVENTS - 1)
    until(lambda: not running.is_active())
    assert running.value() == 0
    code, output = running.program.end(signal.SIGTERM)
    assert (code, output) == (0, "")


def test_one_host_per_partition_is_the_most(running: Scaler, hub: EmbeddedHub) -> None:
    send(hub)
    until(running.is_active)
    spec = running.spec(lagThreshold="7")
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (
        "pumphouse-lag-default", 7, 7.0,
    )  # fmt: skip
    assert running.value(lagThreshold="7") == 2 * 7
    assert running.value(lagThreshold="29") == 2 * 29
    assert running.value(lagThreshold="31") == 2 * EVENTS


def test_a_group_without_a_checkpoint_has_every_event_to_read(
    running: Scaler, hub: EmbeddedHub
) -> None:
    send(hub)
    until(lambda: running.is_active(consumerGroup="counters"))
    assert running.value(consumerGroup="Counters") == 2 * EVENTS


def test_invalid_metadata_is_refused_with_a_sentence(running: Scaler) -> None:
    code, sentence = running.refusal(consumerGroup="countres")
    assert code is StatusCode.INVALID_ARGUMENT
    assert sentence.startswith("invalid consumerGroup 'countres': hub 'orders' has no such ")
    code, sentence = running.refusal(lagThreshold="few")
    assert code is StatusCode.INVALID_ARGUMENT
    assert sentence.startswith("invalid lagThreshold 'few': use a whole number")


def test_an_unknown_lag_is_unavailable(running: Scaler, hub: EmbeddedHub, tmp_path: Path) -> None:
    send(hub)
    checkpoint(hub, tmp_path, "counters", None, offset="12345")
    code, sentence = running.refusal(consumerGroup="counters")
    assert code is StatusCode.UNAVAILABLE
    assert "partition 0 of consumer group 'counters' is unknown" in sentence


def test_without_its_store_the_lag_is_unavailable(running: Scaler, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "leases.db", tmp_path / "elsewhere.db"
    assert running.value() == 0
    path.rename(elsewhere)

    until(lambda: fails(running))
    code, sentence = running.refusal()
    assert code is StatusCode.UNAVAILABLE
    assert sentence.startswith("store: ")
    assert str(path) in sentence
    elsewhere.rename(path)
    until(lambda: not fails(running))
    code, output = running.program.end(signal.SIGTERM)
    assert code == 0
    assert "consumer group $Default: store: " in output
    assert "its lag is known again" in output


def test_without_its_hub_the_lag_is_unavailable(modules: tuple[Any, Any], tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedHub(hubs={"orders": 2}, port=port, root_key=ROOT_KEY) as hub:
        connection = hub.connection_string("orders")
        checkpoint(hub, tmp_path, "$Default", -1)
    with scaler(modules, "--store", str(tmp_path / "leases.db"), connection=connection) as running:
        code, sentence = running.refusal()
        assert code is StatusCode.UNAVAILABLE
        assert sentence.startswith("hub: ")
        code, output = running.program.end(signal.SIGTERM)
    assert code == 0
    assert ROOT_KEY not in sentence + output


def test_a_stream_sends_changes_and_ends_with_the_scaler(
    running: Scaler, hub: EmbeddedHub, tmp_path: Path
) -> None:
    stream = running.stream()
    assert not next(stream).result
    send(hub)
    assert next(stream).result
    (tmp_path / "leases.db").rename(tmp_path / "elsewhere.db")  # unknown: nothing is sent
    until(lambda: fails(running))
    (tmp_path / "elsewhere.db").rename(tmp_path / "leases.db")
    checkpoint(hub, tmp_path, "$Default", EVENTS - 1)
    assert not next(stream).result
    assert running.program.end(signal.SIGTERM)[0] == 0
    assert list(stream) == []


def fails(running: Scaler) -> bool:
    try:
        running.is_active()
    except RpcError:
        return True
    return False


def test_a_port_that_is_in_use_ends_the_command(
    running: Scaler, call: Call, tmp_path: Path
) -> None:
    options = ("--hub", "orders", "--store", str(tmp_path / "leases.db"))
    reason = refused(call("scaler", *options, "--port", str(running.port)), 1)
    assert f"cannot listen on 127.0.0.1:{running.port} for gRPC" in reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--store", "memory:"), "its own process only"), (("--hub", ""), "no hub")],
)
def test_invalid_options_end_the_command(call: Call, options: tuple[str, ...], reason: str) -> None:
    hub = () if "--hub" in options else ("--hub", "orders")
    assert reason in refused(call("scaler", *hub, *options), 2)


def test_a_call_that_later_versions_of_keda_try_is_unimplemented(running: Scaler) -> None:
    """KEDA then continues without it."""
    call = running.channel.unary_stream("/externalscaler.ExternalScaler/StreamMetricSpec")
    with pytest.raises(RpcError) as error:
        list(call(b"", timeout=30))
    assert error.value.code() is StatusCode.UNIMPLEMENTED
