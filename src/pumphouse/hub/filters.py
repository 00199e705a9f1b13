"""Attach filters: parses the selector of a reader into its start position.

A client gives its start position as a selector, an expression in the filter of its attach. The log
finds the event at that position.

    attach -> position_from_filter -> log
              ^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pumphouse.amqp.performatives import SELECTOR_FILTER
from pumphouse.amqp.types import Described, short
from pumphouse.errors import AmqpError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.hub.limits.lengths import INVALID_FIELD, check_length

SELECTOR_FILTER_CODE = 0x468C00000004  # the same descriptor as a number, as Go's client sends it

ARGUMENT_ERROR = "com.microsoft:argument-error"

_ANNOTATIONS = {
    "x-opt-offset": "offset",
    "x-opt-sequence-number": "sequence",
    "x-opt-enqueued-time": "time",
    "x-opt-enqueuedtimeutc": "time",  # in the first .NET and Java clients
}
# Nineteen digits hold every signed 64-bit number, the type of sequence numbers and times. `*+` does
# not backtrack, which could be slow: without quotes, two `\s*` follow each other directly, and many
# blanks can be divided between them in many ways.
_SELECTOR = re.compile(
    r"\s*+amqp\.annotation\.(?P<annotation>[a-z-]+)\s*+(?P<operator>>=?)\s*+"
    r"(?P<quote>['\"]?)\s*+(?P<value>-?[0-9]{1,19}|@latest)\s*+(?P=quote)\s*+",
    re.IGNORECASE,
)


def parse_selector(text: str) -> Position:
    """The position of a selector; AmqpError if it is not valid."""
    check_length("selector", text)
    match = _SELECTOR.fullmatch(text)
    kind = _ANNOTATIONS.get(match["annotation"].lower()) if match else None
    if match is None or kind is None:
        raise _bad_selector(text)
    inclusive = match["operator"] == ">="
    if match["value"].lower() == "@latest":
        if kind != "offset":
            raise _bad_selector(text)
        return LATEST
    return _position(kind, int(match["value"]), inclusive, text)


def _position(kind: str, value: int, inclusive: bool, text: str) -> Position:
    if kind != "offset":
        return Position(kind, str(value), inclusive)
    if value < -1:
        raise _bad_selector(text)
    # -1 is before the first event, so `inclusive` makes no difference.
    return EARLIEST if value == -1 else Position(kind, str(value), inclusive)


@dataclass(frozen=True, slots=True)
class ReaderStart:
    """The start position of a reader, and the filters to echo."""

    position: Position = EARLIEST
    # The hub's attach echoes only these, so that the client knows which filters are applied.
    honoured: Mapping[Any, Any] = field(default_factory=dict)


def position_from_filter(filter_map: Mapping[Any, Any] | None) -> ReaderStart:
    """Parse the decoded filter of a source. Without a selector, start at the first event."""
    filters = dict(filter_map or {})
    selectors = [name for name, value in filters.items() if _is_selector(name, value)]
    if not selectors:
        return ReaderStart()
    if len(selectors) > 1:
        raise AmqpError(
            ARGUMENT_ERROR, f"One selector is allowed, the filter has {len(selectors)}."
        )
    name = selectors[0]
    return ReaderStart(parse_selector(_text_of(filters[name])), {name: filters[name]})


def _is_selector(name: Any, value: Any) -> bool:
    # A filter is recognised by its descriptor, because clients choose its name in the map freely.
    # A value without a descriptor violates the specification; it is accepted under the usual name.
    key = value.descriptor if isinstance(value, Described) else name
    return key in (SELECTOR_FILTER, SELECTOR_FILTER_CODE) and value is not None


def _text_of(value: Any) -> str:
    text = value.value if isinstance(value, Described) else value
    if not isinstance(text, str):
        raise AmqpError(INVALID_FIELD, f"The selector must be a string, got {short(text)}.")
    return text


def _bad_selector(text: str) -> AmqpError:
    return AmqpError(
        ARGUMENT_ERROR,
        f"The supplied filter '{text:.200}' is invalid. Expected amqp.annotation.x-opt-offset, "
        "x-opt-sequence-number or x-opt-enqueued-time, then > or >=, then a number in quotes "
        "(or '@latest' for x-opt-offset).",
    )
