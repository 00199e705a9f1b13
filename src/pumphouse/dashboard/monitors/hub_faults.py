"""Faults that the page injects into an embedded hub, like `pumphouse faults`.

form -> fault_from -> $management -> the hub injects the fault
        ^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Any

from pumphouse.client.base import HubClient
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError

# The text and the settings of each fault. A fault ends by itself, or the page offers a button that
# removes it.
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "drop": ("Drop connections on delivery, three times", {"moment": "deliver", "times": 3}),
    "delay": ("Delay every delivery", {"moment": "deliver"}),
    "detach": ("Detach readers, five times", {"times": 5}),
    "refuse": ("Refuse new readers, five times", {"times": 5}),
    "throttle": ("Throttle half of the sends, fifty times", {"rate": 0.5, "times": 50}),
    "freeze": ("Deliver nothing until the fault is removed", {}),
}
DELAY_S_MAX = 30.0


def fault_from(fields: Any, hubs: tuple[str, ...]) -> dict[str, Any]:
    """The fault that a form describes. Raises OptionError if it is invalid."""
    action, hub = fields.get("action"), fields.get("hub") or ""
    partition, group = fields.get("partition") or "", fields.get("group") or ""
    if action not in CHOICES:
        raise OptionError(f"unknown fault {action!r:.40}: use one of {', '.join(CHOICES)}")
    if hub not in hubs:
        raise OptionError(f"unknown hub {hub!r:.60}: use one of {', '.join(hubs)}")
    if not all(isinstance(field, str) and len(field) < 100 for field in (partition, group)):
        raise OptionError("partition and group must be text of fewer than 100 characters")
    fault = {"action": action, "hub": hub, **CHOICES[action][1]}
    if action == "delay":
        fault["seconds"] = delay_from(fields.get("seconds", 1.0))
    if partition:
        fault["partition"] = partition
    if group and action != "throttle":
        fault["group"] = group
    return fault


def delay_from(seconds: Any) -> float:
    if isinstance(seconds, int | float) and 0 < seconds <= DELAY_S_MAX:
        return float(seconds)
    raise OptionError(
        f"invalid delay {seconds!r:.20}: use more than 0 and at most {DELAY_S_MAX:g} seconds"
    )


class HubFaults:
    """The faults of one embedded hub."""

    def __init__(self, connection: str, ca_file: str | None = None) -> None:
        self._connection, self._ca_file = connection, ca_file

    def __repr__(self) -> str:
        return "<HubFaults>"

    async def planned(self) -> list[dict[str, Any]]:
        async with self._client() as client:
            return await (await client.management()).faults()

    async def plan(self, **fault: Any) -> int:
        async with self._client() as client:
            return await (await client.management()).plan_fault(**fault)

    async def cancel(self, fault_id: int | None) -> None:
        """Remove one fault; None: all faults."""
        async with self._client() as client:
            await (await client.management()).cancel_fault(fault_id)

    def _client(self) -> HubClient:
        return open_client(self._connection, driver="native", ca_file=self._ca_file)
