"""`pumphouse faults` with a hub in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from pumphouse import EmbeddedHub
from pumphouse.cli import main


@pytest.fixture
def hub() -> Iterator[EmbeddedHub]:
    with EmbeddedHub(hubs={"sensors": 2}) as hub:
        yield hub


def run(hub: EmbeddedHub, *args: str) -> Result:
    return CliRunner().invoke(main, ["faults", *args, "--connection", hub.connection_string()])


def test_a_fault_is_added_listed_and_cleared(hub: EmbeddedHub) -> None:
    added = run(hub, "add", "delay", "--seconds", "0.5", "--hub", "sensors", "--rate", "0.25")
    assert (added.exit_code, added.output) == (0, "added fault 1: delay\n")
    [fault] = hub.faults.planned
    assert (fault.action, fault.moment, fault.seconds, fault.rate) == ("delay", "send", 0.5, 0.25)
    listed = run(hub, "list")
    assert listed.output.splitlines()[1].split() == [
        "1", "delay", "send", "sensors", "-", "-", "0.25", "-", "0.5",
    ]  # fmt: skip
    assert json.loads(run(hub, "list", "-o", "json").output)["action"] == "delay"
    assert run(hub, "clear").output == "cleared all faults\n"
    assert hub.faults.planned == ()


def test_a_fault_of_an_unknown_hub_is_added_with_a_warning(hub: EmbeddedHub) -> None:
    added = run(hub, "add", "freeze", "--hub", "sensor")
    assert added.exit_code == 0
    assert added.stderr == (
        "WARNING: no hub 'sensor' (found sensors): fault 1 takes effect when it is created\n"
    )
    assert run(hub, "add", "freeze", "--hub", "Sensors").stderr == ""


def test_one_fault_is_cleared(hub: EmbeddedHub) -> None:
    run(hub, "add", "throttle", "--times", "3")
    run(hub, "add", "freeze", "--hub", "sensors")
    assert run(hub, "clear", "1").exit_code == 0
    assert [fault.action for fault in hub.faults.planned] == ["freeze"]
    assert run(hub, "clear", "1").exit_code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("refuse", "--on", "send"), "refuse is possible on attach"),
        (("delay",), "seconds of a delay must be above 0"),
        (("burn",), "is not one of"),
    ],
)
def test_an_invalid_fault_is_rejected(
    hub: EmbeddedHub, args: tuple[str, ...], message: str
) -> None:
    failed = run(hub, "add", *args)
    assert failed.exit_code in (1, 2)
    assert message in failed.output
    assert hub.faults.planned == ()
