"""`pumphouse doctor`: findings and remedies."""

from __future__ import annotations

import uuid
from pathlib import Path

from azure.storage.blob import BlobServiceClient

from pumphouse.hub.embedded import EmbeddedHub
from tests.azurite.server import Azurite
from tests.cli.conftest import Call, objects
from tests.cli.orders_group import OrdersGroup


def test_all_checks_succeed(orders: OrdersGroup) -> None:
    orders.write()
    done = orders.run("doctor")
    assert done.exit_code == 0, done.stdout
    assert "ok    hub orders at " in done.stdout
    assert "2 partitions" in done.stdout
    assert "ok    consumer group $Default exists" in done.stdout
    assert "ok    checkpoint store responds in" in done.stdout
    assert "0 of 2 partitions owned by 0 hosts" in done.stdout
    again = orders.run("doctor")
    assert again.exit_code == 0, again.stdout


def test_a_store_that_does_not_exist_is_reported(orders: OrdersGroup) -> None:
    """It is not a failure: the first host creates the store. The command does not."""
    done = orders.run("doctor")
    assert done.exit_code == 0, done.stdout
    assert f"warn  no store at {orders.path}. Fix: check --store" in done.stdout
    assert "partitions owned" not in done.stdout
    assert not orders.path.exists()


def test_a_missing_group_is_reported(call: Call, tmp_path: Path) -> None:
    store = str(tmp_path / "leases.db")
    done = call("doctor", "--hub", "orders", "--group", "audit", "--store", store, "-o", "json")
    assert done.exit_code == 3
    (failed,) = [finding for finding in objects(done.stdout) if finding["level"] == "fail"]
    assert failed["what"] == "consumer group audit does not exist"
    assert failed["fix"] == "pumphouse groups create 'audit' --hub orders"


def test_a_missing_hub_and_store_are_reported(call: Call, tmp_path: Path) -> None:
    done = call("doctor", "--store", str(tmp_path), connection=None)
    assert done.exit_code == 3
    assert "fail  no connection string. Fix: use --connection STRING" in done.stdout
    assert "fail  the store check failed" in done.stdout


def test_an_unknown_hub_is_reported(call: Call, event_hub: EmbeddedHub, tmp_path: Path) -> None:
    wrong = event_hub.connection_string("orders").replace("=orders", "=nowhere")
    done = call("doctor", "--store", str(tmp_path / "leases.db"), connection=wrong)
    assert done.exit_code == 3
    assert "fail  the hub check failed" in done.stdout
    assert "nowhere" in done.stdout
    assert "SharedAccessKey=" not in done.stdout


def test_the_format_of_leases_is_reported(call: Call, azurite: Azurite) -> None:
    """Nothing is written beside JavaScript hosts: they take every blob for a partition."""
    container = f"c-{uuid.uuid4()}"
    store = f"bloblease:{azurite.connection_string()};Container={container}"
    with BlobServiceClient.from_connection_string(azurite.connection_string()) as service:
        blobs = service.create_container(container)
        done = call("doctor", "--hub", "orders", "--store", store)
        assert "ok    the container has no leases of this group yet" in done.stdout
        for blob in list(blobs.list_blob_names()):
            blobs.delete_blob(blob)
        blobs.upload_blob("$default/0", b'{"partitionId": "0", "epoch": -1}')
        done = call("doctor", "--hub", "orders", "--store", store)
        assert "ok    leases have the format of JavaScript hosts (javascript)" in done.stdout
        assert list(blobs.list_blob_names()) == ["$default/0"]
        blobs.upload_blob("$Default/0", b'{"PartitionId": "0"}')
        done = call("doctor", "--hub", "orders", "--store", store)
        assert done.exit_code == 3
        assert "has leases in two formats" in done.stdout
