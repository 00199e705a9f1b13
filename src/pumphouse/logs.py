"""The form of every log line: `event key=value …`. Pure: nothing here writes a log.

    log.info("%s", line("partition_claimed", host="vm-1", partition="3", epoch=7))
    # partition_claimed host=vm-1 partition=3 epoch=7

docs/logging.md lists the events and what an operator does about each.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from pumphouse.escapes import json_text

# A longer value is cut, so that a log line with an error stays short.
VALUE_CHARS_MAX = 500
TEXTS_MAX = 20  # of one run; texts with a number that changes would all be new
JOINS_S = 60.0  # a member that fails this long after the others is logged by itself
# The parts of an error text of the service that differ each time.
TRACKING = re.compile(r"TrackingId:[^\s,]*|Timestamp:[-0-9T:.]*|Reference:[-0-9a-f]{36}\S*")


class line:
    """One log line. It is formatted only when a handler writes it."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, /, **fields: object) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        shown = [f"{key}={shown_value(v)}" for key, v in self.fields.items() if v is not None]
        return " ".join([self.event, *shown])


def text_of(value: object) -> str:
    """The text of a value. Exceptions of user code may fail to make theirs."""
    try:
        return str(value)
    except Exception as failed:
        return f"(no text: its __str__ raises {type(failed).__name__})"


def has_text(value: object) -> bool:
    """Whether the value can make its text; see `text_of`."""
    try:
        str(value)
    except Exception:
        return False
    return True


def shown_value(value: object) -> str:
    """A value as one word, or in JSON's quotes if it has blanks, quotes or control characters."""
    if isinstance(value, BaseException):
        name, text = type(value).__name__, text_of(value)
        value = f"{name}: {text}" if text else name
    if isinstance(value, float):
        value = f"{value:.3f}".rstrip("0").rstrip(".")
    # A lone surrogate cannot be written as UTF-8: the whole line would be lost.
    text = text_of(value).encode("utf-8", "backslashreplace").decode()
    if len(text) > VALUE_CHARS_MAX:
        text = text[:VALUE_CHARS_MAX] + "…"
    plain = text.isprintable() and not any(c in ' "=' for c in text)
    return text if plain and text else json_text(text)


@dataclass(slots=True)
class FailureRun:
    """Failures of one kind, from the first one until they are over."""

    since_s: float
    last_s: float
    count: int = 0
    texts: set[str] = field(default_factory=set)
    members: set[Hashable] = field(default_factory=set)  # all that have failed
    failing: set[Hashable] = field(default_factory=set)  # those that have not recovered

    def add(self, text: str, now_s: float, member: Hashable) -> bool:
        """Count a failure; returns whether to log it."""
        joins_late = member not in self.members and now_s > self.last_s + JOINS_S
        is_new = text not in self.texts and len(self.texts) < TEXTS_MAX
        self.count, self.last_s = self.count + 1, now_s
        if is_new:
            self.texts.add(text)
        self.members.add(member)
        self.failing.add(member)
        return is_power_of_ten(self.count) or is_new or joins_late

    def log_fields(self, now_s: float) -> dict[str, object]:
        """The fields of the line that ends the run."""
        partitions = len(self.members) if len(self.members) > 1 else None
        return {"failures": self.count, "partitions": partitions, "after_s": now_s - self.since_s}


@dataclass(slots=True)
class RepeatedFailures:
    """Decides which repetitions of a failure are logged: the first, the 10th, the 100th, and so on.

    A failure with a text that is new in its run is logged too, and the count continues. Tracking
    ids and times, which differ in every text of the service, do not count as a new text. A run has
    one or several members, such as the partitions that fail for the same reason: it is over when
    all of them have recovered.
    """

    _runs: dict[Hashable, FailureRun] = field(default_factory=dict)

    @property
    def is_any(self) -> bool:
        """Whether anything fails."""
        return bool(self._runs)

    def failed(
        self, key: Hashable, failure: object, now_s: float = 0.0, member: Hashable = None
    ) -> int | None:
        """Count a failure; returns the count if this failure is to be logged, else None."""
        run = self._runs.setdefault(key, FailureRun(now_s, now_s))
        text = TRACKING.sub("", shown_value(failure))
        return run.count if run.add(text, now_s, member) else None

    def members(self, key: Hashable) -> int:
        return len(self._runs[key].members) if key in self._runs else 0

    def recovered(self, key: Hashable, member: Hashable = None) -> FailureRun | None:
        """This member works again; returns the run if it is over."""
        if (run := self._runs.get(key)) is None or member not in run.failing:
            return None
        run.failing.discard(member)
        return None if run.failing else self._runs.pop(key)

    def forget(self, member: Hashable) -> None:
        """This member no longer takes part: a run in which only it fails is over."""
        for run in self._runs.values():
            run.failing.discard(member)
        self._runs = {key: run for key, run in self._runs.items() if run.failing}

    def succeeded(self, key: Hashable) -> int:
        """Forget the failures of this key; returns their number."""
        run = self._runs.pop(key, None)
        return 0 if run is None else run.count


class LevelledLogger(Protocol):
    """What `quieten` needs of a `logging.Logger`."""

    level: int

    def setLevel(self, level: int) -> None: ...


def quieten(logger: LevelledLogger, level: int) -> None:
    """Set the level of another package's logger, unless the program has set one."""
    if logger.level == 0:  # NOTSET
        logger.setLevel(level)


@dataclass(slots=True)
class LogThrottle:
    """Decides which occurrences of an event are logged: at most some per period.

    For events that others cause, such as clients of a server: they must not fill the log. Time is
    an argument, in seconds.
    """

    lines_max: int  # of one key in one period
    period_s: float
    _periods: dict[Hashable, tuple[float, int, int]] = field(default_factory=dict)

    def due(self, key: Hashable, now: float, lines: int | None = None) -> int | None:
        """Count an occurrence; returns the number since the last logged one. None: not logged."""
        start, logged, skipped = self._periods.get(key, (now, 0, 0))
        if now - start >= self.period_s:
            start, logged = now, 0
        is_due = logged < (self.lines_max if lines is None else lines)
        self._periods[key] = (start, logged + is_due, 0 if is_due else skipped + 1)
        return skipped + 1 if is_due else None


def is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"
