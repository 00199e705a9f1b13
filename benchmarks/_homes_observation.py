"""Measurements of a running pipeline in a period, and whether it kept up.

    measurements of hubs, stages and processes -> Observation -> problems, rates, lags, delays
                                                  ^^^^^^^^^^^ this module

The lag of a stage is the number of events that its hubs have received minus those that it has
processed. Stages work in batches, so the lag rises and falls; it is bounded if its mean is the same
at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pumphouse.homes.schema import ACTIVITY_HUB, SENSORS, SENSORS_HUB

READINGS_PER_HOME = len(SENSORS) / 60  # a second
INTAKE = {"sift": SENSORS_HUB, "watch": ACTIVITY_HUB, "record": ACTIVITY_HUB}

# The limits of keeping up, in seconds of intake.
GROWTH_MAX_S = 2.0  # growth of the mean lag in 100 s, from the first third to the last
WAIT_MAX_S = 20.0  # lag at any time
SENT_MIN = 0.97  # share of the due readings that the senders must send


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The batches of a stage in a period: their number, and the mean time of each phase."""

    count: int
    phases_ms: Mapping[str, float]  # by Spark's names of the phases


def batch_times(seen: Mapping[int, Mapping[str, int]]) -> BatchTimes:
    """From the phases of some batches, by their number. Batches between them were not seen."""
    names = dict.fromkeys(name for phases in seen.values() for name in phases)
    means = {name: fmean(phases.get(name, 0) for phases in seen.values()) for name in names}
    return BatchTimes(max(seen) - min(seen) + 1 if seen else 0, means)


@dataclass(frozen=True, slots=True)
class Observation:
    """Measurements of a period, about once a second."""

    homes: int
    seconds: float
    came: Mapping[str, int]  # events received by each hub
    waits: Mapping[str, Sequence[int]]  # lag of each stage in events, at each measurement
    cpu_s: Mapping[str, float]  # by process
    restarts: int
    others: float = 0.0  # cores used by other processes of the machine
    stored_ms: Sequence[int] = ()  # from the sending of a reading to its row
    alert_ms: Sequence[int] = ()  # from the sending of a reading to its alert in the hub
    batches: Mapping[str, BatchTimes] = field(default_factory=dict)  # by stage
    memory_mb: Mapping[str, float] = field(default_factory=dict)  # by process, at the end

    @property
    def due(self) -> float:
        return self.homes * READINGS_PER_HOME

    @property
    def readings(self) -> int:
        return self.came[SENSORS_HUB]

    @property
    def kept(self) -> float:
        """The share of readings that arrive in the activity hub."""
        return self.came[ACTIVITY_HUB] / max(1, self.readings)

    def waits_s(self, stage: str) -> list[float]:
        """The lag of a stage, in seconds of its intake."""
        rate = max(1, self.came[INTAKE[stage]]) / self.seconds
        return [events / rate for events in self.waits[stage]]

    @property
    def cores(self) -> float:
        """The cores used by all measured processes."""
        return sum(self.cpu_s.values()) / self.seconds

    def cpu_us(self) -> float:
        """CPU time per reading, in microseconds."""
        return sum(self.cpu_s.values()) / max(1, self.readings) * 1e6


def growth_s(waits_s: Sequence[float]) -> float:
    """The growth of the mean lag from the first third to the last."""
    third = max(1, len(waits_s) // 3)
    return fmean(waits_s[-third:]) - fmean(waits_s[:third])


def problems(observed: Observation) -> list[str]:
    """Why the pipeline did not keep up; empty if it did."""
    reasons = []
    if (sent := observed.readings / observed.seconds) < SENT_MIN * observed.due:
        reasons.append(f"the senders sent {sent:,.0f} of {observed.due:,.0f} due readings/s")
    if observed.restarts:
        reasons.append(f"stages failed {observed.restarts} times")
    for stage in observed.waits:
        waits_s = observed.waits_s(stage)
        if (growth := growth_s(waits_s)) > GROWTH_MAX_S * observed.seconds / 100:
            reasons.append(f"the lag of {stage} grew by {growth:.1f} s")
        if max(waits_s) > WAIT_MAX_S:
            reasons.append(f"{stage} had a lag of {max(waits_s):.0f} s")
    return reasons


def percentile(values: Sequence[float], share: float) -> float:
    """The value at a share of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
