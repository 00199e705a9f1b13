"""The nouns that every room shares: an event, and a position in a partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from pumphouse.errors import OptionError

NOTHING: Mapping[str, Any] = MappingProxyType({})

# The service counts enqueued time in milliseconds since 1970; year 1 stands for "never".
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER_MS = -62135596800000


def to_datetime(ms: int) -> datetime:
    """A timestamp as AMQP counts it, as an aware datetime."""
    return EPOCH + timedelta(milliseconds=ms)


def to_ms(moment: datetime) -> int:
    """An aware datetime as AMQP counts it."""
    if moment.tzinfo is None:
        raise OptionError(f"a time needs a zone, for example {moment.isoformat()}Z")
    return (moment - EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: what the producer wrote, and where the hub put it (empty until it was read)."""

    body: bytes
    properties: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
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
    """Where reading starts: `kind` is earliest, latest, offset, sequence or time.

    `value` is the offset (a string of digits), the sequence number or the time in milliseconds.
    With `inclusive` the event at the position itself is read, otherwise the one after it.
    """

    kind: str
    value: str = ""
    inclusive: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}" if self.value else self.kind


EARLIEST = Position("earliest")
LATEST = Position("latest")
