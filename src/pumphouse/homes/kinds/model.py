"""Kinds of sensors and alerts, and the rules that raise alerts from readings. Data, no IO.

    kinds.toml -> parse_kinds -> Kinds -> sift, watch, record, simulator, page
                                 ^^^^^ this module

The position of a kind is part of the state of the stages: new kinds come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

KINDS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Range:
    """A range of values, open on the side that is None."""

    at_least: float | None = None
    at_most: float | None = None

    def contains(self, value: Any) -> Any:
        """Whether a number is in the range; for each of an array, or as an expression of Spark."""
        if self.at_least is None:
            return value <= self.at_most
        if self.at_most is None:
            return value >= self.at_least
        return (value >= self.at_least) & (value <= self.at_most)


@dataclass(frozen=True, slots=True)
class Quiet:
    """The values at which a sensor is quiet: one value, those between two limits, or all."""

    at: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def is_always(self) -> bool:
        return self.at is None and self.above is None and self.below is None

    def contains(self, value: Any) -> Any:
        """As `Range.contains`."""
        if self.is_always:
            return value == value
        if self.at is not None:
            return value == self.at
        if self.above is None:
            return value < self.below
        return (
            value > self.above
            if self.below is None
            else (value > self.above) & (value < self.below)
        )

    def __str__(self) -> str:
        limits = (("at", self.at), ("above", self.above), ("below", self.below))
        return " ".join(f"{name} {limit:g}" for name, limit in limits if limit is not None) or (
            "always"
        )

    def overlaps(self, values: Range) -> bool:
        """Whether a sensor may be quiet at one of these values."""
        low = float("-inf") if values.at_least is None else values.at_least
        high = float("inf") if values.at_most is None else values.at_most
        if self.at is not None:
            return low <= self.at <= high
        reaches_up = self.below is None or low < self.below
        return reaches_up and (self.above is None or high > self.above)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A value is in a range. A reading in it again within `same_ms` is the same incident."""

    alert: str
    text: str
    values: Range
    same_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """A sensor becomes active, with a value in a range; `armed`: while the alarm is armed."""

    alert: str
    text: str
    values: Range
    armed: bool


@dataclass(frozen=True, slots=True)
class Lasting:
    """A value stays in a range for `any_ms` in any mode, or for `armed_ms` of an armed alarm."""

    alert: str
    text: str
    values: Range
    armed_ms: int | None
    any_ms: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A sensor sends nothing for `after_ms`, while others of its partition do."""

    alert: str
    text: str
    after_ms: int


@dataclass(frozen=True, slots=True)
class Unusual:
    """A value is far from the recent ones of its sensor; `least` is the least usual distance."""

    alert: str
    text: str
    least: float


Rule: TypeAlias = Threshold | Change | Lasting | Silence | Unusual
R = TypeVar("R", Threshold, Change, Lasting, Silence, Unusual)


@dataclass(frozen=True, slots=True)
class Condition:
    """A value of a sensor of the home is in a range."""

    kind: str
    values: Range


@dataclass(frozen=True, slots=True)
class Combination:
    """All conditions have held in a home within `within_ms`; again within it: the same incident."""

    alert: str
    text: str
    conditions: tuple[Condition, ...]
    within_ms: int

    @property
    def columns(self) -> int:
        """The columns of the history that it needs: see homes.watch.alarms.combined."""
        return 1 + 2 * len(self.conditions)


@dataclass(frozen=True, slots=True)
class Simulated:
    """How the home simulator simulates a kind: whole numbers, both ends of each range included."""

    quiet: tuple[int, int]  # the values of ordinary minutes
    incident: str  # the alert that an incident raises; "" without incidents
    active: tuple[int, int]  # the values during an incident
    minutes: tuple[int, int]  # the length of an incident
    rate: float  # incidents per thousand homes and day


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sensor."""

    name: str
    unit: str
    quiet: Quiet
    limits: Range = field(default_factory=Range)  # a reading outside is invalid
    rules: tuple[Rule, ...] = ()
    alarm: Range | None = None  # an alarm on the page, beside the thresholds
    quiet_text: str = ""  # on the page, in place of the value
    active_text: str = ""
    simulated: Simulated | None = None  # None: not simulated, or by the simulator's own model

    @property
    def title(self) -> str:
        return self.name.replace("-", " ").capitalize()

    def alarms(self) -> tuple[Range, ...]:
        """The ranges of values that are an alarm in any mode."""
        thresholds = [rule.values for rule in self.rules if isinstance(rule, Threshold)]
        return (*thresholds, *(() if self.alarm is None else (self.alarm,)))


@dataclass(frozen=True, slots=True)
class AlertKind:
    """A kind of alert."""

    name: str
    rule: str  # when it is raised, in words
    urgent: bool = False


@dataclass(frozen=True)
class Kinds:
    """All kinds of sensors and alerts. `source` is where they come from, for messages."""

    source: str
    kinds: tuple[Kind, ...]
    alerts: tuple[AlertKind, ...]
    combinations: tuple[Combination, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.kinds)

    @cached_property
    def by_name(self) -> dict[str, Kind]:
        return {kind.name: kind for kind in self.kinds}

    @cached_property
    def index_of(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @cached_property
    def alert_names(self) -> tuple[str, ...]:
        return tuple(alert.name for alert in self.alerts)

    def rules(self, of: type[R]) -> list[tuple[int, R]]:
        """All rules of a type, each with the index of its kind of sensor."""
        return list(self._rules(of))

    def _rules(self, of: type[R]) -> Iterator[tuple[int, R]]:
        for index, kind in enumerate(self.kinds):
            yield from ((index, rule) for rule in kind.rules if isinstance(rule, of))

    def alert_index(self, name: str) -> int:
        return self.alert_names.index(name)

    @cached_property
    def texts(self) -> dict[tuple[str, str], str]:
        """The texts of alerts, by the kind of alert and the kind of sensor."""
        texts = {(rule.alert, kind.name): rule.text for kind in self.kinds for rule in kind.rules}
        combined = {
            (each.alert, condition.kind): each.text
            for each in self.combinations
            for condition in each.conditions
        }
        return combined | texts


def met_columns(kinds: Kinds) -> int:
    """The columns of the history for thresholds and combinations."""
    combinations = sum(combination.columns for combination in kinds.combinations)
    return len(kinds.rules(Threshold)) + combinations
