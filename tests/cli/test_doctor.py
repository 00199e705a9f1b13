"""`pumphouse doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Call, objects


def test_all_is_well(call: Call, tmp_path: Path) -> None:
    found = call("doctor", "--hub", "orders", "--store", str(tmp_path / "leases.db"))
    assert found.exit_code == 0, found.stdout
    assert "ok    hub orders at " in found.stdout
    assert "2 partitions" in found.stdout
    assert "ok    consumer group $Default exists" in found.stdout
    assert "ok    checkpoint store answers in" in found.stdout
    again = call("doctor", "--hub", "orders", "--store", str(tmp_path / "leases.db"))
    assert again.exit_code == 0, again.stdout


def test_a_group_that_is_not_there(call: Call, tmp_path: Path) -> None:
    store = str(tmp_path / "leases.db")
    found = call("doctor", "--hub", "orders", "--group", "audit", "--store", store, "-o", "json")
    assert found.exit_code == 3
    (failed,) = [told for told in objects(found.stdout) if told["level"] == "fail"]
    assert failed["what"] == "consumer group audit does not exist"
    assert failed["fix"] == "pumphouse groups create 'audit' --hub orders"


def test_no_hub_and_no_store(call: Call, tmp_path: Path) -> None:
    found = call("doctor", "--store", str(tmp_path), connection=None)
    assert found.exit_code == 3
    assert "fail  no hub to talk to. Fix: give --connection STRING" in found.stdout
    assert "fail  the checkpoint store does not answer as it should" in found.stdout


def test_a_hub_that_does_not_answer(call: Call, event_hub: EmbeddedHub, tmp_path: Path) -> None:
    wrong = event_hub.connection_string("orders").replace("=orders", "=nowhere")
    found = call("doctor", "--store", str(tmp_path / "leases.db"), connection=wrong)
    assert found.exit_code == 3
    assert "fail  the hub does not answer as it should" in found.stdout
    assert "nowhere" in found.stdout
    assert "SharedAccessKey=" not in found.stdout
