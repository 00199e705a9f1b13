"""Types that all packages share: an event, and a position in a partition."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pumphouse.errors import OptionError

NO_PROPERTIES: Mapping[str, Any] = MappingProxyType({})

# Enqueued times are milliseconds since 1970; the year 1 stands for "never".
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER_MS = -62135596800000


def to_datetime(ms: int) -> datetime:
    """An AMQP timestamp as an aware datetime."""
    return EPOCH + timedelta(milliseconds=ms)


def to_ms(moment: datetime) -> int:
    """An aware datetime as an AMQP timestamp."""
    if moment.tzinfo is None:
        raise OptionError(f"time {moment.isoformat()} has no time zone: append Z or an offset")
    return (moment - EPOCH) // timedelta(milliseconds=1)


DEFERRED = frozenset(("properties", "sequence", "offset", "enqueued_ms"))


class EncodedFields:
    """The encoded fields of an event that was received, decoded when they are first used."""

    __slots__ = ("decode_field", "encoded_fields")
    decode_field: Callable[[str, bytes], Any]  # of the name of the field
    encoded_fields: bytes

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            """Called for attributes that are not set: some fields, until they are decoded."""
            if name not in DEFERRED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = self.decode_field(name, self.encoded_fields)
            object.__setattr__(self, name, value)
            return value


@dataclass(frozen=True, slots=True)
class Event(EncodedFields):
    """One event. The hub sets the last four fields; in an event that you create they are None."""

    body: bytes
    properties: Mapping[str, Any] = field(default_factory=lambda: NO_PROPERTIES)
    partition_key: str | None = None
    partition: str | None = None
    sequence: int | None = None
    offset: str | None = None
    enqueued_ms: int | None = None

    @property
    def enqueued_at(self) -> datetime | None:
        return None if self.enqueued_ms is None else to_datetime(self.enqueued_ms)


@dataclass(frozen=True, slots=True)
class Position:
    """The start position of a reader: `kind` is earliest, latest, offset, sequence or time.

    `value` is the offset (a string of digits), the sequence number, or the time in milliseconds.
    With `inclusive` the event at the position itself is read, otherwise the one after it.
    """

    kind: str
    value: str = ""
    inclusive: bool = False

    def __post_init__(self) -> None:
        if self.kind not in POSITION_KINDS:
            raise OptionError(
                f"invalid kind of position {self.kind!r}: use one of {', '.join(POSITION_KINDS)}"
            )
        needed = POSITION_KINDS[self.kind]
        if not isinstance(self.value, str) or not needed.fullmatch(self.value):
            raise OptionError(
                f"invalid value {self.value!r} of a position of kind {self.kind!r}: "
                f"use {POSITION_VALUES.get(self.kind, 'no value')}"
            )

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}" if self.value else self.kind


_NUMBER = re.compile(r"-?[0-9]+")
# Each kind of position with the form of its value. Offsets of geo-replicated hubs are not numbers.
POSITION_KINDS = {
    "earliest": re.compile(""),
    "latest": re.compile(""),
    "offset": re.compile(".+"),
    "sequence": _NUMBER,
    "time": _NUMBER,
}
POSITION_VALUES = {
    "offset": "the offset as a string",
    "sequence": "the sequence number as a string of digits",
    "time": "milliseconds since 1970 as a string of digits",
}

EARLIEST = Position("earliest")
LATEST = Position("latest")

FORMS = "earliest, latest, seq:N, offset:N, time:2024-05-01T12:00:00Z, time:MILLISECONDS, time:-15m"
_NUMBER_KINDS = {"seq": "sequence", "sequence": "sequence", "offset": "offset"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"-(?P<count>[0-9]{1,9})(?P<unit>[smhd])")
_DIGITS = re.compile(r"[0-9]{1,19}")


def parse_position(text: str, now_ms: int) -> Position:
    """The position of a command line argument. The event at the position is included."""
    kind, _, value = text.strip().partition(":")
    kind, value = kind.lower(), value.strip()
    if kind in ("earliest", "latest") and ":" not in text:
        return EARLIEST if kind == "earliest" else LATEST
    if kind in _NUMBER_KINDS and _DIGITS.fullmatch(value):
        return Position(_NUMBER_KINDS[kind], str(int(value)), inclusive=True)
    if kind == "time":
        return Position("time", str(_parse_time(text, value, now_ms)), inclusive=True)
    raise _bad_position(text)


def _parse_time(text: str, value: str, now_ms: int) -> int:
    if _DIGITS.fullmatch(value):
        return int(value)
    if ago := _AGO.fullmatch(value.lower()):
        return now_ms - int(ago["count"]) * _SECONDS[ago["unit"]] * 1000
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise _bad_position(text) from None
    return to_ms(moment)


def _bad_position(text: str) -> OptionError:
    return OptionError(f"invalid position {text!r}: use one of {FORMS}")
