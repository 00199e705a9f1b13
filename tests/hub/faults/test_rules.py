"""Fault rules: which fault is selected at which moment."""

from __future__ import annotations

import pytest

from pumphouse import Faults
from pumphouse.errors import OptionError
from pumphouse.hub.faults.rules import Fault


def test_no_fault_is_selected_unless_planned() -> None:
    faults = Faults()
    assert not faults
    assert faults.select("send", "sensors", "0") is None


def test_a_fault_happens_the_planned_number_of_times() -> None:
    faults = Faults()
    faults.throttle(times=2)
    selected = [faults.select("send") is not None for _ in range(4)]
    assert selected == [True, True, False, False]
    assert repr(faults) == "<Faults 0 planned | struck throttle=2>"


@pytest.mark.parametrize(
    ("hub", "partition", "group", "selected"),
    [
        ("sensors", "3", "archive", True),
        ("SENSORS", "3", "Archive", True),
        ("orders", "3", "archive", False),
        ("sensors", "4", "archive", False),
        ("sensors", "3", "$Default", False),
    ],
)
def test_a_fault_applies_only_to_its_hub_partition_and_group(
    hub: str, partition: str, group: str, selected: bool
) -> None:
    faults = Faults()
    faults.refuse(hub="sensors", partition="3", group="archive")
    assert (faults.select("attach", hub, partition, group) is not None) is selected


def test_the_same_seed_selects_the_same_moments() -> None:
    def selections(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.drop(rate=0.3)
        return [faults.select("send") is not None for _ in range(200)]

    assert selections(1) == selections(1)
    assert selections(1) != selections(2)
    assert 30 < sum(selections(1)) < 90


def test_a_fault_can_be_cancelled() -> None:
    faults = Faults()
    calls: list[str] = []
    faults.on_removed = lambda: calls.append("removed")
    fault_id = faults.freeze("sensors")
    assert [fault.action for fault in faults.planned] == ["freeze"]
    assert faults.cancel(fault_id)
    assert not faults.cancel(fault_id)
    assert calls == ["removed", "removed"]


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Fault("refuse", "send"), "refuse is possible on attach"),
        (Fault("drop", "send", rate=1.5), "between 0 and 1"),
        (Fault("drop", "send", times=0), "times must be at least 1"),
        (Fault("delay", "send", seconds=0), "seconds of a delay must be"),
        (Fault("burn", "send"), "must be one of"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_fault_is_refused(fault: Fault, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Faults().plan(fault)
