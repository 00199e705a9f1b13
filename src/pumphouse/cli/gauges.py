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

STATUS_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A Spark stage, by its own word."""

    name: str
    state: str
    lag: int | None  # None before its first batch

    def __str__(self) -> str:
        if self.lag is None:
            return f"{self.name} {self.state}"
        return f"{self.name} lag {self.lag:,}"


@dataclass(frozen=True, slots=True)
class Gauge:
    """One look."""

    at_s: float
    homes: int
    sent: int  # since the last look
    over_s: float
    alerts: int  # all of them
    stages: tuple[Stage, ...]

    @property
    def rate(self) -> float:
        return self.sent / self.over_s if self.over_s > 0 else 0.0

    @property
    def lag(self) -> int | None:
        """What waits before the first stage; None before Spark has begun."""
        return next((stage.lag for stage in self.stages if stage.name == "sift"), None)

    def __str__(self) -> str:
        parts = [f"{self.at_s:>6.0f} s", f"{self.homes:,} homes", f"in {self.rate:>6,.0f}/s"]
        told = [str(stage) for stage in self.stages] or ["Spark is starting"]
        return "   ".join([*parts, *told, f"alerts {self.alerts:,}"])


def stages_of(status: Mapping[str, Any]) -> tuple[Stage, ...]:
    """What `homes run` has written of itself."""
    return tuple(stage_of(name, said) for name, said in status.get("stages", {}).items())


def stage_of(name: str, said: Mapping[str, Any]) -> Stage:
    lag = said.get("lag_events")
    return Stage(name, str(said.get("state", "starting")), None if lag is None else int(lag))


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
