"""Parses the values of a query's options. Their types and bounds are those in catalogue.py.

Each error names the option.

Option names may be in upper or lower case. The Scala connector's prefix `eventhubs.` is removed.

    {"maxEventsPerTrigger": "500"} -> OptionValues -> count("maxEventsPerTrigger") == 500
                                      ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pumphouse.errors import OptionError
from pumphouse.events import Position
from pumphouse.spark.catalogue import BOTH, BY_NAME, REMOVED_BY_NAME, SIDES, Option
from pumphouse.spark.positions import read_position, read_positions, read_timestamp

PREFIX = "eventhubs."
# Spark passes options of its own together with ours.
SPARK_OPTIONS = {"path", "__paths__", "checkpointlocation", "queryname", "outputmode"}

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SHORT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)?", re.IGNORECASE)
_ISO = re.compile(
    r"P(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_LONG = {"second": "s", "minute": "m", "hour": "h", "day": "d", "millisecond": "ms", "sec": "s"}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]?)(?:i?b)?", re.IGNORECASE)
_SECRET = re.compile(
    r"endpoint\s*=\s*(sb|amqps?)://|shared\s*access\s*key\s*=|shared\s*access\s*signature\s*(=|sr=)|account\s*key\s*=",
    re.IGNORECASE,
)
# A store of blobs is named by the connection string of its account.
MAY_BE_CONNECTIONS = {"connectionstring", "store", "checkpointstore"}
NUMBER_DIGITS_MAX = 18  # Spark's limits are 64-bit numbers
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionValues:
    """The options that a query sets, with their names checked; others have their defaults.

    Some options have other defaults in some cases, for example in batch queries. The methods take
    the case as `case`.
    """

    def __init__(
        self, given: Mapping[str, str], side: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.side = side
        self.environment = environment or {}
        self._given: dict[str, str] = {}
        self._spark_options: dict[str, str] = {}
        for written, value in given.items():
            check_no_secret(written, str(value))
            option = find_option(written, side)
            if option is not None:
                self._set(option.name, str(value))
            else:
                self._spark_options[normal_name(written)] = str(value)

    def _set(self, name: str, value: str) -> None:
        if self._given.setdefault(name, value) != value:
            raise OptionError(
                f"{name} is given twice, with and without {PREFIX}, and the values differ; "
                "keep one of them"
            )

    def given(self, name: str) -> bool:
        return name in self._given

    def spark_option(self, name: str) -> str:
        """An option of Spark itself; "" if it is not set."""
        return self._spark_options.get(name.lower(), "")

    def text(self, name: str, case: str = "") -> str:
        option = BY_NAME[name.lower()]
        value = self._given.get(name, option.default_for.get(case, option.default))
        return check_choice(option, value) if option.kind == "words" else value

    def flag(self, name: str, case: str = "") -> bool:
        text = self.text(name, case)
        if text.strip().lower() not in ("true", "false"):
            raise invalid(name, text, "true or false")
        return text.strip().lower() == "true"

    def count(self, name: str, case: str = "") -> int | None:
        option, text = BY_NAME[name.lower()], self.text(name, case)
        digits = text.strip().replace("_", "")
        if not digits:
            return None
        is_number = digits.isdecimal() and len(digits) <= NUMBER_DIGITS_MAX
        number = int(digits) if is_number else -1
        if not is_within(option, number):
            raise invalid(name, text, f"a whole number, {bounds(option)}")
        return number

    def size(self, name: str) -> int | None:
        option, text = BY_NAME[name.lower()], self.text(name)
        if not text:
            return None
        size = read_size(name, text)
        if not is_within(option, size):
            raise invalid(name, text, f"{bounds(option)} bytes")
        return size

    def duration(self, name: str, case: str = "") -> float:
        option, text = BY_NAME[name.lower()], self.text(name, case)
        seconds = read_duration(name, text) if text else 0.0
        if option.least and not seconds:
            raise invalid(name, text, "a duration above zero")
        return seconds

    def position(self, name: str, now_ms: int, case: str = "") -> Position | None:
        text, kind = self.text(name, case), BY_NAME[name.lower()].kind
        if not text:
            return None
        read = read_timestamp if kind == "timestamp" else read_position
        return read(name, text, now_ms)

    def positions(
        self, name: str, hub: str, now_ms: int, hubs: Sequence[str] | None = None
    ) -> dict[str, Position]:
        text = self.text(name)
        return read_positions(name, text, hub, now_ms, hubs) if text else {}


# -- names ----------------------------------------------------------------------------------------


def normal_name(written: str) -> str:
    """The name of an option in lower case, without the prefix."""
    return written.strip().lower().removeprefix(PREFIX)


def find_option(written: str, side: str) -> Option | None:
    """The option of this name; None for an option of Spark itself; OptionError if unknown."""
    name = normal_name(written)
    if name in SPARK_OPTIONS:
        return None
    if name in REMOVED_BY_NAME:
        raise OptionError(f"the option {written} is not supported: {REMOVED_BY_NAME[name].instead}")
    option = BY_NAME.get(name)
    if option is None:
        raise OptionError(f"unknown option {written}; {suggest(name, side)}")
    if option.side not in (BOTH, side):
        raise OptionError(
            f"the option {option.name} is for {SIDES[option.side]}, and this query is for "
            f"{SIDES[side]}; leave it out"
        )
    return option


def check_no_secret(written: str, value: str) -> None:
    """OptionError if a connection string is where errors, logs and plans would show it."""
    if _SECRET.search(written):
        raise OptionError(
            "a connection string is given as the name of an option: use "
            "option('connectionString', ...)"
        )
    if normal_name(written) in MAY_BE_CONNECTIONS:
        return
    if _SECRET.search(value):
        raise OptionError(
            f"the option {written} contains a connection string or a key (it is not shown here); "
            "give it in the option connectionString"
        )


def suggest(name: str, side: str) -> str:
    names = {key: option.name for key, option in BY_NAME.items() if option.side in (BOTH, side)}
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {names[nearest[0]]}?" if nearest else "docs/spark.md lists the options"


# -- values ---------------------------------------------------------------------------------------


def invalid(name: str, value: str, use: str) -> OptionError:
    return OptionError(f"invalid {name} {value!r:.200}: use {use}")


def check_choice(option: Option, value: str) -> str:
    word = value.strip().lower()
    if word not in option.words:
        raise invalid(option.name, value, f"one of {', '.join(option.words)}")
    return word


def is_within(option: Option, number: int) -> bool:
    return number >= option.least and (option.most is None or number <= option.most)


def bounds(option: Option) -> str:
    most = f" and at most {option.most:,}" if option.most is not None else ""
    return f"at least {option.least:,}{most}"


def read_duration(name: str, text: str) -> float:
    """Seconds out of 30s, 15m, 2 hours, PT30S, or a bare number of milliseconds."""
    seconds = from_short(text.strip())
    if seconds is None:
        seconds = from_iso(text.strip())
    if seconds is None or seconds < 0:
        raise invalid(name, text, "a duration such as 30s, 15m, PT30S, or milliseconds")
    return seconds


def from_short(written: str) -> float | None:
    match = _SHORT.fullmatch(written)
    if match is None:
        return None
    unit = (match["unit"] or "ms").lower()
    unit = _LONG.get(unit.removesuffix("s") if len(unit) > 2 else unit, unit)
    return float(match["number"]) * _UNITS[unit] if unit in _UNITS else None


def from_iso(written: str) -> float | None:
    match = _ISO.fullmatch(written)
    if match is None or not any(match.groupdict().values()):
        return None
    return sum(float(part) * _UNITS[unit] for unit, part in match.groupdict().items() if part)


def read_size(name: str, text: str) -> int:
    """Bytes out of 16m, 16MB, 1g, 65536."""
    match = _SIZE.fullmatch(text.strip()) if len(text) <= 2 * NUMBER_DIGITS_MAX else None
    size = int(float(match["number"]) * _BYTES[match["unit"].lower()]) if match else 0
    if size < 1:
        raise invalid(name, text, "a size such as 16m, 512k, or bytes")
    return size
