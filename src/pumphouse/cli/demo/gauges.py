"""What the demonstration shows of itself in the terminal: one line of numbers.

hub properties, status.json -> Gauge -> a line
                               ^^^^^ this module
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumphouse.client.base import HubClient
from pumphouse.homes.schema import ALERTS_HUB

STATUS_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A Spark stage, by its own word."""

    name: str
    state: str
    taken: Mapping[str, int]  # events of all time that it has behind it, by hub; none at first

    def lag(self, counts: Mapping[str, int]) -> int | None:
        """What waits before it, by what the hubs have taken in; None before its first batch."""
        if not self.taken:
            return None
        return sum(max(0, counts.get(hub, 0) - taken) for hub, taken in self.taken.items())


@dataclass(frozen=True, slots=True)
class Gauge:
    """One look."""

    at_s: float
    homes: int
    rate: float  # readings a second, since the last look
    counts: Mapping[str, int]  # events of all time, by hub
    stages: tuple[Stage, ...]

    @property
    def lag(self) -> int | None:
        """What waits before the first stage."""
        return next((stage.lag(self.counts) for stage in self.stages if stage.name == "sift"), None)

    def __str__(self) -> str:
        parts = [f"{self.at_s:>6.0f} s", f"{self.homes:,} homes", f"in {self.rate:>6,.0f}/s"]
        told = [self._told(stage) for stage in self.stages] or ["Spark is starting"]
        return "   ".join([*parts, *told, f"alerts {self.counts.get(ALERTS_HUB, 0):,}"])

    def _told(self, stage: Stage) -> str:
        lag = stage.lag(self.counts)
        return f"{stage.name} {stage.state if lag is None else f'lag {lag:,}'}"


def stages_of(status: Mapping[str, Any]) -> tuple[Stage, ...]:
    """What `homes run` has written of itself."""
    return tuple(
        Stage(name, str(said.get("state", "starting")), said.get("taken") or {})
        for name, said in status.get("stages", {}).items()
    )


def read_stages(path: Path) -> tuple[Stage, ...]:
    """The stages' own words; none before the file is there. It is replaced as a whole."""
    try:
        with path.open("rb") as file:
            return stages_of(json.loads(file.read(STATUS_BYTES_MAX)))
    except (FileNotFoundError, json.JSONDecodeError):
        return ()


async def count(client: HubClient, within_s: float) -> int:
    """How many events a hub has ever taken in."""
    async with asyncio.timeout(within_s):
        partitions = (await client.properties()).partitions
        ends = await asyncio.gather(*map(client.partition_properties, partitions))
    return sum(end.last_sequence + 1 for end in ends)
