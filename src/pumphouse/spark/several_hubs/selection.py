"""Which hubs a query reads: one, several by name, or those that match a pattern. Pure.

name=a,b or namePattern=sensors-.* -> read_selection -> HubSelection
                                      ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pumphouse.errors import OptionError
from pumphouse.spark.option_values import OptionValues, invalid, normal_name

NAME, PATTERN = "name", "namePattern"


@dataclass(frozen=True, slots=True)
class HubSelection:
    """The hubs of a query of several: their names, or a pattern."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def __str__(self) -> str:
        return f"{PATTERN}={self.pattern}" if self.pattern else f"{NAME}={','.join(self.names)}"

    def choose(self, listed: Iterable[str]) -> tuple[str, ...]:
        """The hubs that match the pattern, out of all hubs of the namespace."""
        matches = re.compile(self.pattern, re.IGNORECASE).fullmatch
        return tuple(sorted(hub for hub in listed if matches(hub)))


def reads_several(given: Mapping[str, str]) -> bool:
    """Whether these options select several hubs; then the rows have the column `hub`."""
    texts = {normal_name(name): str(text) for name, text in given.items()}
    return bool(texts.get(PATTERN.lower(), "").strip()) or "," in texts.get(NAME, "")


def read_selection(values: OptionValues) -> HubSelection | None:
    """The hubs of a query of several; None if the query reads one hub."""
    name, pattern = values.text(NAME), values.text(PATTERN).strip()
    if pattern and name:
        raise OptionError(f"{NAME} and {PATTERN} exclude each other; give one of them")
    if pattern:
        return HubSelection(pattern=checked_pattern(pattern))
    if "," not in name:
        return None
    # Names of hubs have no case.
    names = {each.strip().lower(): each.strip() for each in name.split(",") if each.strip()}
    if not names:
        raise invalid(NAME, name, "names of hubs such as a,b")
    return HubSelection(tuple(names.values()))


def checked_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as wrong:
        raise OptionError(
            f"invalid {PATTERN} {pattern!r}: {wrong}; use a regular expression"
        ) from None
    return pattern
