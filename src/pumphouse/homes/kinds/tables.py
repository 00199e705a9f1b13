"""Reads typed values out of a table of a TOML file. Each error names file, key and value.

dict -> Table.text, Table.number, ... -> values; OptionError
        ^^^^^ this module
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pumphouse.errors import OptionError
from pumphouse.homes.kinds.model import Range

SECONDS_MAX = 86_400.0  # the stages know the last day
REQUIRED: Any = object()
T = TypeVar("T")


class Table:
    """A table of a file; `key` is its path in it."""

    def __init__(self, source: str, key: str, values: Any) -> None:
        self.source, self.key = source, key
        if not isinstance(values, Mapping):
            raise self.error(f"expected a table, found {shown(values)}", "")
        self.values = values

    def error(self, problem: str, name: str) -> OptionError:
        key = f"{self.key}.{name}" if self.key and name else self.key or name
        return OptionError(f"{self.source}: {key}: {problem}")

    def only(self, *names: str) -> None:
        """Raise if the table has a key with another name."""
        for name in self.values:
            if name not in names:
                similar = get_close_matches(name, names, 1)
                use = f"did you mean {similar[0]}?" if similar else f"use {', '.join(names)}"
                raise self.error(f"unknown key: {use}", name)

    def value(self, name: str, default: Any, types: tuple[type, ...], expected: str) -> Any:
        value = self.values.get(name, default)
        if value is REQUIRED:
            raise self.error(f"missing: add {expected}", name)
        if name in self.values and (
            not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        ):
            raise self.error(f"expected {expected}, found {shown(value)}", name)
        return value

    def text(self, name: str, default: str = REQUIRED) -> str:
        text: str = self.value(name, default, (str,), "a text")
        return text

    def flag(self, name: str) -> bool:
        flag: bool = self.value(name, False, (bool,), "true or false")
        return flag

    def number(self, name: str, default: float | None = REQUIRED) -> float | None:
        number: float | None = self.value(name, default, (int, float), "a number")
        if number is not None and not math.isfinite(number):
            raise self.error(f"expected a finite number, found {number}", name)
        return number

    def positive(self, name: str, most: float = math.inf, default: float = REQUIRED) -> float:
        number = self.number(name, default)
        if number is None or not 0 < number <= most:
            limit = "" if math.isinf(most) else f" and at most {most:g}"
            raise self.error(f"must be above 0{limit} (got {number})", name)
        return number

    def milliseconds(self, name: str, default: float = REQUIRED) -> int:
        return round(self.positive(name, SECONDS_MAX, default) * 1000)

    def span(self, name: str, low: int, high: int) -> tuple[int, int]:
        """Two whole numbers in order, such as [0, 5]."""
        pair = self.value(name, REQUIRED, (Sequence,), "two whole numbers such as [0, 5]")
        whole = len(pair) == 2 and all(type(number) is int for number in pair)
        if not (whole and low <= pair[0] <= pair[1] <= high):
            problem = f"expected two whole numbers from {low} to {high} in order, as in [0, 5]"
            raise self.error(f"{problem}, found {shown(pair)}", name)
        return pair[0], pair[1]

    def range(self) -> Range:
        """The range of the keys `at_least` and `at_most`."""
        values = Range(self.number("at_least", None), self.number("at_most", None))
        if values == Range():
            raise self.error("missing: add at_least or at_most, a number", "at_least")
        return self.ordered(values, "at_most")

    def ordered(self, values: Range, name: str) -> Range:
        low, high = values.at_least, values.at_most
        if low is not None and high is not None and low > high:
            raise self.error(f"the range is empty: {high:g} is below {low:g}", name)
        return values

    def tables(self, name: str) -> list[Table]:
        """The tables of an array."""
        items = self.value(name, (), (list, tuple), "an array of tables")
        path = f"{self.key}.{name}" if self.key else name
        return [Table(self.source, f"{path}[{i + 1}]", item) for i, item in enumerate(items)]

    def table(self, name: str) -> Table:
        path = f"{self.key}.{name}" if self.key else name
        return Table(self.source, path, self.values.get(name, {}))


def shown(value: Any) -> str:
    return f"{value!r:.60}"
