"""The figures that the demonstration prints to the terminal, as one line.

hub properties, status.json, delays of the page -> Gauge -> line
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
from pumphouse.dashboard.views.alert_delays import NO_ALERTS, AlertDelays
from pumphouse.homes.schema import ALERTS_HUB

STATUS_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A Spark stage as it reports itself in status.json."""

    name: str
    state: str
    taken: Mapping[str, int]  # events read so far, by hub; empty before the first batch

    def lag(self, counts: Mapping[str, int]) -> int | None:
        """Events that the stage has not read yet; None before its first batch."""
        if not self.taken:
            return None
        return sum(max(0, counts.get(hub, 0) - taken) for hub, taken in self.taken.items())


@dataclass(frozen=True, slots=True)
class Gauge:
    """The figures at one moment."""

    at_s: float  # since the start of the demonstration
    homes: int
    rate: float  # readings per second since the previous gauge
    counts: Mapping[str, int]  # events received so far, by hub
    stages: tuple[Stage, ...]
    delays: AlertDelays = NO_ALERTS  # of recent alerts, from the sensor to the hub

    @property
    def lag(self) -> int | None:
        """The lag of `sift`, the first stage; None before its first batch."""
        return next((stage.lag(self.counts) for stage in self.stages if stage.name == "sift"), None)

    def __str__(self) -> str:
        parts = [f"{self.at_s:>6.0f} s", f"{self.homes:,} homes", f"readings {self.rate:>6,.0f}/s"]
        # Before the stages: a narrow terminal cuts the end of the line.
        parts += [f"alerts {self.counts.get(ALERTS_HUB, 0):,}{self._delays_text()}"]
        parts += [self._stage_text(stage) for stage in self.stages] or ["Spark is starting"]
        return "   ".join(parts)

    def _delays_text(self) -> str:
        p50_s, p99_s = self.delays.p50_s, self.delays.p99_s
        return "" if p50_s is None else f" (p50 {p50_s:.1f} s, p99 {p99_s:.1f} s)"

    def _stage_text(self, stage: Stage) -> str:
        lag = stage.lag(self.counts)
        return f"{stage.name} {stage.state if lag is None else f'lag {lag:,}'}"


def stages_of(status: Mapping[str, Any]) -> tuple[Stage, ...]:
    """The stages in the status that `homes run` writes."""
    return tuple(
        Stage(name, str(fields.get("state", "starting")), fields.get("taken") or {})
        for name, fields in status.get("stages", {}).items()
    )


def read_stages(path: Path) -> tuple[Stage, ...]:
    """The stages of a status file; none if the file is missing or incomplete."""
    try:
        with path.open("rb") as file:
            return stages_of(json.loads(file.read(STATUS_BYTES_MAX)))
    except (FileNotFoundError, json.JSONDecodeError):
        return ()


async def count_events(client: HubClient, within_s: float) -> int:
    """How many events a hub has received so far."""
    async with asyncio.timeout(within_s):
        partitions = (await client.properties()).partitions
        ends = await asyncio.gather(*map(client.partition_properties, partitions))
    return sum(end.last_sequence + 1 for end in ends)
