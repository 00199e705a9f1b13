"""What was seen of a running pipeline in a while, and whether it kept up.

    looks at hubs, stages and processes -> Span -> kept_up, rates, waits, delays
                                           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

What waits before a stage is what its hubs have taken in less what it has behind it. Stages work in
batches, so this rises and falls all the time; it is bounded if its mean is the same at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pumphouse.homes.schema import ACTIVITY_HUB, SENSORS, SENSORS_HUB

READINGS_PER_HOME = len(SENSORS) / 60  # a second
INTAKE = {"sift": SENSORS_HUB, "watch": ACTIVITY_HUB, "record": ACTIVITY_HUB}

# What keeping up means: seconds of intake.
GROWTH_MAX_S = 2.0  # of the mean, from the first third of the while to the last
WAIT_MAX_S = 20.0  # at any moment
SENT_MIN = 0.97  # of what is due: who sends less has less to take in


@dataclass(frozen=True, slots=True)
class Span:
    """A while, by its looks once a second or so."""

    homes: int
    seconds: float
    came: Mapping[str, int]  # events that each hub took in
    waits: Mapping[str, Sequence[int]]  # events that waited before each stage, at each look
    cpu_s: Mapping[str, float]  # by who it was
    restarts: int
    others: float = 0.0  # cores that all else on the machine used
    stored_ms: Sequence[int] = ()  # from the sending of a reading to its row
    alert_ms: Sequence[int] = ()  # and to its alert in the hub

    @property
    def due(self) -> float:
        return self.homes * READINGS_PER_HOME

    @property
    def readings(self) -> int:
        return self.came[SENSORS_HUB]

    @property
    def kept(self) -> float:
        """The share of readings that matter."""
        return self.came[ACTIVITY_HUB] / max(1, self.readings)

    def waits_s(self, stage: str) -> list[float]:
        """What waited, as seconds of the stage's intake."""
        rate = max(1, self.came[INTAKE[stage]]) / self.seconds
        return [one / rate for one in self.waits[stage]]

    @property
    def cores(self) -> float:
        """In use, by all that was looked at."""
        return sum(self.cpu_s.values()) / self.seconds

    def cpu_us(self) -> float:
        """CPU time of a reading."""
        return sum(self.cpu_s.values()) / max(1, self.readings) * 1e6


def growth_s(waits_s: Sequence[float]) -> float:
    """How much longer what waits has become, from the first third to the last."""
    third = max(1, len(waits_s) // 3)
    return fmean(waits_s[-third:]) - fmean(waits_s[:third])


def complaints(span: Span) -> list[str]:
    """Why this was no keeping up; nothing if it was."""
    found = []
    if (sent := span.readings / span.seconds) < SENT_MIN * span.due:
        found.append(f"the senders sent {sent:,.0f} readings/s, and {span.due:,.0f} were due")
    if span.restarts:
        found.append(f"stages failed, {span.restarts} in all")
    for stage in span.waits:
        waits_s = span.waits_s(stage)
        if (growth := growth_s(waits_s)) > GROWTH_MAX_S:
            found.append(f"what waits before {stage} grew by {growth:.1f} s")
        if max(waits_s) > WAIT_MAX_S:
            found.append(f"{stage} was {max(waits_s):.0f} s behind")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
