"""Parses the positions at which reading starts or ends.

The forms are the Scala connector's JSON and shorter ones:

    earliest | latest | -1 | @latest | seq:120 | offset:8192 | 2026-11-15T09:00:00Z | time:-15m
    {"seqNo": 120} | {"offset": "8192"} | {"enqueuedTime": "2026-11-15T09:00:00Z"}
    {"offset": "@latest", "seqNo": -1, "enqueuedTime": null, "isInclusive": true}

and a position for each of some partitions:

    {"0": "earliest", "1": {"seqNo": 120}}
    {"{\"ehName\":\"sensors\",\"partitionId\":0}": {"offset": "-1", "seqNo": -1, ...}}
    {"sensors": {"0": "earliest"}, "doors": {"0": "latest"}}        (of a query of several hubs)

    option -> read_position, read_positions -> Position -> planner
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position, parse_position, to_ms

FORMS = (
    'earliest, latest, seq:120, offset:8192, 2026-11-15T09:00:00Z, time:-15m, {"seqNo": 120}, '
    '{"offset": "8192"} or {"enqueuedTime": "2026-11-15T09:00:00Z"}'
)
WORDS = {
    "earliest": EARLIEST,
    "latest": LATEST,
    "-1": EARLIEST,
    "@latest": LATEST,
}
KEYS = {"offset", "seqno", "enqueuedtime", "isinclusive"}


def read_position(option: str, text: str, now_ms: int) -> Position:
    """One position; `option` is named in the error."""
    written = text.strip()
    if written.lower() in WORDS:
        return WORDS[written.lower()]
    if written.startswith("{"):
        return from_object(option, load_json(option, written))
    if written.startswith('"'):
        return read_position(option, str(load_json(option, written)), now_ms)
    return from_text(option, written, now_ms)


MS_DIGITS_MAX = 18


def read_timestamp(option: str, text: str, now_ms: int) -> Position:
    """A time: in ms since 1970, as ISO text, or relative to now."""
    written = text.strip()
    if is_ms(written) and len(written) <= MS_DIGITS_MAX:
        return time_in_ms(written)
    position = from_text(option, written, now_ms)
    if position.kind != "time":
        raise OptionError(
            f"invalid {option} {text!r:.200}: use a time such as 2026-11-15T09:00:00Z, time:-15m, "
            "or milliseconds since 1970"
        )
    return position


def is_ms(value: Any) -> bool:
    """Whether this is a time in ms, as a number or as digits."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal())


def time_in_ms(value: Any) -> Position:
    return Position("time", str(int(value)), inclusive=True)


def from_text(option: str, written: str, now_ms: int) -> Position:
    try:
        return parse_position(written, now_ms)
    except OptionError:
        pass
    try:
        return at_time(written)
    except OptionError as wrong:
        raise OptionError(f"{option}: {wrong}") from None
    except ValueError:
        raise invalid_position(option, written) from None


def at_time(written: str) -> Position:
    """A time with its zone, inclusive."""
    return Position("time", str(to_ms(datetime.fromisoformat(written))), inclusive=True)


def from_object(option: str, fields: Mapping[str, Any]) -> Position:
    """The Scala connector's form. The first field that is set decides: time, number, offset."""
    parts = {str(key).lower(): value for key, value in fields.items()}
    if unknown := sorted(set(parts) - KEYS):
        raise OptionError(f"{option} has an unknown field {unknown[0]!r}; use one of {FORMS}")
    inclusive = parts.get("isinclusive", True)
    if not isinstance(inclusive, bool):
        raise invalid_position(option, json.dumps(fields))
    offset, number, when = parts.get("offset"), parts.get("seqno"), parts.get("enqueuedtime")
    try:
        if when not in (None, ""):
            time = time_in_ms(when) if is_ms(when) else at_time(str(when))
            return Position("time", time.value, inclusive)
        if number is not None and whole_number(number) >= 0:
            return Position("sequence", str(whole_number(number)), inclusive)
        if offset is not None:
            return from_offset(str(offset), inclusive)
        if number is not None:
            return EARLIEST
    except OptionError as wrong:
        raise OptionError(f"{option}: {wrong}") from None
    except (ValueError, TypeError):
        pass
    raise invalid_position(option, json.dumps(fields))


def whole_number(number: Any) -> int:
    """A whole number, perhaps as text; ValueError for a fraction."""
    if isinstance(number, bool) or not isinstance(number, int | str):
        raise ValueError(number)
    return int(number)


def from_offset(offset: str, inclusive: bool) -> Position:
    if offset.lower() in WORDS:
        return WORDS[offset.lower()]
    if not offset:
        raise ValueError(offset)
    return Position("offset", offset, inclusive)


def read_positions(
    option: str, text: str, hub: str, now_ms: int, hubs: Sequence[str] | None = None
) -> dict[str, Position]:
    """Positions by partition. If the query reads several `hubs`, those of this hub."""
    fields = load_json(option, text)
    if not isinstance(fields, dict):
        raise invalid_position(option, text)
    if hubs is not None:
        fields = entries_of_hub(option, fields, hub, hubs)
    return {
        partition_of(option, str(key), hub): position_from_json(option, value, now_ms)
        for key, value in fields.items()
    }


def entries_of_hub(
    option: str, fields: Mapping[str, Any], hub: str, hubs: Sequence[str]
) -> dict[str, Any]:
    """The entries of one hub: {"a": {"0": 120}}, or keys in the form of the Scala connector.

    A key that is a number is a partition of every hub. Without `hubs` any hub may be named.
    """
    entries: dict[str, Any] = {}
    for key, value in fields.items():
        is_scala = key.lstrip().startswith("{")
        if is_scala:
            parts = {str(name).lower(): part for name, part in load_json(option, key).items()}
            named, entry = str(parts.get("ehname", hub)), {key: value}
        elif key.strip().isdecimal():
            named, entry = hub, {key: value}
        else:
            named, entry = key, value
        if hubs and named.lower() not in [each.lower() for each in hubs]:
            raise OptionError(
                f"{option} is for hub {named}, but the query reads {', '.join(hubs)}; correct it"
            )
        if not isinstance(entry, dict):
            raise invalid_position(option, json.dumps(fields))
        if named.lower() == hub.lower():
            entries |= entry
    return entries


def position_from_json(option: str, value: Any, now_ms: int) -> Position:
    if isinstance(value, dict):
        return from_object(option, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return EARLIEST if value < 0 else Position("sequence", str(value), inclusive=True)
    return read_position(option, str(value), now_ms)


def partition_of(option: str, key: str, hub: str) -> str:
    """The name of a partition: the key itself, or inside the JSON of the Scala connector."""
    if not key.lstrip().startswith("{"):
        return key.strip()
    parts = {str(name).lower(): value for name, value in load_json(option, key).items()}
    named = str(parts.get("ehname", hub))
    if named.lower() != hub.lower():
        raise OptionError(
            f"{option} is for hub {named}, but the query reads hub {hub}; correct ehName"
        )
    if parts.get("partitionid") is None:
        raise OptionError(f'{option} has a key without "partitionId": {key}')
    return str(parts["partitionid"])


def load_json(option: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid_position(option, text) from None
    if not (isinstance(value, dict) or text.lstrip().startswith('"')):
        raise invalid_position(option, text)
    return value


def invalid_position(option: str, text: str) -> OptionError:
    return OptionError(f"invalid {option} {text!r:.200}: use {FORMS}")
