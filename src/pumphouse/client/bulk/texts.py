"""AMQP values as text, for text columns.

Strings, symbols, characters and UUIDs are written as they are, all other values as JSON, as by the
Spark connector of Azure. Decimals and timestamps are readable here: the connector writes the bits
of a decimal, and a time without its milliseconds.
"""

from __future__ import annotations

import json
import math
from typing import Any
from uuid import UUID

from pumphouse.amqp.types import Array, Decimal32, Decimal64, Decimal128, Described, Timestamp
from pumphouse.events import to_datetime

DECIMALS = (Decimal32, Decimal64, Decimal128)


def text_of(value: Any) -> str:
    """A value as text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, DECIMALS):
        return str(value.to_decimal())
    if isinstance(value, Described):
        return text_of(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return not_finite(value)
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """A value made of JSON types."""
    match value:
        case None | bool() | str():
            return value
        case Timestamp():
            return time_text(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else not_finite(value)
        case bytes():
            return [byte - 256 if byte > 127 else byte for byte in value]  # as Java's bytes
        case dict():
            return {text_of(key): plain(item) for key, item in value.items()}
        case Array():
            return [plain(item) for item in value.items]
        case list() | tuple():
            return [plain(item) for item in value]
        case Described():
            return plain(value.value)
    return text_of(value)


def time_text(ms: int) -> str | int:
    """A time in ISO 8601; a time outside of the calendar stays a number."""
    try:
        moment = to_datetime(ms)
    except OverflowError:
        return int(ms)
    text = moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def not_finite(value: float) -> str:
    """The text of a number that JSON cannot hold."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
