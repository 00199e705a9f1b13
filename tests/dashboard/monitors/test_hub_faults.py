"""Faults out of the form of the page."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.dashboard.monitors.hub_faults import CHOICES, fault_from
from pumphouse.errors import OptionError


@pytest.mark.parametrize("action", CHOICES)
def test_a_form_becomes_a_fault(action: str) -> None:
    result = fault_from({"action": action, "hub": "sensors", "partition": "3"}, ("sensors",))
    assert (result["action"], result["hub"], result["partition"]) == (action, "sensors", "3")
    assert ("seconds" in result) == (action == "delay")


@pytest.mark.parametrize(
    "form",
    [
        {"action": "explode", "hub": "sensors"},
        {"action": "drop", "hub": "other"},
        {"action": "drop"},
        {"action": "delay", "hub": "sensors", "seconds": 31},
        {"action": "delay", "hub": "sensors", "seconds": "1"},
        {"action": "delay", "hub": "sensors", "seconds": 0},
        {"action": "drop", "hub": "sensors", "partition": 3},
    ],
)
def test_an_invalid_fault_is_rejected(form: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        fault_from(form, ("sensors",))
