"""Bodies of the hub `activity` as columns: what the state of all homes is made from.

    reader.receive -> read_columns -> Columns -> HomeStates.absorb
                      ^^^^^^^^^^^^ this module

The sift has judged the records already, so a batch is read as one piece of JSON. Only if there is
something in it that does not belong there is each body looked at by itself, by the schema's rules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pumphouse.errors import BadRecord
from pumphouse.homes.schema import KINDS, MODES, decode_activity

Whole = npt.NDArray[np.int64]
KIND = {name: number for number, name in enumerate(KINDS)}
# What reading something that does not belong there may raise.
STRANGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
VALUE_MAX = 1e9  # no sensor says more, and it fits everywhere
MODE = {name: number for number, name in enumerate(MODES)}


@dataclass(frozen=True, slots=True)
class Columns:
    """Readings side by side. `value` is not a number in a fault."""

    home: Whole
    kind: Whole
    at: Whole
    since: Whole
    value: npt.NDArray[np.float64]
    mode: Whole
    battery: Whole
    faults: dict[int, str]  # by row
    bad: int = 0  # bodies that were none

    def __len__(self) -> int:
        return len(self.home)


def read_columns(bodies: Sequence[bytes]) -> Columns:
    """All that can be read of these bodies, in their order."""
    try:
        records = json.loads(b"[" + b",".join(bodies) + b"]")
        # A body such as `1,2` is two pieces of JSON in a list, and none by itself.
        if len(records) != len(bodies):
            raise ValueError("not one record per body")
        return columns(records, 0)
    except STRANGE:
        return columns(*careful(bodies))


def careful(bodies: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Those that are activities by the schema's rules, and how many are not."""
    good = []
    for body in bodies:
        try:
            decode_activity(body)
            record = json.loads(body)
            columns([record], 0)  # a number may be none that fits a column
        except (BadRecord, *STRANGE):
            continue
        good.append(record)
    return good, len(bodies) - len(good)


def columns(records: Sequence[dict[str, Any]], bad: int) -> Columns:
    return Columns(
        home=whole([number_of(record["home"]) for record in records]),
        kind=whole([KIND[record["sensor"]] for record in records]),
        at=whole([record["at"] for record in records]),
        since=whole([record["since"] for record in records]),
        value=np.clip(
            np.array([record["value"] for record in records], np.float64), -VALUE_MAX, VALUE_MAX
        ),
        mode=whole([MODE[record["mode"]] for record in records]),
        battery=whole([record["battery"] for record in records]),
        faults={
            row: str(record["fault"])[:80]
            for row, record in enumerate(records)
            if record.get("fault") is not None
        },
        bad=bad,
    )


def whole(numbers: list[int]) -> Whole:
    return np.array(numbers, np.int64)


def number_of(home: str) -> int:
    if len(home) != 7 or home[0] != "h" or not home[1:].isdecimal():
        raise ValueError("not the name of a home")
    return int(home[1:])
