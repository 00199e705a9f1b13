"""The form of every log line: `event key=value …`. Pure: nothing here writes a log.

    log.info("%s", line("partition_claimed", host="vm-1", partition="3", epoch=7))
    # partition_claimed host=vm-1 partition=3 epoch=7

docs/logging.md lists the events and what an operator does about each.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field

# A longer value is cut: a log line quotes an error, it does not hold a whole message.
VALUE_CHARS_MAX = 500


class line:
    """One log line. It is formatted only when a handler writes it."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, /, **fields: object) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        shown = [f"{key}={shown_value(v)}" for key, v in self.fields.items() if v is not None]
        return " ".join([self.event, *shown])


def shown_value(value: object) -> str:
    """A value as one word, or in JSON's quotes if it has blanks, quotes or control characters."""
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}"
    if isinstance(value, float):
        value = f"{value:.3f}".rstrip("0").rstrip(".")
    # A lone surrogate cannot be written as UTF-8: the whole line would be lost.
    text = str(value).encode("utf-8", "backslashreplace").decode()
    if len(text) > VALUE_CHARS_MAX:
        text = text[:VALUE_CHARS_MAX] + "…"
    plain = text.isprintable() and not any(c in ' "=' for c in text)
    return text if plain and text else json.dumps(text, ensure_ascii=False)


@dataclass(slots=True)
class RepeatedFailures:
    """Decides which repetitions of a failure are logged: the first, the 10th, the 100th, and so on.

    A failure with another text starts a new count, and so does one after a success.
    """

    _seen: dict[Hashable, tuple[str, int]] = field(default_factory=dict)

    def failed(self, key: Hashable, failure: object) -> int | None:
        """The number of this failure in its row if it is to be logged, else None."""
        text = shown_value(failure)
        last, count = self._seen.get(key, ("", 0))
        count = count + 1 if last == text else 1
        self._seen[key] = (text, count)
        return count if is_power_of_ten(count) else None

    def succeeded(self, key: Hashable) -> int:
        """Forget the failures of this key; how many there were."""
        return self._seen.pop(key, ("", 0))[1]


def is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"
