"""Faults that the page may plan on an embedded hub, as `pumphouse faults` does.

form -> fault_from -> $management -> the hub breaks something on purpose
        ^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Any

from pumphouse.client.base import HubClient
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError

# What can be chosen, in words, and what it means to the hub. Each has an end of its own, or is
# listed beside a button that takes it away.
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "drop": ("Cut connections on delivery, three times", {"moment": "deliver", "times": 3}),
    "delay": ("Hold back every delivery for a while", {"moment": "deliver"}),
    "detach": ("Detach readers, five times", {"times": 5}),
    "refuse": ("Refuse readers that come, five times", {"times": 5}),
    "throttle": ("Tell half of the senders to slow down, fifty times", {"rate": 0.5, "times": 50}),
    "freeze": ("Deliver nothing until this is taken away", {}),
}
DELAY_S_MAX = 30.0


def fault_from(asked: Any, hubs: tuple[str, ...]) -> dict[str, Any]:
    """The fault that a form means; OptionError for what makes no sense."""
    action, hub = asked.get("action"), asked.get("hub") or ""
    partition, group = asked.get("partition") or "", asked.get("group") or ""
    if action not in CHOICES:
        raise OptionError(f"a fault is one of {', '.join(CHOICES)} (got {action!r:.40})")
    if hub not in hubs:
        raise OptionError(f"there is no hub {hub!r:.60} here; choose one of {', '.join(hubs)}")
    if not all(isinstance(one, str) and len(one) < 100 for one in (partition, group)):
        raise OptionError("partition and group are text")
    fault = {"action": action, "hub": hub, **CHOICES[action][1]}
    if action == "delay":
        fault["seconds"] = delay_from(asked.get("seconds", 1.0))
    if partition:
        fault["partition"] = partition
    if group and action != "throttle":
        fault["group"] = group
    return fault


def delay_from(seconds: Any) -> float:
    if isinstance(seconds, int | float) and 0 < seconds <= DELAY_S_MAX:
        return float(seconds)
    raise OptionError(f"a delay lasts above 0 and at most {DELAY_S_MAX:g} s (got {seconds!r:.20})")


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

    async def cancel(self, number: int | None) -> None:
        """Take one away, or all of them."""
        async with self._client() as client:
            await (await client.management()).cancel_fault(number)

    def _client(self) -> HubClient:
        return open_client(self._connection, driver="native", ca_file=self._ca_file)
