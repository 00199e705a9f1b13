"""Decodes bodies of the hub `activity` into numpy columns.

    reader.receive -> read_columns -> Columns -> HomeStates.add
                      ^^^^^^^^^^^^ this module

The stage sift has validated the records, so a whole batch is decoded as one JSON list. If that
fails, each body is decoded and validated on its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pumphouse.errors import BadRecord
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import MODES, decode_activity

Ints = npt.NDArray[np.int64]
# The errors that decoding an invalid record can raise.
DECODE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
VALUE_MAX = 1e9  # above every real reading, and within every column type
MODE = {name: number for number, name in enumerate(MODES)}


@dataclass(frozen=True, slots=True)
class Columns:
    """Readings as columns. `value` is NaN for a sensor fault."""

    home: Ints
    kind: Ints
    at: Ints
    since: Ints
    value: npt.NDArray[np.float64]
    mode: Ints
    battery: Ints
    faults: dict[int, str]  # by row
    body: Ints  # the number of its body in the batch
    invalid: int = 0  # number of invalid bodies

    def __len__(self) -> int:
        return len(self.home)


def read_columns(bodies: Sequence[bytes], kinds: Kinds = DEFAULT) -> Columns:
    """The valid bodies as columns, in their order."""
    try:
        records = json.loads(b"[" + b",".join(bodies) + b"]")
        # A body such as `1,2` would become two records of the list.
        if len(records) != len(bodies):
            raise ValueError("not one record per body")
        return columns(dict(enumerate(records)), 0, kinds)
    except DECODE_ERRORS:
        valid = decode_each(bodies, kinds)
        return columns(valid, len(bodies) - len(valid), kinds)


def decode_each(bodies: Sequence[bytes], kinds: Kinds) -> dict[int, dict[str, Any]]:
    """The valid records, by the number of their body."""
    valid = {}
    for number, body in enumerate(bodies):
        try:
            decode_activity(body, kinds)
            record = json.loads(body)
            columns({number: record}, 0, kinds)  # raises if a number does not fit its column
        except (BadRecord, *DECODE_ERRORS):
            continue
        valid[number] = record
    return valid


def columns(valid: Mapping[int, dict[str, Any]], invalid: int, kinds: Kinds) -> Columns:
    records = list(valid.values())
    return Columns(
        home=int_column([home_number(record["home"]) for record in records]),
        kind=int_column([kinds.index_of[record["sensor"]] for record in records]),
        at=int_column([record["at"] for record in records]),
        since=int_column([record["since"] for record in records]),
        value=np.clip(
            np.array([record["value"] for record in records], np.float64), -VALUE_MAX, VALUE_MAX
        ),
        mode=int_column([MODE[record["mode"]] for record in records]),
        battery=int_column([record["battery"] for record in records]),
        faults={
            row: str(record["fault"])[:80]
            for row, record in enumerate(records)
            if record.get("fault") is not None
        },
        body=int_column(list(valid)),
        invalid=invalid,
    )


def columns_of_rows(rows: Sequence[tuple[Any, ...]], kinds: Kinds = DEFAULT) -> Columns:
    """Rows of the database, with the columns of `sensor_values`, as columns; invalid ones left out.

    The stage record stores every event that has a home, a sensor and a time. Invalid rows are not
    counted: the page counts an invalid event only when it reads the event from the hub.
    """
    names = ("home", "sensor", "at", "since", "value", "mode", "battery", "fault")
    records = [dict(zip(names, row, strict=True)) for row in rows]
    valid = {number: record for number, record in enumerate(records) if is_complete(record, kinds)}
    return columns(valid, 0, kinds)


def is_complete(record: dict[str, Any], kinds: Kinds) -> bool:
    return (
        record["sensor"] in kinds.index_of
        and record["mode"] in MODE
        and isinstance(record["since"], int)
        and isinstance(record["battery"], int)
        and is_home(record["home"])
    )


def int_column(numbers: list[int]) -> Ints:
    return np.array(numbers, np.int64)


def is_home(home: str) -> bool:
    return len(home) == 7 and home[0] == "h" and home.isascii() and home[1:].isdecimal()


def home_number(home: str) -> int:
    if not is_home(home):
        raise ValueError(f"invalid home {home!r:.40}")
    return int(home[1:])
