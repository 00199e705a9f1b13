"""Lengths of time and sizes, in the ways in which Spark users write them."""

from __future__ import annotations

import re

from pumphouse.errors import OptionError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SHORT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)?", re.IGNORECASE)
_ISO = re.compile(
    r"P(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_LONG = {"second": "s", "minute": "m", "hour": "h", "day": "d", "millisecond": "ms", "sec": "s"}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_duration(option: str, text: str) -> float:
    """Seconds out of 30s, 15m, 2 hours, PT30S, or a bare number of milliseconds."""
    written = text.strip()
    seconds = from_short(written)
    if seconds is None:
        seconds = from_iso(written)
    if seconds is None or seconds < 0:
        raise OptionError(
            f"{option} is {text!r}, which is no length of time; write 30s, 15m, PT30S or "
            "milliseconds"
        )
    return seconds


def from_short(written: str) -> float | None:
    found = _SHORT.fullmatch(written)
    if found is None:
        return None
    unit = (found["unit"] or "ms").lower()
    unit = _LONG.get(unit.removesuffix("s") if len(unit) > 2 else unit, unit)
    return float(found["number"]) * _UNITS[unit] if unit in _UNITS else None


def from_iso(written: str) -> float | None:
    found = _ISO.fullmatch(written)
    if found is None or not any(found.groupdict().values()):
        return None
    return sum(float(part) * _UNITS[unit] for unit, part in found.groupdict().items() if part)


def read_size(option: str, text: str) -> int:
    """Bytes out of 16m, 16MB, 1g, 65536."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found["number"]) * _BYTES[found["unit"].lower()]) if found else 0
    if size < 1:
        raise OptionError(f"{option} is {text!r}, which is no size; write 16m, 512k or bytes")
    return size
