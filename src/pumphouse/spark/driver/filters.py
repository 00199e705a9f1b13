"""Filters of a batch query that narrow what is read. Pure, except for the calls of `resolve`.

Spark passes the filters of a query to the source if `spark.sql.python.filterPushdown.enabled` is
set; `session()` sets it. With the option pushFilters, those on partition, sequenceNumber,
enqueuedTime and offset narrow the ranges. Spark applies every filter again to the rows, so a range
may be too large, never too small.

Spark keeps the ranges of the last query with a filter, and reads them again in later queries of the
same frame or view that have no filter: rows are then missing. So the option is off by default.

    WHERE -> read_filters -> Bounds -> narrow -> start and end of each partition
                                       ^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pumphouse.client.base import PartitionProperties
from pumphouse.events import Position, to_ms
from pumphouse.spark.offsets import Offsets
from pumphouse.spark.planner import HubSnapshot, Resolve, sequence_at

# The column has microseconds, the position of the hub milliseconds; and the hub's clock may step.
MARGIN_MS = 1000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the rows of a query have in common. None is no bound."""

    partitions: frozenset[str] | None = None
    first: int | None = None
    last: int | None = None  # inclusive
    since_ms: int | None = None
    until_ms: int | None = None
    offset: str | None = None
    hubs: frozenset[str] | None = None

    def includes_hub(self, hub: str) -> bool:
        return self.hubs is None or hub in self.hubs

    def within(self, other: Bounds) -> Bounds:
        """The bounds of rows that are within both."""
        return Bounds(
            intersection(self.partitions, other.partitions),
            both(max, self.first, other.first),
            both(min, self.last, other.last),
            both(max, self.since_ms, other.since_ms),
            both(min, self.until_ms, other.until_ms),
            self.offset or other.offset,
            intersection(self.hubs, other.hubs),
        )


NO_BOUNDS = Bounds()


def both(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def intersection(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def read_filters(filters: Iterable[Any]) -> Bounds:
    """The bounds in the filters of Spark; the others give none."""
    bounds = NO_BOUNDS
    for each in filters:
        bounds = bounds.within(bounds_of(each))
    return bounds


def bounds_of(each: Any) -> Bounds:
    """The bounds in one filter of pyspark.sql.datasource."""
    column: tuple[str, ...] = getattr(each, "attribute", ())
    value = getattr(each, "value", None)
    if len(column) != 1 or value is None:
        return NO_BOUNDS
    kind = type(each).__name__
    match column[0].lower():
        case "hub":
            return Bounds(hubs=equal_texts(kind, value))
        case "partition":
            return Bounds(equal_texts(kind, value))
        case "sequencenumber":
            return sequence_bounds(kind, value)
        case "enqueuedtime":
            return time_bounds(kind, value)
        case "offset" if kind == "EqualTo" and isinstance(value, str) and value.isdecimal():
            return Bounds(offset=value)
    return NO_BOUNDS


def equal_texts(kind: str, value: Any) -> frozenset[str] | None:
    """The texts to which a filter compares a column; None if it is of another kind."""
    if kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
        return frozenset([value])
    if kind == "In":
        return frozenset(each for each in value if isinstance(each, str))
    return None


def sequence_bounds(kind: str, value: Any) -> Bounds:
    if kind == "In":
        numbers = [each for each in value if is_number(each)]
        return Bounds(first=min(numbers), last=max(numbers)) if numbers else NO_BOUNDS
    if not is_number(value):
        return NO_BOUNDS
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return Bounds(first=value, last=value)
        case "GreaterThan":
            return Bounds(first=value + 1)
        case "GreaterThanOrEqual":
            return Bounds(first=value)
        case "LessThan":
            return Bounds(last=value - 1)
        case "LessThanOrEqual":
            return Bounds(last=value)
    return NO_BOUNDS


def time_bounds(kind: str, value: Any) -> Bounds:
    values = value if kind == "In" else [value]
    if not all(isinstance(each, datetime) for each in values) or not values:
        return NO_BOUNDS
    times = [to_ms(each if each.tzinfo else each.replace(tzinfo=UTC)) for each in values]
    bounds = Bounds(since_ms=min(times) - MARGIN_MS, until_ms=max(times) + MARGIN_MS)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return replace(bounds, until_ms=None)
    if kind in ("LessThan", "LessThanOrEqual"):
        return replace(bounds, since_ms=None)
    return bounds if kind in ("EqualTo", "EqualNullSafe", "In") else NO_BOUNDS


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def narrow(
    bounds: Bounds, start: Offsets, end: Offsets, snapshot: HubSnapshot, resolve: Resolve
) -> tuple[dict[str, int], dict[str, int]]:
    """The part of each range that may have rows within the bounds."""
    starts, ends = {}, {}
    for name in end:
        if bounds.partitions is not None and name not in bounds.partitions:
            continue
        state = snapshot.partitions[name]
        first = max([start[name], *lower_bounds(bounds, state, resolve)])
        last = min([end[name], *upper_bounds(bounds, state, resolve)])
        if first < last:
            starts[name], ends[name] = first, last
    return starts, ends


def lower_bounds(bounds: Bounds, state: PartitionProperties, resolve: Resolve) -> Iterable[int]:
    if bounds.first is not None:
        yield bounds.first
    if bounds.since_ms is not None:
        yield sequence_at(time_position(bounds.since_ms), state, resolve)
    if bounds.offset is not None:
        yield sequence_at(Position("offset", bounds.offset, inclusive=True), state, resolve)


def upper_bounds(bounds: Bounds, state: PartitionProperties, resolve: Resolve) -> Iterable[int]:
    if bounds.last is not None:
        yield bounds.last + 1
    if bounds.until_ms is not None:
        yield sequence_at(time_position(bounds.until_ms), state, resolve)
    if bounds.offset is not None:
        yield sequence_at(Position("offset", bounds.offset, inclusive=True), state, resolve) + 1


def time_position(ms: int) -> Position:
    return Position("time", str(max(0, ms)), inclusive=True)
