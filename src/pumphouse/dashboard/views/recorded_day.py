"""The last day of a home out of the database, in the slots of the strip.

    RecordedActivity -> recorded_levels -> merged_strip <- HomeStates.strip
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

The most severe level of a slot counts, so an activity that is in the database and also came from
the hub changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pumphouse.dashboard.views.columns import columns_of_rows
from pumphouse.dashboard.views.home_states import NOTHING, SLOT_MS, SLOTS, levels, strips_of
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.record.recorded import RecordedActivity

Levels = Mapping[tuple[str, int], int]  # by sensor and number of the slot since 1970


def recorded_levels(
    home: str, activities: Sequence[RecordedActivity], kinds: Kinds = DEFAULT
) -> Levels:
    """The most severe level of each sensor and slot."""
    shown = [kinds.names[index] for index in strips_of(kinds)]
    rows = [
        (home, each.sensor, each.at, each.at, each.value, each.mode, 0, each.fault)
        for each in activities
        if each.sensor in shown
    ]
    columns = columns_of_rows(rows, kinds)
    of_rows = levels(columns, np.arange(len(columns)), kinds)
    most_severe: dict[tuple[str, int], int] = {}
    triples = (columns.kind.tolist(), columns.at.tolist(), of_rows.tolist())
    for kind, at, level in zip(*triples, strict=True):
        key = (kinds.names[kind], at // SLOT_MS)
        most_severe[key] = max(level, most_severe.get(key, NOTHING))
    return most_severe


def merged_strip(strip: Mapping[str, str], recorded: Levels, now_ms: int) -> dict[str, str]:
    """The strip with the more severe of its levels and the recorded ones."""
    first = now_ms // SLOT_MS - SLOTS + 1
    return {
        sensor: "".join(
            str(max(int(level), recorded.get((sensor, first + slot), NOTHING)))
            for slot, level in enumerate(text)
        )
        for sensor, text in strip.items()
    }
